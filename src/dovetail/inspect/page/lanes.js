/**
 * The answer as lanes over its tokens: refused drafts, tokens, the reader's state, events. Only the rows in sight are
 * elements, so that 20,000 tokens scroll as 200 do.
 *
 * @typedef {import("./tokens.js").Token} Token
 */

import { announce, element, inLine } from "./dom.js";

/** As in the style sheet: the height of a row, and the blanks of a token. */
const ROW = 84;
const PADDING = 7;
const OVERSCAN = 3;
/** Characters of a token, and of a label, that are shown in its place. */
const LONGEST = 80;
const LONGEST_LABEL = 40;
const MAKERS = { model: "the model's own", draft: "a draft that stood", forced: "forced by the grammar" };

export class Lanes {
  /** @param {Token[]} tokens @param {(token: Token, hovered: boolean) => void} onSelect */
  constructor(tokens, onSelect) {
    this.tokens = tokens;
    this.onSelect = onSelect;
    this.selected = 0;
    /** The number of the first token of each row. @type {number[]} */
    this.starts = [];
    /** @type {Map<number, HTMLElement>} */
    this.drawn = new Map();
    this.space = element("div", { class: "space", role: "presentation" });
    this.element = element("div", {
      class: "lanes", role: "listbox", tabindex: 0, "aria-label": "Answer, token by token", "aria-describedby": "lane-keys",
      scroll: () => this.later(), keydown: (event) => this.key(event), click: (event) => this.pointed(event, true),
      pointerover: (event) => this.pointed(event, false), pointerleave: () => this.onSelect(this.tokens[this.selected], false),
    }, this.space);
    this.waiting = 0;
    this.width = 0;
    new ResizeObserver(() => this.resized()).observe(this.element);
  }

  resized() {
    if (this.element.clientWidth === this.width || !this.element.clientWidth) return;
    this.width = this.element.clientWidth;
    this.layOut();
    this.show(this.selected);
  }

  /** Divide the tokens into rows. */
  layOut() {
    const measure = measures(this.element);
    const room = this.width - 24;
    this.starts = [];
    let used = room;
    for (const token of this.tokens) {
      const width = measure(token);
      const newline = token.number > 0 && this.tokens[token.number - 1].text.endsWith("\n");
      if (used + width > room || newline) {
        this.starts.push(token.number);
        used = 0;
      }
      used += width;
    }
    this.space.style.height = `${this.starts.length * ROW}px`;
    this.element.style.height = `min(58vh, ${this.starts.length * ROW + 4}px)`;
    for (const row of this.drawn.values()) row.remove();
    this.drawn.clear();
    this.draw();
  }

  later() {
    this.waiting ||= requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  /** Draw the rows in sight, and remove the others. */
  draw() {
    const top = Math.floor(this.element.scrollTop / ROW) - OVERSCAN;
    const bottom = Math.ceil((this.element.scrollTop + this.element.clientHeight) / ROW) + OVERSCAN;
    for (const [number, row] of this.drawn) {
      if (number < top || number >= bottom) {
        row.remove();
        this.drawn.delete(number);
      }
    }
    for (let number = Math.max(0, top); number < Math.min(bottom, this.starts.length); number++) {
      if (this.drawn.has(number)) continue;
      const row = this.row(number);
      this.drawn.set(number, row);
      this.space.append(row);
    }
  }

  /** @param {number} number */
  row(number) {
    const tokens = this.tokens.slice(this.starts[number], this.starts[number + 1]);
    const row = element("div", { class: "lane-row", role: "presentation" }, ...tokens.map((token) => this.cell(token)));
    row.style.top = `${number * ROW}px`;
    return row;
  }

  /** @param {Token} token */
  cell(token) {
    const [refused, marks] = [above(token), below(token)];
    const problem = token.marks.some((mark) => mark.problem);
    return element("div", {
      id: `token-${token.number}`, role: "option", "data-token": token.number,
      class: `token ${token.maker} ${token.state}${token.control ? " control" : ""}${token.first ? " first" : ""}`,
      "aria-selected": token.number === this.selected, "aria-posinset": token.number + 1, "aria-setsize": this.tokens.length,
    },
      refused && element("span", { class: "refused", "aria-hidden": true }, refused),
      element("bdi", { class: "text" }, shown(token)),
      element("span", { class: "spoken" }, spoken(token)),
      marks && element("span", { class: problem ? "mark bad" : "mark" }, marks));
  }

  /** Select a token, and scroll to it. @param {number} number */
  select(number) {
    const last = this.element.querySelector("[aria-selected=true]");
    last?.setAttribute("aria-selected", "false");
    this.selected = Math.max(0, Math.min(number, this.tokens.length - 1));
    this.show(this.selected);
    const cell = this.element.querySelector(`#token-${this.selected}`);
    cell?.setAttribute("aria-selected", "true");
    this.element.setAttribute("aria-activedescendant", `token-${this.selected}`);
    this.onSelect(this.tokens[this.selected], false);
  }

  /** Scroll until a token is in sight. @param {number} number */
  show(number) {
    const top = this.rowOf(number) * ROW;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + ROW > scrollTop + clientHeight) this.element.scrollTop = top + ROW - clientHeight;
    this.draw();
  }

