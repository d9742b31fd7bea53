/**
 * A message: its reasoning, content and calls.
 *
 * @typedef {import("./recording.js").Message} Message
 */

import { element, inLine, visible } from "./dom.js";

/** Characters of a text that are shown at once. */
const LONGEST = 20_000;

/** @param {Message} message @returns {HTMLElement[]} */
export function messageElements(message) {
  return [
    ...part("Reasoning", "reasoning", message.reasoning),
    ...part("Content", "content", message.content),
    ...message.calls.map((call, number) => element("section", { class: "part call" },
      element("h3", {}, `Call ${number + 1}: ${inLine(call.name)}`), element("p", { class: "dim" }, inLine(call.id)),
      longText(laidOut(call.arguments)))),
  ];
}

/** @param {string} title @param {string} kind @param {string} text */
function part(title, kind, text) {
  return text ? [element("section", { class: `part ${kind}` }, element("h3", {}, title), longText(text))] : [];
}

/** A text in full; of a very long one, the beginning and a button for the rest. @param {string} text @returns {HTMLElement} */
export function longText(text) {
  const box = element("pre", { dir: "auto", class: "wrap" }, visible(text.slice(0, LONGEST)));
  if (text.length <= LONGEST) return box;
  const more = element("button", { type: "button", click: () => {
    box.append(visible(text.slice(LONGEST)));
    more.remove();
  } }, `Show ${(text.length - LONGEST).toLocaleString("en")} more characters`);
  return element("div", {}, box, more);
}

/** Arguments with line breaks, if that changes no digit of a number. @param {string} text */
function laidOut(text) {
  try {
    const value = JSON.parse(text);
    return JSON.stringify(value) === text.replaceAll(/("(?:[^"\\]|\\.)*")|\s/g, "$1") ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}
