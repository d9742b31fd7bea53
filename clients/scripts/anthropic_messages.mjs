// The @anthropic-ai/sdk package: Messages.

import Anthropic from "@anthropic-ai/sdk";
import { key, main, model, rejects, resultOf, root, task, tooLong } from "./common.mjs";

const client = new Anthropic({ baseURL: root, apiKey: key, maxRetries: 0 });
const { name, description, parameters } = task.weather_tool;
const tools = [{ name, description, input_schema: parameters }];
const thinking = { type: "enabled", budget_tokens: 1024 };
const request = (text, fields = {}) => ({
  model,
  max_tokens: 2048,
  temperature: 0,
  messages: [{ role: "user", content: text }],
  ...fields,
});
const ask = (text, fields) => client.messages.create(request(text, fields));
const blocks = (message, type) => message.content.filter((block) => block.type === type);
const textOf = (message) => blocks(message, "text").map((block) => block.text).join("");
const calls = (message) => blocks(message, "tool_use").map((block) => [block.name, block.input]);

await main({
  plain: async () => textOf(await ask(task.hello)),
  stream: async () => {
    const pieces = [];
    const stream = client.messages.stream(request(task.count)).on("text", (text) => pieces.push(text));
    const whole = textOf(await stream.finalMessage());
    if (whole !== pieces.join("")) throw new Error("the pieces are not the whole");
    return { text: whole, pieces: pieces.length };
  },
  reasoning: async () => {
    const message = await ask(task.hello, { thinking });
    return blocks(message, "thinking").map((block) => block.thinking).join("");
  },
  usage: async () => {
    const { usage } = await ask(task.hello);
    const before = await client.messages.countTokens({ model, messages: [{ role: "user", content: task.hello }] });
    const input = usage.input_tokens + (usage.cache_read_input_tokens ?? 0);
    if (before.input_tokens !== input) throw new Error(`count_tokens says ${before.input_tokens}, usage ${input}`);
    return [input, usage.output_tokens];
  },
  call: async () => calls(await ask(task.weather, { tools })),
  streamed_call: async () => calls(await client.messages.stream(request(task.weather, { tools })).finalMessage()),
  parallel: async () => calls(await ask(task.both, { tools })),
  result: async () => {
    const message = await ask(task.weather, { tools });
    const content = blocks(message, "tool_use").map((block) => ({
      type: "tool_result",
      tool_use_id: block.id,
      content: [{ type: "text", text: resultOf("Paris") }],
    }));
    const messages = [
      { role: "user", content: task.weather },
      { role: "assistant", content: message.content },
      { role: "user", content },
    ];
    return textOf(await ask("", { messages, tools }));
  },
  structured: async () => {
    const tool = { name: "person", input_schema: task.person_schema };
    const message = await ask(task.person_request, { tools: [tool], tool_choice: { type: "tool", name: "person" } });
    return calls(message)[0][1];
  },
  length: async () => (await ask(task.count, { max_tokens: 5 })).stop_reason,
  bad_field: () => rejects(Anthropic.BadRequestError, () => ask(task.hello, { temperature: 9 })),
  overflow: () => rejects(Anthropic.BadRequestError, () => ask(tooLong)),
  headers: async () => {
    const { name, parameters } = task.partly_enforced_tool;
    const { response } = await ask(task.hello, { tools: [{ name, input_schema: parameters }] }).withResponse();
    return response.headers.get("x-dovetail-unenforced");
  },
});
