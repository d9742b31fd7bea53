/**
 * The list of requests, newest first, which is read again every two seconds.
 *
 * @typedef {{name: string, written: number, bytes: number, id: string, api: string, model: string, began: string,
 *   seconds: number | null, prompt_tokens: number | null, tokens: number, drafted: number | null,
 *   accepted: number | null, finish: string[], calls: string[], defects: string[], redacted: boolean,
 *   unreadable: string | null}} Summary
 */

import { get } from "./api.js";
import { announce, count, duration, element, fill, grouped, inLine } from "./dom.js";

const FILTERS = ["text", "finish", "model", "defects"];
const PAGE = 50;
/** Rows of the table. Older ones leave it when new ones come. */
const MOST_ROWS = 500;
const POLL_MS = 2000;
/** Requests in a row that search on, where a filter fits few recordings. */
const MOST_SEARCHES = 20;
const COLUMNS = ["Time", "Model", "API", "Prompt", "Answer", "Duration", "Drafts that stood", "Finish", "Calls", "Defects"];
const FIGURES = ["Prompt", "Answer", "Duration", "Drafts that stood"];

/** @param {HTMLElement} main @param {URLSearchParams} query @param {AbortSignal} signal */
export async function showList(main, query, signal) {
  const list = new List(query, signal);
  fill(main, element("h1", {}, "Requests"), list.filters, list.table, list.footer);
  await list.older();
  await list.watch();
}

class List {
  /** @param {URLSearchParams} query @param {AbortSignal} signal */
  constructor(query, signal) {
    this.query = new URLSearchParams(FILTERS.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""]] : [])));
    this.signal = signal;
    /** @type {Map<string, HTMLTableRowElement>} */
    this.rows = new Map();
    /** @type {string | null} */
    this.next = null;
    this.models = new Set([this.query.get("model") ?? ""]);
    this.body = element("tbody", { keydown: (event) => this.moveFocus(event) });
    this.table = element(
      "div", { class: "scroll", role: "region", "aria-label": "Requests", tabindex: 0 },
      element("table", { class: "requests" },
        element("thead", {}, element("tr", {}, ...COLUMNS.map((name) =>
          element("th", { scope: "col", class: FIGURES.includes(name) ? "figure" : null }, name)))),
        this.body));
    this.modelSelect = element("select", { id: "model", change: () => this.apply() });
    this.filters = this.form();
    this.more = element("button", { type: "button", click: () => this.older().then(() => this.focusLast()) }, "Older requests");
    this.summary = element("p", { class: "dim" });
    this.footer = element("div", { class: "row" }, this.more, this.summary);
  }

  form() {
    const finish = element("select", { id: "finish", change: () => this.apply() },
      ...[["", "any"], ["stop", "stop"], ["length", "length"], ["tool_calls", "tool calls"], ["disconnected", "disconnected"],
        ["InvalidRequest", "refused"], ["EngineError", "engine error"]]
        .map(([value, text]) => element("option", { value, selected: value === (this.query.get("finish") ?? "") }, text)));
    this.drawModels();
    const text = element("input", {
      id: "text", type: "search", maxlength: 200, value: this.query.get("text"), placeholder: "in request, prompt, message or id",
    });
    const defects = element("input", {
      id: "defects", type: "checkbox", checked: this.query.get("defects") === "true", change: () => this.apply(),
    });
    const form = element("form", { class: "filters", role: "search", "aria-label": "Filters" },
      element("label", { for: "text" }, "Text"), text, element("label", { for: "finish" }, "Finish"), finish,
      element("label", { for: "model" }, "Model"), this.modelSelect,
      element("span", {}, defects, element("label", { for: "defects" }, "with defects only")),
      element("button", { type: "submit" }, "Search"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.apply();
    });
    this.inputs = { text, finish, defects };
    return form;
  }

  /** Go to the address of the list with these filters. */
  apply() {
    const query = new URLSearchParams();
    const { text, finish, defects } = /** @type {NonNullable<typeof this.inputs>} */ (this.inputs);
    for (const [name, value] of [["text", text.value], ["finish", finish.value], ["model", this.modelSelect.value]]) {
      if (value) query.set(name, value);
    }
    if (defects.checked) query.set("defects", "true");
    location.hash = `#/?${query}`;
  }

  /** Fill in the next older requests. */
  async older() {
    this.more.disabled = true;
    let missing = PAGE;
    for (let tries = 0; missing > 0 && tries < MOST_SEARCHES; tries++) {
      const reply = await this.fetch({ limit: missing, before: this.next });
      for (const summary of reply.recordings) this.add(summary, false);
      missing -= reply.recordings.length;
      this.next = reply.next;
      this.describe();
      if (this.next === null) break;
    }
    this.more.disabled = false;
    this.more.hidden = this.next === null;
  }

  /** Fill in new requests as they end, until the page is left. */
  async watch() {
    while (!this.signal.aborted) {
      await pause(POLL_MS, this.signal);
      if (document.hidden || this.signal.aborted) continue;
      try {
        const reply = await this.fetch({ limit: PAGE });
        const fresh = reply.recordings.reverse().filter((/** @type {Summary} */ each) => this.add(each, true));
        if (fresh.length) announce(count(fresh.length, "new request"));
        this.describe();
      } catch (error) {
        if (!this.signal.aborted) this.summary.textContent = `No new requests: ${/** @type {Error} */ (error).message}`;
      }
    }
  }

  /** @param {Record<string, string | number | null>} paging */
  async fetch(paging) {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(paging)) if (value !== null) query.set(name, String(value));
    return get(`recordings?${query}`, this.signal);
  }

  /** Add a row, unless it is there. @param {Summary} summary @param {boolean} first */
  add(summary, first) {
    if (this.rows.has(summary.name)) return false;
    const row = rowOf(summary);
    this.rows.set(summary.name, row);
    if (first) {
      row.classList.add("fresh");
      this.body.prepend(row);
    } else this.body.append(row);
    while (first && this.rows.size > MOST_ROWS) {
      const last = /** @type {HTMLTableRowElement} */ (this.body.lastElementChild);
      this.rows.delete(last.dataset.name ?? "");
      last.remove();
    }
    if (!this.models.has(summary.model)) {
      this.models.add(summary.model);
      this.drawModels();
    }
    return true;
  }

  drawModels() {
    fill(this.modelSelect, ...[...new Set(["", ...this.models])].sort().map((name) =>
      element("option", { value: name, selected: name === (this.query.get("model") ?? "") }, name ? inLine(name) : "any")));
  }

  describe() {
    const filtered = this.query.size ? " that fit the filters" : "";
    const text = this.rows.size ? `${count(this.rows.size, "request")}${filtered}` : `No requests${filtered} yet`;
    this.summary.textContent = `${text}${this.next === null ? "" : ", and older ones"}. New ones appear by themselves.`;
  }

  focusLast() {
    announce(`${count(this.rows.size, "request")} in the list`);
  }

  /** Arrow keys go from row to row. @param {KeyboardEvent} event */
  moveFocus(event) {
    const row = /** @type {HTMLElement} */ (event.target).closest("tr");
    const to = event.key === "ArrowDown" ? row?.nextElementSibling : event.key === "ArrowUp" ? row?.previousElementSibling : null;
    const link = to?.querySelector("a");
    if (link) {
      event.preventDefault();
      link.focus();
    }
  }
}

