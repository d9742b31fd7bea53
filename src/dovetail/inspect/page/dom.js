/**
 * Makes elements. Texts only ever become text nodes, so nothing in a recording can become HTML.
 *
 * @typedef {Node | string | null | undefined | false} Child
 * @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes
 */

/**
 * An element. A function among the attributes listens to the event of its name; false and null leave an attribute out.
 *
 * @template {keyof HTMLElementTagNameMap} Name
 * @param {Name} name
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(key, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, String(value));
  }
  made.append(...present(children));
  return made;
}

/** @param {Element} parent @param {...Child} children */
export function fill(parent, ...children) {
  parent.replaceChildren(...present(children));
}

/** @param {Child[]} children @returns {(Node | string)[]} */
function present(children) {
  return /** @type {(Node | string)[]} */ (children.filter((child) => child || child === ""));
}

const CONTROL = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/**
 * `text` with visible signs in place of control characters and marks of direction, except for tabs and line breaks.
 *
 * @param {string} text
 */
export function visible(text) {
  return text.replace(CONTROL, (character) => {
    const code = character.charCodeAt(0);
    if (code < 32) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return code < 0xa0 ? "\ufffd" : `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
  });
}

/** `text` on one line: line breaks and tabs as signs, too. @param {string} text */
export function inLine(text) {
  return visible(text).replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

/** Tell people who do not see it. @param {string} text */
export function announce(text) {
  const status = document.getElementById("status");
  if (status) status.textContent = text;
}

/** @param {number} number */
export function grouped(number) {
  return number.toLocaleString("en");
}

/** `number` things. @param {number} number @param {string} one @param {string} [many] */
export function count(number, one, many = `${one}s`) {
  return `${grouped(number)} ${number === 1 ? one : many}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  return seconds < 1 ? `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(2)} s`;
}
