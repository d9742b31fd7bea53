/**
 * A prompt: its control tokens in colour, and each message of a role in a block.
 *
 * @typedef {import("./recording.js").Segment} Segment
 * @typedef {{role: string, segments: Segment[]}} Turn
 */

import { element, visible } from "./dom.js";

const NAMES = "system|developer|user|assistant|model|tool|function|ipython|observation";
/** A control token that names a role, such as <|im_user|>, <|User|> or [SYSTEM_PROMPT]. */
const CONTROL_ROLE = new RegExp(`^[<\\[][|｜]?(?:im_|start_)?(${NAMES})(?:_prompt)?[|｜]?[>\\]]$`, "i");
/** A text behind a control token that begins with a role and nothing else on its line. */
const TEXT_ROLE = new RegExp(`^\\s*(${NAMES})\\s*(?:\\n|$)`, "i");
/** Characters of a piece of text. A piece out of sight costs nothing (content-visibility in the style sheet). */
const PIECE = 4000;

/** @param {Segment[]} segments @returns {HTMLElement} */
export function promptElement(segments) {
  return element("div", { class: "prompt", tabindex: 0, role: "region", "aria-label": "Prompt" }, ...turnsOf(segments).map(turnElement));
}

/** `segments` by the role whose message they belong to; "" before the first. @param {Segment[]} segments @returns {Turn[]} */
export function turnsOf(segments) {
  /** @type {Turn[]} */
  const turns = [];
  segments.forEach((segment, number) => {
    const before = segments[number - 1];
    const role = roleOf(segment, before);
    const last = turns.at(-1);
    if (role && last && !segment.control && last.role === role && last.segments.length === 1) {
      last.segments.push(segment); // <|im_user|>user: one role, twice
    } else if (role && last && !segment.control && last.segments.length && last.segments.at(-1) === before) {
      last.segments.pop(); // <|im_start|>user: the token belongs to the message that it opens
      if (!last.segments.length) turns.pop();
      turns.push({ role, segments: [before, segment] });
    } else if (role || !last) turns.push({ role, segments: [segment] });
    else last.segments.push(segment);
  });
  return turns;
}

/** @param {Segment} segment @param {Segment | undefined} before */
function roleOf(segment, before) {
  const match = segment.control ? CONTROL_ROLE.exec(segment.text) : before?.control ? TEXT_ROLE.exec(segment.text) : null;
  return match ? match[1].toLowerCase() : "";
}

/** @param {Turn} turn */
function turnElement(turn) {
  const role = turn.role || "start";
  return element("div", { class: `turn role-${role}` },
    element("span", { class: "role" }, role),
    element("div", { class: "turn-text" }, ...turn.segments.flatMap(segmentElements)));
}

/** @param {Segment} segment @returns {Node[]} */
function segmentElements(segment) {
  if (segment.control) return [element("bdi", { class: "control-token" }, visible(segment.text))];
  if (segment.text.length <= PIECE) return [element("span", {}, visible(segment.text))];
  return pieces(segment.text).map((piece) => element("span", { class: "piece" }, visible(piece)));
}

/** A long text in pieces, which end with a line where they can. @param {string} text */
function pieces(text) {
  const cut = [];
  let from = 0;
  while (from < text.length) {
    const line = text.lastIndexOf("\n", from + PIECE);
    let to = line > from ? line + 1 : from + PIECE;
    if (/[\ud800-\udbff]/.test(text[to - 1])) to++; // not inside a character
    cut.push(text.slice(from, to));
    from = to;
  }
  return cut;
}
