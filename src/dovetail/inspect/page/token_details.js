/**
 * What is known about one token.
 *
 * @typedef {import("./tokens.js").Token} Token
 */

import { count, duration, element, grouped, inLine } from "./dom.js";
import { MAKERS } from "./lanes.js";

/** @type {Record<string, string>} */
const REFUSED_BY = { model: "the model", grammar: "the grammar", end: "nothing: the answer ended" };

/** @param {Token} token @param {number} tokens @param {number} steps @returns {HTMLElement[]} */
export function tokenDetails(token, tokens, steps) {
  const { step } = token;
  const drafted = step.step.drafted;
  /** @type {[string, string][]} */
  const rows = [
    ["token", `${grouped(token.number + 1)} of ${grouped(tokens)}`],
    ["id", token.id === null ? "redacted" : `${token.id}${token.control ? ", control token" : ""}`],
    ["made by", MAKERS[token.maker]],
    ["reader", token.state],
    ["step", `${grouped(step.number + 1)} of ${grouped(steps)}, ${duration(step.seconds)}, at ${duration(step.at)}`],
    ["drafts", drafted === null ? "not reported" : drafted ? `${step.step.accepted} of ${drafted} stood` : "none"],
  ];
  if (step.drafts.length) {
    rows.push([`refused by ${REFUSED_BY[step.step.refused_by ?? ""] ?? "?"}`, step.drafts.map(inLine).join(" · ")]);
  }
  if (token.allowed !== null) rows.push(["grammar allowed", token.allowed === 1 ? "this token alone" : count(token.allowed, "token")]);
  if (token.logprob !== null) rows.push(["probability", probability(token.logprob)]);
  if (token.likeliest.length) {
    rows.push(["likeliest", token.likeliest.map(([text, logprob]) => `${inLine(text)} ${probability(logprob)}`).join("   ")]);
  }
  if (token.marks.length) rows.push(["events", token.marks.map((mark) => inLine(mark.text)).join(", ")]);
  for (const event of token.last ? step.step.events : []) {
    if (event.type === "Defect" && event.detail) rows.push([inLine(String(event.kind)), inLine(event.detail)]);
  }
  return [
    element("bdi", { class: "whole" }, inLine(token.text.slice(0, 500)) || (token.id === null ? "redacted" : "part of a character")),
    element("dl", {}, ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))),
  ];
}

/** @param {number} logprob */
function probability(logprob) {
  const percent = Math.exp(logprob) * 100;
  return `${percent >= 99.95 ? 100 : percent >= 0.1 ? percent.toFixed(1) : percent.toPrecision(1)} %`;
}
