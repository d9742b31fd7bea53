/**
 * One request, from its messages to its message.
 *
 * @typedef {import("./recording.js").Recording} Recording
 * @typedef {import("./recording.js").Picture} Picture
 * @typedef {import("./tokens.js").Token} Token
 */

import { get } from "./api.js";
import { count, duration, element, fill, grouped, inLine, visible } from "./dom.js";
import { Lanes } from "./lanes.js";
import { messageElements, longText } from "./message.js";
import { promptElement } from "./prompt.js";
import { prefixLanes } from "./prefix_lanes.js";
import { Strip } from "./strip.js";
import { tokenDetails } from "./token_details.js";
import { stepsOf, tokensOf } from "./tokens.js";

/** @param {HTMLElement} main @param {string} name @param {AbortSignal} signal */
export async function showRequest(main, name, signal) {
  fill(main, element("p", { class: "dim" }, "Reading the recording …"));
  const { recording, verdict, request } = await get(`recordings/${encodeURIComponent(name)}`, signal);
  const server = await get("server", signal);
  const choices = [...new Set(recording.steps.map((/** @type {{choice: number}} */ step) => step.choice))].sort((a, b) => a - b);
  const answer = element("div", { class: "answer" });
  fill(main, head(recording), foreign(recording, server.tokenizer?.digest), verdictElement(verdict), element("div", { class: "columns" },
    element("div", { class: "wide" }, repairs(recording), prefixLanes(recording), prompt(recording), pictures(recording.pictures ?? []), chooser(choices, (choice) => show(choice)), answer),
    element("aside", { "aria-label": "Message" }, element("h2", {}, "Message"), ...messages(recording))),
    ...more(recording, request));
  /** @param {number} choice */
  function show(choice) {
    fill(answer, ...answerElements(recording, choice));
  }
  if (choices.length) show(choices[0]);
  main.focus({ preventScroll: true });
}

/** @param {Recording} recording */
function head(recording) {
  const tokens = recording.steps.reduce((sum, step) => sum + step.tokens.length, 0);
  const facts = [
    recording.api, recording.model ?? "", new Date(recording.began).toLocaleString("en-GB"),
    recording.prompt ? `${grouped(recording.prompt.tokens)} prompt tokens` : "",
    count(tokens, "token"), recording.times.ended ? duration(recording.times.ended) : "",
    recording.redacted ? "redacted" : "",
  ];
  return element("header", {}, element("p", {}, element("a", { href: "#/" }, "← All requests")),
    element("h1", { class: "id" }, inLine(recording.id)),
    element("p", { class: "facts" }, ...facts.filter(Boolean).map((fact) => element("span", {}, inLine(fact)))));
}

/** A note on a recording of another model. @param {Recording} recording @param {string | undefined} digest the served tokenizer's, if there is one model */
function foreign(recording, digest) {
  if (!recording.tokenizer || !digest || recording.tokenizer.digest === digest) return null;
  return element("p", { class: "note" }, "Recorded with another tokenizer than that of the served model: its token ids mean other texts here.");
}

/** @param {{kind: string, text: string, problem: boolean}[]} findings */
function verdictElement(findings) {
  return element("ul", { class: "verdict", "aria-label": "Verdict" }, ...findings.map((finding) =>
    element("li", { class: finding.problem ? "problem" : "", "data-kind": finding.kind }, visible(finding.text))));
}

/** @param {Recording} recording */
function repairs(recording) {
  if (!recording.repairs.length) return null;
  return element("details", {}, element("summary", {}, element("h2", {}, `Repairs (${recording.repairs.length})`)),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Repairs" }, element("table", {},
      element("thead", {}, element("tr", {}, ...["Kind", "Where", "Change"].map((each) => element("th", { scope: "col" }, each)))),
      element("tbody", {}, ...recording.repairs.slice(0, 1000).map((repair) => element("tr", { class: repair.new ? "" : "dim" },
        element("td", {}, inLine(repair.kind)), element("td", {}, inLine(repair.where)), element("td", {}, inLine(repair.detail))))))));
}

/** @param {Recording} recording */
function prompt(recording) {
  if (!recording.prompt) return element("p", { class: "dim" }, "There is no prompt.");
  const { tokens, segments, in_reasoning: inside } = recording.prompt;
  return element("details", { open: true },
    element("summary", {}, element("h2", {}, "Prompt"), ` ${count(tokens, "token")}${inside ? ", ends inside reasoning" : ""}`),
    segments ? promptElement(segments) : element("p", { class: "dim" }, "Its text was left out."));
}

