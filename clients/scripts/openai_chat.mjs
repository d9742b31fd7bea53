// The openai package: chat completions.

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { key, main, model, rejects, resultOf, task, tooLong, url } from "./common.mjs";

const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
const tools = [{ type: "function", function: task.weather_tool }];
const ask = (text, fields = {}) =>
  client.chat.completions.create({ model, messages: [{ role: "user", content: text }], temperature: 0, ...fields });
const calls = (message) => (message.tool_calls ?? []).map((c) => [c.function.name, JSON.parse(c.function.arguments)]);

await main({
  plain: async () => (await ask(task.hello)).choices[0].message.content,
  stream: async () => {
    const pieces = [];
    for await (const chunk of await ask(task.count, { stream: true })) {
      if (chunk.choices[0]?.delta.content) pieces.push(chunk.choices[0].delta.content);
    }
    return { text: pieces.join(""), pieces: pieces.length };
  },
  reasoning: async () => (await ask(task.hello)).choices[0].message.reasoning_content,
  usage: async () => {
    const { usage } = await ask(task.hello);
    return [usage.prompt_tokens, usage.completion_tokens];
  },
  call: async () => calls((await ask(task.weather, { tools })).choices[0].message),
  streamed_call: async () => {
    const messages = [{ role: "user", content: task.weather }];
    const stream = client.chat.completions.stream({ model, messages, tools, temperature: 0 });
    return calls(await stream.finalMessage());
  },
  parallel: async () => calls((await ask(task.both, { tools })).choices[0].message),
  result: async () => {
    const runner = client.chat.completions.runTools({
      model,
      temperature: 0,
      messages: [{ role: "user", content: task.weather }],
      tools: [
        {
          type: "function",
          function: { ...task.weather_tool, parse: JSON.parse, function: ({ city }) => resultOf(city) },
        },
      ],
    });
    return await runner.finalContent();
  },
  structured: async () => {
    const person = z.object({ name: z.string().max(20), age: z.number().int() });
    const parsed = await client.chat.completions.parse({
      model,
      messages: [{ role: "user", content: task.person_request }],
      response_format: zodResponseFormat(person, "Person"),
      temperature: 0,
    });
    return parsed.choices[0].message.parsed;
  },
  length: async () => (await ask(task.count, { max_tokens: 5 })).choices[0].finish_reason,
  bad_field: () => rejects(OpenAI.BadRequestError, () => ask(task.hello, { temperature: 9 })),
  overflow: () => rejects(OpenAI.BadRequestError, () => ask(tooLong)),
  headers: async () => {
    const partly = [{ type: "function", function: task.partly_enforced_tool }];
    const { response } = await ask(task.hello, { tools: partly }).withResponse();
    return response.headers.get("x-dovetail-unenforced");
  },
});