/** @param {Summary} summary @returns {HTMLTableRowElement} */
function rowOf(summary) {
  const address = `#/request/${encodeURIComponent(summary.name)}`;
  const time = summary.began ? localTime(summary.began) : summary.name;
  const head = element("th", { scope: "row" }, element("a", { href: address, title: summary.name }, inLine(time)));
  const attributes = { "data-name": summary.name, click: (/** @type {MouseEvent} */ event) => {
    if (!(/** @type {HTMLElement} */ (event.target).closest("a")) && !String(getSelection())) location.hash = address;
  } };
  if (summary.unreadable !== null) {
    return element("tr", attributes, head, element("td", { colspan: COLUMNS.length - 1, class: "problem" }, inLine(summary.unreadable)));
  }
  return element("tr", attributes, head,
    text(summary.model), text(summary.api),
    figure(summary.prompt_tokens), figure(summary.tokens),
    element("td", { class: "figure" }, summary.seconds === null ? "" : duration(summary.seconds)),
    element("td", { class: "figure" }, ...acceptance(summary)),
    element("td", {}, ...summary.finish.map((each) => element("span", { class: `badge ${finishClass(each)}` }, inLine(each)))),
    text(summary.calls.join(", ")),
    element("td", {}, ...summary.defects.map((each) => element("span", { class: "badge bad" }, inLine(each)))));
}

/** @param {string} shown */
function text(shown) {
  return element("td", { class: "text", dir: "auto", title: inLine(shown) }, inLine(shown));
}

/** @param {number | null} shown */
function figure(shown) {
  return element("td", { class: "figure" }, shown === null ? "" : grouped(shown));
}

/** @param {Summary} summary @returns {(Node | string)[]} */
function acceptance(summary) {
  if (!summary.drafted || summary.accepted === null) return [];
  const share = summary.accepted / summary.drafted;
  const meter = element("meter", { value: share.toFixed(3), "aria-label": "drafts that stood" });
  return [meter, ` ${(share * 100).toFixed(0)} %`];
}

const FINISH_CLASSES = new Map([["stop", ""], ["tool_calls", "call"], ["length", "warn"]]);

/** @param {string} finish */
function finishClass(finish) {
  return FINISH_CLASSES.get(finish) ?? "bad";
}

/** @param {string} iso */
function localTime(iso) {
  const time = new Date(iso);
  if (Number.isNaN(time.getTime())) return iso;
  const today = time.toDateString() === new Date().toDateString();
  const clock = time.toLocaleTimeString("en-GB");
  return today ? clock : `${time.toLocaleDateString("en-CA")} ${clock}`;
}

/** @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