  /** The row of a token. @param {number} number */
  rowOf(number) {
    let low = 0;
    let high = this.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] <= number) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const to = this.target(event);
    if (to === null) return;
    event.preventDefault();
    this.select(to);
  }

  /** Where a key leads. @param {KeyboardEvent} event @returns {number | null} */
  target(event) {
    const row = this.rowOf(this.selected);
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 1);
    switch (event.key) {
      case "ArrowRight": return event.ctrlKey ? this.nextStep(1) : this.selected + 1;
      case "ArrowLeft": return event.ctrlKey ? this.nextStep(-1) : this.selected - 1;
      case "ArrowDown": return this.inRow(row + 1);
      case "ArrowUp": return this.inRow(row - 1);
      case "PageDown": return this.inRow(row + page);
      case "PageUp": return this.inRow(row - page);
      case "Home": return 0;
      case "End": return this.tokens.length - 1;
      case "e": return this.nextMark();
      default: return null;
    }
  }

  /** The token of row `row` at the place that the selected one has in its own. @param {number} row */
  inRow(row) {
    const number = Math.max(0, Math.min(row, this.starts.length - 1));
    const column = this.selected - this.starts[this.rowOf(this.selected)];
    const end = this.starts[number + 1] ?? this.tokens.length;
    return Math.min(this.starts[number] + column, end - 1);
  }

  /** The first token of the step before or behind. @param {number} direction */
  nextStep(direction) {
    let number = this.selected + direction;
    while (this.tokens[number] && !this.tokens[number].first) number += direction;
    return number;
  }

  /** The next token with an event. */
  nextMark() {
    const next = this.tokens.findIndex((token) => token.number > this.selected && token.marks.length > 0);
    if (next < 0) announce("No further event");
    return next < 0 ? null : next;
  }

  /** @param {Event} event @param {boolean} clicked */
  pointed(event, clicked) {
    const cell = /** @type {HTMLElement} */ (event.target).closest("[data-token]");
    if (!cell) return;
    const number = Number(cell.getAttribute("data-token"));
    if (clicked) this.select(number);
    else this.onSelect(this.tokens[number], true);
  }
}

/** @param {Token} token */
function shown(token) {
  if (token.id === null) return "·";
  const text = inLine(token.text.slice(0, LONGEST)).replace(/^ | $/g, "␣");
  return (text || "…") + (token.text.length > LONGEST ? "…" : "");
}

/** The drafts that were refused for this token. @param {Token} token */
function above(token) {
  const { refused, drafts } = token.step;
  if (!token.last || !refused) return "";
  if (!drafts.length) return `×${refused}`;
  return cut(inLine(drafts.join("")) || "…");
}

/** @param {Token} token */
function below(token) {
  return cut(inLine(token.marks.map((mark) => mark.text).join("  ")));
}

/** @param {string} text */
function cut(text) {
  return text.length > LONGEST_LABEL ? `${text.slice(0, LONGEST_LABEL)}…` : text;
}

/** What colours and places say to those who see them. @param {Token} token */
function spoken(token) {
  const refused = token.last && token.step.refused ? `, refused ${above(token)}` : "";
  return `, ${MAKERS[token.maker]}, ${token.state}${refused} `;
}

/** A function that measures tokens, in the fonts of `lanes`. @param {HTMLElement} lanes */
function measures(lanes) {
  const probe = element("div", { class: "token" }, element("bdi", { class: "text" }), element("span", { class: "mark" }));
  lanes.append(probe);
  const [large, small] = [...probe.children].map((child) => getComputedStyle(child).font);
  probe.remove();
  const context = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  /** @type {Map<string, number>} */
  const widths = new Map();
  /** @param {string} font @param {string} text */
  const width = (font, text) => {
    if (!text) return 0;
    const key = `${font}\n${text}`;
    let known = widths.get(key);
    if (known === undefined) {
      context.font = font;
      widths.set(key, (known = Math.ceil(context.measureText(text).width)));
    }
    return known;
  };
  return (/** @type {Token} */ token) =>
    PADDING + Math.max(width(large, shown(token)), width(small, above(token)), width(small, below(token)), 6);
}

export { MAKERS };
