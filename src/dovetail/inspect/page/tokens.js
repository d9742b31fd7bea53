/**
 * The tokens of one choice, each with who made it, where the reader was, and what happened there.
 *
 * @typedef {import("./recording.js").Step} Step
 * @typedef {import("./recording.js").RecordedEvent} RecordedEvent
 *
 * `seconds`: since the step before. `refused`: how many drafts of the step were refused; `drafts`: their texts, where
 * they were recorded.
 * @typedef {{number: number, at: number, seconds: number, step: Step, refused: number, drafts: string[]}} StepOfAnswer
 *
 * @typedef {"model" | "draft" | "forced"} Maker
 * @typedef {"reasoning" | "content" | "call" | "markup"} State
 *
 * `allowed`: how many tokens the grammar allowed in its place. `logprob` and `likeliest`, where the request asked for them.
 * `first`, `last`: of its step. `marks`: events other than texts.
 * @typedef {{number: number, id: number | null, text: string, control: boolean, maker: Maker, state: State,
 *   step: StepOfAnswer, first: boolean, last: boolean, marks: Mark[], allowed: number | null, logprob: number | null,
 *   likeliest: [text: string, logprob: number][]}} Token
 * @typedef {{text: string, problem: boolean}} Mark
 */

/** The steps of `choice`. @param {Step[]} steps @param {number} choice @returns {StepOfAnswer[]} */
export function stepsOf(steps, choice) {
  let before = 0;
  return steps.filter((step) => step.choice === choice).map((step, number) => {
    const seconds = step.at - before;
    before = step.at;
    const refused = step.drafted === null ? 0 : Math.max(0, step.drafted - step.accepted);
    return { number, at: step.at, seconds, step, refused, drafts: refusedTexts(step) };
  });
}

/** @param {StepOfAnswer[]} steps @returns {Token[]} */
export function tokensOf(steps) {
  /** @type {Token[]} */
  const tokens = [];
  for (const step of steps) {
    const states = statesOf(step.step);
    const made = step.step.tokens.map(([id, text, control], index) => /** @type {Token} */ ({
      number: tokens.length + index, id, text, control, maker: makerOf(step.step, index), state: states[index], step,
      first: index === 0, last: index === step.step.tokens.length - 1, marks: [],
      allowed: step.step.allowed?.[index] ?? null, logprob: step.step.logprobs?.[index]?.[0] ?? null,
      likeliest: step.step.logprobs?.[index]?.[1] ?? [],
    }));
    for (const [index, mark] of marksOf(step.step)) made[Math.min(index, made.length - 1)]?.marks.push(mark);
    tokens.push(...made);
  }
  return tokens;
}

/** @param {Step} step @param {number} index @returns {Maker} */
function makerOf(step, index) {
  if (index < Math.min(step.forced, step.accepted)) return "forced";
  return index < step.accepted ? "draft" : "model";
}

/** The texts of refused drafts, where the recording has them. @param {Step} step @returns {string[]} */
function refusedTexts(step) {
  return (step.refused ?? []).map(([id, text]) => (id === null ? "·" : text || "…"));
}

/** @type {Record<string, State>} */
const STATES = { Reasoning: "reasoning", Content: "content", CallArguments: "call" };

/** Where the reader was at each token: the texts of the events, in their order, are the tokens' texts. @param {Step} step */
function statesOf(step) {
  const texts = step.events.filter((event) => event.type in STATES);
  let number = 0;
  let used = 0;
  return step.tokens.map(([, text, control]) => {
    if (control || number >= texts.length || (used === 0 && isHeader(step, texts[number], text))) return "markup";
    const state = STATES[texts[number].type];
    used += text.length;
    while (number < texts.length && used >= lengthOf(texts[number])) used -= lengthOf(texts[number++]);
    return state;
  });
}

/** Whether `text` is the name of a call, ahead of its arguments. @param {Step} step @param {RecordedEvent} event @param {string} text */
function isHeader(step, event, text) {
  const before = step.events[step.events.indexOf(event) - 1];
  return before?.type === "CallStart" && !(event.fragment ?? "").startsWith(text);
}

/** @param {RecordedEvent} event */
function lengthOf(event) {
  return (event.text ?? event.fragment ?? "").length;
}

/** What happened in a step, and at which of its tokens. @param {Step} step @returns {[number, Mark][]} */
function marksOf(step) {
  /** @type {[number, Mark][]} */
  const marks = [];
  let characters = 0;
  for (const event of step.events) {
    const mark = markOf(event);
    if (mark) marks.push([tokenAt(step, characters), mark]);
    else characters += lengthOf(event);
  }
  const last = step.tokens.length - 1;
  for (const { fault } of step.checks) if (fault !== null) marks.push([last, { text: fault, problem: true }]);
  for (const guard of step.guards ?? []) marks.push([last, { text: `⚠ guard: ${guard}`, problem: true }]);
  if (step.finish !== null) marks.push([last, { text: `■ ${step.finish}`, problem: step.finish === "length" }]);
  return marks;
}

/** @param {RecordedEvent} event @returns {Mark | null} */
function markOf(event) {
  const number = (event.index ?? 0) + 1;
  if (event.type === "CallStart") return { text: `▶ call ${number} ${event.name}`, problem: false };
  if (event.type === "CallEnd") return { text: `◀ call ${number}`, problem: false };
  if (event.type === "Defect") return { text: `⚠ ${event.kind}`, problem: true };
  return null;
}

/** The last token of the text's first `characters`, with the control tokens behind it. @param {Step} step @param {number} characters */
function tokenAt(step, characters) {
  let length = 0;
  for (let index = 0; index < step.tokens.length; index++) {
    const [, text, control] = step.tokens[index];
    const next = step.tokens[index + 1];
    if (!control) length += text.length;
    if (length >= characters && !(next && next[2])) return index;
  }
  return step.tokens.length - 1;
}
