/** A streamed chat completion: its events, and the message that they add up to. */

import { duration } from "./dom.js";

/**
 * The data of each server-sent event of `response`, up to [DONE].
 *
 * @param {Response} response
 * @returns {AsyncGenerator<any>}
 */
export async function* eventsOf(response) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      if (block.startsWith("data: ") && block !== "data: [DONE]") yield JSON.parse(block.slice(6));
    }
  }
}

/** The message of choice 0, as far as it has come. */
export class Answer {
  constructor() {
    this.id = "";
    this.content = "";
    this.reasoning = "";
    /** @type {{id: string, name: string, arguments: string}[]} */
    this.calls = [];
    this.finish = "";
    /** @type {any} */
    this.usage = null;
    this.began = performance.now();
  }

  /** @param {any} event a chunk. Throws the error that it may be instead. */
  add(event) {
    if (event.error) throw new Error(event.error.message);
    this.id = event.id;
    this.usage = event.usage ?? this.usage;
    const choice = event.choices[0];
    if (!choice) return;
    this.content += choice.delta.content ?? "";
    this.reasoning += choice.delta.reasoning_content ?? "";
    for (const piece of choice.delta.tool_calls ?? []) {
      const call = (this.calls[piece.index] ??= { id: "", name: "", arguments: "" });
      call.id += piece.id ?? "";
      call.name += piece.function?.name ?? "";
      call.arguments += piece.function?.arguments ?? "";
    }
    this.finish = choice.finish_reason ?? this.finish;
  }

  summary() {
    const usage = this.usage;
    const took = duration((performance.now() - this.began) / 1000);
    const drafts = usage?.speculation?.drafted ? `, ${usage.speculation.accepted} of ${usage.speculation.drafted} drafts stood` : "";
    return `${this.finish || "cut off"}, ${usage ? `${usage.completion_tokens} tokens` : ""} in ${took}${drafts}`;
  }
}
