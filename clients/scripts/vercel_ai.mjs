// The Vercel AI SDK, with the provider of the API that the harness names.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { key, main, model as name, rejects, resultOf, task, tooLong, url } from "./common.mjs";

const model = {
  responses: () => createOpenAI({ baseURL: url, apiKey: key })(name),
  chat: () => createOpenAICompatible({ name: "dovetail", baseURL: url, apiKey: key, includeUsage: true,
    supportsStructuredOutputs: true })(name),
  messages: () => createAnthropic({ baseURL: url, apiKey: key })(name),
}[process.env.DOVETAIL_API]();

const weather = { description: "Get the weather", inputSchema: z.object({ city: z.string() }) };
const declared = { get_weather: tool(weather) };
const runs = { get_weather: tool({ ...weather, execute: async ({ city }) => resultOf(city) }) };
const request = (prompt, fields = {}) => ({ model, prompt, temperature: 0, maxRetries: 0, ...fields });
const calls = (made) => made.map((call) => [call.toolName, call.input]);
// The SDK prints a stream's errors unless it is told what to do with them.
const onError = () => {};

await main({
  plain: async () => (await generateText(request(task.hello))).text,
  stream: async () => {
    const pieces = [];
    for await (const piece of streamText(request(task.count, { onError })).textStream) pieces.push(piece);
    return { text: pieces.join(""), pieces: pieces.length };
  },
  reasoning: async () => {
    const providerOptions = {
      openai: { reasoningSummary: "auto", forceReasoning: true },
      anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } },
    };
    return (await generateText(request(task.hello, { providerOptions }))).reasoningText;
  },
  usage: async () => {
    const { usage } = await generateText(request(task.hello));
    return [usage.inputTokens, usage.outputTokens];
  },
  call: async () => calls((await generateText(request(task.weather, { tools: declared }))).toolCalls),
  streamed_call: async () => calls(await streamText(request(task.weather, { tools: declared, onError })).toolCalls),
  parallel: async () => calls((await generateText(request(task.both, { tools: declared }))).toolCalls),
  result: async () => (await generateText(request(task.weather, { tools: runs, stopWhen: stepCountIs(4) }))).text,
  structured: async () => {
    const schema = z.object({ name: z.string().max(20), age: z.number().int() });
    return (await generateText(request(task.person_request, { output: Output.object({ schema }) }))).output;
  },
  length: async () => (await generateText(request(task.count, { maxOutputTokens: 16 }))).finishReason,
  bad_field: () => rejects(APICallError, () => generateText(request(task.hello, { topP: 9 }))),
  overflow: () => rejects(APICallError, () => generateText(request(tooLong))),
});