/** The pictures of the prompt, in order. Without its file, a picture is its digest. @param {Picture[]} pictures */
function pictures(pictures) {
  if (!pictures.length) return null;
  return element("details", { open: true }, element("summary", {}, element("h2", {}, "Pictures"), ` ${grouped(pictures.length)}`),
    element("div", { class: "pictures" }, ...pictures.map(({ media_type: type, size, sha256, data }, number) => element("figure", {},
      data && /^image\/(png|jpeg|webp|gif)$/.test(type)
        ? element("img", { src: `data:${type};base64,${data}`, alt: `Picture ${number + 1}` }) : null,
      element("figcaption", {}, inLine(`${number + 1}: ${type}, ${grouped(size)} bytes`),
        sha256 ? element("span", { class: "dim", title: inLine(sha256) }, ` sha256 ${inLine(sha256.slice(0, 12))}`) : null)))));
}

/** @param {number[]} choices @param {(choice: number) => void} onChoice */
function chooser(choices, onChoice) {
  if (choices.length < 2) return null;
  const select = element("select", { id: "choice", change: () => onChoice(Number(select.value)) },
    ...choices.map((choice) => element("option", { value: choice }, String(choice))));
  return element("p", {}, element("label", { for: "choice" }, "Choice "), select);
}

/** @param {Recording} recording @param {number} choice @returns {HTMLElement[]} */
function answerElements(recording, choice) {
  const steps = stepsOf(recording.steps, choice);
  const tokens = tokensOf(steps);
  if (!tokens.length) return [element("p", { class: "dim" }, "The answer has no tokens.")];
  const details = element("div", { class: "details" });
  const strip = new Strip(steps, (step) => lanes.select(tokens.findIndex((token) => token.step.number >= step.number)));
  const lanes = new Lanes(tokens, (token, hovered) => {
    fill(details, ...tokenDetails(token, tokens.length, steps.length));
    details.setAttribute("aria-live", hovered ? "off" : "polite");
    if (!hovered) strip.select(token.step);
  });
  fill(details, ...tokenDetails(tokens[0], tokens.length, steps.length));
  return [
    element("div", { class: "row" }, element("h2", {}, "Answer"), legend()), strip.canvas, lanes.element, details,
    element("p", { class: "dim", id: "lane-keys" }, "Arrow keys go from token to token, with Ctrl from step to step, e to the next event."),
  ];
}

function legend() {
  const items = [["model", "the model's own"], ["draft", "draft that stood"], ["forced", "forced by the grammar"],
    ["control", "control token"], ["refused", "refused drafts"]];
  return element("ul", { class: "legend", "aria-label": "Colours" }, ...items.map(([kind, text]) => element("li", {},
    element("span", { class: `swatch token ${kind === "control" ? "model control" : kind}` }, "abc"), text)),
    ...["reasoning", "content", "call"].map((state) => element("li", {}, element("span", { class: `line ${state}` }), state)));
}

/** @param {Recording} recording @returns {HTMLElement[]} */
function messages(recording) {
  const several = recording.messages.length > 1;
  const shown = recording.messages.flatMap((message) => [
    ...(several ? [element("h3", {}, `Choice ${message.choice}`)] : []), ...messageElements(message)]);
  const error = recording.error && element("section", { class: "part problem" },
    element("h3", {}, inLine(recording.error.type)), longText(recording.error.message));
  return [...(error ? [error] : []), ...(shown.length || error ? shown : [element("p", { class: "dim" }, "It is empty.")])];
}

/** @param {Recording} recording @param {string} request @returns {HTMLElement[]} */
function more(recording, request) {
  const sections = [
    folded("Request", longText(request)),
    recording.options && folded("Options", longText(JSON.stringify(recording.options, null, 2))),
    recording.grammar !== null && folded("Grammar", longText(recording.grammar)),
    folded("Times", longText(JSON.stringify({ times: recording.times, stages: recording.stages }, null, 2))),
  ];
  return sections.filter((section) => section instanceof HTMLElement);
}

/** @param {string} title @param {HTMLElement} content */
function folded(title, content) {
  return element("details", {}, element("summary", {}, element("h2", {}, title)), content);
}
