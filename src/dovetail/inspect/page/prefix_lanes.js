/**
 * Where a prompt leaves the last one of its conversation: both as lanes, with the first difference marked.
 *
 * @typedef {import("./recording.js").Recording} Recording
 * @typedef {import("./recording.js").RecordedToken} RecordedToken
 */

import { count, element, grouped, inLine } from "./dom.js";

/** @param {Recording} recording */
export function prefixLanes({ lanes, prefix }) {
  if (!lanes || !prefix) return null;
  const cause = [prefix.cause ?? "", prefix.field].filter(Boolean).join(" · ");
  return element("details", { open: true },
    element("summary", {}, element("h2", {}, "Last prompt, this prompt"),
      ` ${grouped(prefix.kept)} of ${count(prefix.expected, "token")} kept, ${inLine(cause)}`),
    element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Last prompt, this prompt" },
      element("table", { class: "prefix-lanes" }, lane("last", lanes.shared, lanes.last), lane("this", lanes.shared, lanes.this))));
}

/** @param {string} name @param {RecordedToken[]} shared @param {RecordedToken[]} rest */
function lane(name, shared, rest) {
  return element("tr", {}, element("th", { scope: "row" }, name), element("td", {},
    element("span", { class: "dim" }, "…", ...shared.map(spelled)),
    rest.length ? element("mark", {}, spelled(rest[0])) : element("mark", {}, "end"),
    ...rest.slice(1).map((token) => element("span", { class: token[2] ? "control-token" : "" }, spelled(token))), "…"));
}

/** @param {RecordedToken} token */
function spelled([id, text]) {
  return id === null ? "·" : inLine(text) || "…";
}
