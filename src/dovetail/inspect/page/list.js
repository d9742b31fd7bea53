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

/** Recordings that the list has at first, and those that come when older ones are asked for. */
const PAGE = 50;
/** The most that the server lists. */
const MOST = 1000;
const POLL_MS = 2000;
const COLUMNS = ["Time", "Model", "API", "Prompt", "Answer", "Duration", "Drafts that stood", "Finish", "Calls", "Defects"];
const FIGURES = ["Prompt", "Answer", "Duration", "Drafts that stood"];

/** @param {HTMLElement} main @param {URLSearchParams} query @param {AbortSignal} signal */
export async function showList(main, query, signal) {
  const list = new List(query, signal);
  fill(main, element("h1", {}, "Requests"), list.filters, list.table, list.footer);
  await list.read();
  await list.watch();
}

class List {
  /** @param {URLSearchParams} query @param {AbortSignal} signal */
  constructor(query, signal) {
    this.signal = signal;
    this.limit = PAGE;
    /** @type {Summary[]} */
    this.recordings = [];
    /** When the newest was written. */
    this.newest = Infinity;
    /** @type {Map<string, HTMLTableRowElement>} */
    this.rows = new Map();
    this.body = element("tbody", { keydown: (event) => this.moveFocus(event) });
    this.table = element(
      "div", { class: "scroll", role: "region", "aria-label": "Requests", tabindex: 0 },
      element("table", { class: "requests" },
        element("thead", {}, element("tr", {}, ...COLUMNS.map((name) =>
          element("th", { scope: "col", class: FIGURES.includes(name) ? "figure" : null }, name)))),
        this.body));
    this.text = element("input", {
      id: "text", type: "search", value: query.get("text"), placeholder: "id, model, finish, call or defect",
      input: () => this.filter(),
    });
    this.defects = element("input", {
      id: "defects", type: "checkbox", checked: query.get("defects") === "true", change: () => this.filter(),
    });
    this.filters = element("div", { class: "filters", role: "search", "aria-label": "Filters" },
      element("label", { for: "text" }, "Text"), this.text,
      element("span", {}, this.defects, element("label", { for: "defects" }, "with defects only")));
    this.more = element("button", { type: "button", hidden: true, click: () => this.older() }, "Older requests");
    this.summary = element("p", { class: "dim" });
    this.footer = element("div", { class: "row" }, this.more, this.summary);
  }

  /** Show the rows that fit, and put the filters into the address, which can be sent. */
  filter() {
    const query = new URLSearchParams();
    if (this.text.value) query.set("text", this.text.value);
    if (this.defects.checked) query.set("defects", "true");
    history.replaceState(null, "", `#/?${query}`);
    this.draw();
  }

  async older() {
    this.limit = Math.min(this.limit + PAGE, MOST);
    await this.read();
    announce(`${count(this.rows.size, "request")} in the list`);
  }

  /** Read the list again and again, until the page is left. */
  async watch() {
    while (!this.signal.aborted) {
      await pause(POLL_MS, this.signal);
      if (document.hidden || this.signal.aborted) continue;
      try {
        await this.read();
      } catch (error) {
        if (!this.signal.aborted) this.summary.textContent = `No new requests: ${/** @type {Error} */ (error).message}`;
      }
    }
  }

  async read() {
    const { recordings, more } = await get(`recordings?limit=${this.limit}`, this.signal);
    this.recordings = recordings;
    this.more.hidden = !more || this.limit === MOST;
    this.draw();
    const fresh = this.recordings.filter((each) => each.written > this.newest && this.rows.has(each.name));
    this.newest = this.recordings[0]?.written ?? 0;
    for (const each of fresh) this.rows.get(each.name)?.classList.add("fresh");
    if (fresh.length) announce(count(fresh.length, "new request"));
  }

  /** Make the rows those of the recordings that fit the filters. Rows that stay keep their focus. */
  draw() {
    const shown = this.recordings.filter((each) => this.fits(each));
    const names = new Set(shown.map((each) => each.name));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      row.remove();
      this.rows.delete(name);
    }
    let next = this.body.firstElementChild;
    for (const each of shown) {
      const row = this.rows.get(each.name);
      if (row) next = row.nextElementSibling;
      else this.rows.set(each.name, this.body.insertBefore(rowOf(each), next));
    }
    const filtered = this.text.value || this.defects.checked ? ` of ${grouped(this.recordings.length)} fit the filters` : "";
    this.summary.textContent = `${count(shown.length, "request")}${filtered}. New ones appear by themselves.`;
  }

  /** @param {Summary} summary */
  fits(summary) {
    const { id, name, model, api, finish, calls, defects, unreadable } = summary;
    const texts = [id, name, model, api, ...finish, ...calls, ...defects].join("\n").toLowerCase();
    return texts.includes(this.text.value.toLowerCase()) && (!this.defects.checked || defects.length > 0 || unreadable !== null);
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
