/** The API key. It stays in this tab, until the tab is closed, and goes nowhere but into requests to this server. */

import { element } from "./dom.js";

const STORED = "dovetail-key";
/** @type {Promise<void> | null} */
let asking = null;

/** The key, or "". */
export function key() {
  return sessionStorage.getItem(STORED) ?? "";
}

/**
 * Ask for a key, because the server refused `refused`. Whoever asks meanwhile gets the same answer.
 *
 * @param {string} refused
 * @param {string} why
 * @returns {Promise<void>}
 */
export function askForKey(refused, why) {
  if (key() !== refused) return Promise.resolve(); // another request has asked since
  asking ??= ask(refused ? why : "").finally(() => (asking = null));
  return asking;
}

/** @param {string} why @returns {Promise<void>} */
function ask(why) {
  return new Promise((resolve) => {
    const input = element("input", {
      id: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false",
      pattern: "[\\x21-\\x7e]+", title: "letters, digits and signs, without blanks",
    });
    const form = element(
      "form",
      { method: "dialog", class: "key" },
      element("h2", { id: "key-title" }, "This server needs a key"),
      element("p", {}, "Recordings show what all clients wrote, so it is the operator's: the one of ",
        element("code", {}, "--api-key-file"), ", or one with ", element("code", {}, "scope: inspect"),
        ". It stays in this tab."),
      element("label", { for: "key" }, "Key"), input,
      why && element("p", { class: "problem", role: "alert" }, why),
      element("button", { type: "submit", class: "primary" }, "Open"),
    );
    const dialog = element("dialog", { "aria-labelledby": "key-title" }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem(STORED, input.value);
      dialog.remove();
      resolve();
    });
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}
