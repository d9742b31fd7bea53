// openai-agents for node: an agent with tools, on Responses (the default), or on chat completions where told so.

import { execSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import OpenAI, { BadRequestError } from "openai";
import { z } from "zod";
import { key, main, model, rejects, resultOf, task, tooLong, url } from "./common.mjs";

setTracingDisabled(true);
const openAIClient = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
const useResponses = process.env.DOVETAIL_API === "responses";
const runner = new Runner({ modelProvider: new OpenAIProvider({ openAIClient, useResponses }), tracingDisabled: true });
const file = path.resolve("chapter.txt");
const made = [];

const weather = tool({
  name: "get_weather",
  description: "Get the weather",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => (made.push(["get_weather", { city }]), resultOf(city)),
});
const hands = [
  tool({
    name: "read_file",
    description: "Read a file.",
    parameters: z.object({ path: z.string() }),
    execute: async ({ path }) => readFileSync(path, "utf8"),
  }),
  tool({
    name: "edit_file",
    description: "Replace a text in a file.",
    parameters: z.object({ path: z.string(), old: z.string(), new: z.string() }),
    execute: async (edit) => {
      writeFileSync(edit.path, readFileSync(edit.path, "utf8").replace(edit.old, edit.new));
      return "Done.";
    },
  }),
  tool({
    name: "run_command",
    description: "Run a command of the shell.",
    parameters: z.object({ command: z.string() }),
    execute: async ({ command }) => execSync(`${command} 2>&1 || true`, { encoding: "utf8" }),
  }),
];
const agent = (fields = {}) => new Agent({ name: "one", model, instructions: "Help.", ...fields });
const run = (request, fields) => (made.length = 0, runner.run(agent(fields), request));

await main({
  plain: async () => (await run(task.hello)).finalOutput,
  stream: async () => {
    const streamed = await runner.run(agent(), task.count, { stream: true });
    const pieces = [];
    for await (const piece of streamed.toTextStream()) pieces.push(piece);
    await streamed.completed;
    return { text: pieces.join(""), pieces: pieces.length };
  },
  usage: async () => {
    const { usage } = (await run(task.hello)).rawResponses[0];
    return [usage.inputTokens, usage.outputTokens];
  },
  call: async () => (await run(task.weather, { tools: [weather], toolUseBehavior: "stop_on_first_tool" }), made),
  streamed_call: async () => {
    made.length = 0;
    const stop = agent({ tools: [weather], toolUseBehavior: "stop_on_first_tool" });
    await (await runner.run(stop, task.weather, { stream: true })).completed;
    return made;
  },
  parallel: async () => (await run(task.both, { tools: [weather] }), made),
  result: async () => (await run(task.weather, { tools: [weather] })).finalOutput,
  structured: async () => {
    const outputType = z.object({ name: z.string().max(20), age: z.number().int() });
    return (await run(task.person_request, { outputType })).finalOutput;
  },
  bad_field: () => rejects(BadRequestError, () => run(task.hello, { modelSettings: { topP: 9 } })),
  overflow: () => rejects(BadRequestError, () => run(tooLong)),
  report: async () => {
    writeFileSync(file, task.edit_file);
    const request = task.edit_request.replace("{path}", file).replace("{tools}", process.env.DOVETAIL_TOOLS);
    return (await run(request, { tools: hands })).finalOutput;
  },
  edited: async () => readFileSync(file, "utf8"),
});
