/** The playground: messages and tools in, the prompt of any format as they are typed, and the answer. */

import { get, post, send } from "./api.js";
import { announce, count, element, fill, inLine } from "./dom.js";
import { messageElements } from "./message.js";
import { promptElement } from "./prompt.js";
import { Answer, eventsOf } from "./streams.js";

const STORED = "dovetail-playground";
const WAIT_MS = 250;
/** How often the list is asked for the recording of an answer, which a thread of the server writes. */
const TRIES = 20;
const EXAMPLE = {
  messages: [{ role: "user", content: "Please get the weather for city Paris." }],
  tools: [{ type: "function", function: { name: "get_weather", description: "Get the weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }],
  options: { temperature: 0, max_tokens: 256 },
};

/** Let the playground begin with the body of a request. @param {string} body */
export function offer(body) {
  const { messages = [], tools = [], model: _, stream: __, stream_options: ___, ...options } = JSON.parse(body);
  sessionStorage.setItem(STORED, JSON.stringify({ messages, tools, options }));
}

/** @param {HTMLElement} main @param {AbortSignal} signal */
export async function showPlayground(main, signal) {
  const server = await get("server", signal);
  new Playground(main, server, signal).render();
}

class Playground {
  /** @param {HTMLElement} main @param {{model: string, format: string, formats: string[]}} server @param {AbortSignal} signal */
  constructor(main, server, signal) {
    this.model = server.model;
    this.signal = signal;
    this.timer = 0;
    /** Of the prompt that is on its way. */
    this.rendering = new AbortController();
    const stored = JSON.parse(sessionStorage.getItem(STORED) ?? "null") ?? EXAMPLE;
    this.inputs = {
      messages: this.area("messages", stored.messages, 14),
      tools: this.area("tools", stored.tools, 10),
      options: this.area("options", stored.options, 5),
    };
    this.format = element("select", { id: "format", change: () => this.render() },
      element("option", { value: "" }, `${server.format} (served)`),
      ...server.formats.map((name) => element("option", { value: name }, name)));
    this.problem = element("p", { class: "problem", role: "alert" });
    this.prompt = element("div");
    this.answer = element("div", { class: "playground-answer", "aria-live": "polite" });
    this.button = element("button", { type: "submit", class: "primary" }, "Send");
    const form = element("form", { class: "playground-form", submit: (event) => {
      event.preventDefault();
      this.send();
    } },
      ...Object.entries(this.inputs).flatMap(([name, input]) => [element("label", { for: name }, LABELS[name]), input]),
      element("div", { class: "row" }, this.button));
    fill(main, element("h1", {}, "Playground"), element("div", { class: "halves" }, form, element("div", {},
      element("div", { class: "row" }, element("h2", {}, "Prompt"), element("label", { for: "format" }, "as"), this.format),
      this.problem, this.prompt, element("h2", {}, "Answer"), this.answer)));
    fill(this.answer, element("p", { class: "dim" }, "Not sent yet."));
  }

  /** @param {string} name @param {unknown} value @param {number} rows */
  area(name, value, rows) {
    const area = element("textarea", { id: name, rows, spellcheck: "false", input: () => this.later() });
    area.value = JSON.stringify(value, null, 2);
    return area;
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.render(), WAIT_MS);
  }

  /** The body of the request. Throws an error that names the field. @returns {Record<string, any>} */
  body() {
    const parts = Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, parsed(name, input)]));
    sessionStorage.setItem(STORED, JSON.stringify(parts));
    const tools = Array.isArray(parts.tools) && !parts.tools.length ? {} : { tools: parts.tools };
    const dovetail = { recording: true, ...parts.options.dovetail };
    return { ...parts.options, model: this.model, messages: parts.messages, ...tools, dovetail };
  }

  /** Show the prompt of what is typed. */
  async render() {
    this.rendering.abort();
    const { signal } = (this.rendering = new AbortController());
    try {
      const reply = await post("render", { request: this.body(), format: this.format.value || null }, signal);
      if (signal.aborted || this.signal.aborted) return;
      const tokens = reply.count === null ? "" : `${count(reply.count, "token")}. `;
      const repairs = reply.repairs.map((/** @type {{kind: string, where: string}} */ each) => `${each.where}: ${each.kind}`);
      this.problem.textContent = "";
      fill(this.prompt, promptElement(reply.segments),
        element("p", { class: "dim" }, `${tokens}${repairs.length ? `Repaired: ${inLine(repairs.join(", "))}` : "No repairs."}`));
    } catch (error) {
      if (!signal.aborted) this.problem.textContent = /** @type {Error} */ (error).message;
    }
  }

  async send() {
    this.button.disabled = true;
    fill(this.answer, element("p", { class: "dim" }, "Waiting for the first token …"));
    try {
      const body = { ...this.body(), n: 1, stream: true, stream_options: { include_usage: true } };
      const response = await send("v1/chat/completions", body, this.signal);
      const answer = new Answer();
      for await (const event of eventsOf(response)) {
        answer.add(event);
        fill(this.answer, ...messageElements(answer));
      }
      announce("The answer is complete");
      fill(this.answer, ...messageElements(answer), element("p", { class: "dim" }, answer.summary()));
      await this.link(answer.id);
    } catch (error) {
      if (!this.signal.aborted) this.answer.append(element("p", { class: "problem", role: "alert" }, /** @type {Error} */ (error).message));
    } finally {
      this.button.disabled = false;
    }
  }

  /** Link to the recording of the answer `id`, as soon as it is there. @param {string} id */
  async link(id) {
    for (let tries = 0; tries < TRIES && !this.signal.aborted; tries++) {
      const { recordings } = await get("recordings?limit=20", this.signal);
      const found = recordings.find((/** @type {{id: string}} */ each) => each.id === id);
      if (found) {
        this.answer.append(element("p", {}, element("a", { href: `#/request/${encodeURIComponent(found.name)}` }, "See how it was made")));
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
    this.answer.append(element("p", { class: "dim" }, "It was not recorded: the server's log says why."));
  }
}

/** @type {Record<string, string>} */
const LABELS = { messages: "Messages", tools: "Tools", options: "Other fields of the request" };

/** @param {string} name @param {HTMLTextAreaElement} input */
function parsed(name, input) {
  try {
    return JSON.parse(input.value.trim() || (name === "options" ? "{}" : "[]"));
  } catch (error) {
    throw new Error(`${LABELS[name]}: ${/** @type {Error} */ (error).message}`);
  }
}
