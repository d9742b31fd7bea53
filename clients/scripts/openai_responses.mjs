// The openai package: Responses.

import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { key, main, model, rejects, resultOf, task, tooLong, url } from "./common.mjs";

const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
const tools = [{ type: "function", strict: true, ...task.weather_tool }];
const ask = (input, fields = {}) => client.responses.create({ model, input, temperature: 0, ...fields });
const made = (response) => response.output.filter((item) => item.type === "function_call");
const calls = (response) => made(response).map((item) => [item.name, JSON.parse(item.arguments)]);

await main({
  plain: async () => (await ask(task.hello)).output_text,
  stream: async () => {
    const pieces = [];
    const stream = client.responses.stream({ model, input: task.count, temperature: 0 });
    for await (const event of stream) if (event.type === "response.output_text.delta") pieces.push(event.delta);
    const whole = await stream.finalResponse();
    if (whole.output_text !== pieces.join("")) throw new Error("the pieces are not the whole");
    return { text: whole.output_text, pieces: pieces.length };
  },
  reasoning: async () => {
    const { output } = await ask(task.hello, { reasoning: { summary: "auto" } });
    const items = output.filter((item) => item.type === "reasoning");
    return items.flatMap((item) => (item.summary.length ? item.summary : item.content)).map((part) => part.text).join("");
  },
  usage: async () => {
    const { usage } = await ask(task.hello);
    return [usage.input_tokens, usage.output_tokens];
  },
  call: async () => calls(await ask(task.weather, { tools })),
  streamed_call: async () => {
    const stream = client.responses.stream({ model, input: task.weather, tools, temperature: 0 });
    return calls(await stream.finalResponse());
  },
  parallel: async () => calls(await ask(task.both, { tools })),
  result: async () => {
    const first = await ask(task.weather, { tools });
    const outputs = made(first).map((item) => ({
      type: "function_call_output",
      call_id: item.call_id,
      output: resultOf("Paris"),
    }));
    const history = [{ role: "user", content: task.weather }, ...first.output, ...outputs];
    const whole = (await ask(history, { tools })).output_text;
    const stored = (await ask(outputs, { tools, previous_response_id: first.id })).output_text;
    if (whole !== stored) throw new Error(`previous_response_id gives ${stored}`);
    return whole;
  },
  structured: async () => {
    const person = z.object({ name: z.string().max(20), age: z.number().int() });
    const text = { format: zodTextFormat(person, "Person") };
    return (await client.responses.parse({ model, input: task.person_request, text, temperature: 0 })).output_parsed;
  },
  length: async () => (await ask(task.count, { max_output_tokens: 16 })).incomplete_details.reason,
  bad_field: () => rejects(OpenAI.BadRequestError, () => ask(task.hello, { temperature: 9 })),
  overflow: () => rejects(OpenAI.BadRequestError, () => ask(tooLong)),
  headers: async () => {
    const partly = [{ type: "function", ...task.partly_enforced_tool }];
    const { response } = await ask(task.hello, { tools: partly }).withResponse();
    return response.headers.get("x-dovetail-unenforced");
  },
});
