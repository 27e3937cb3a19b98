// An agent with one tool, by openai's npm package or Vercel's AI SDK: AGENT is openai or ai.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, tool } from "ai";
import { OpenAI } from "openai";

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const name = "understudy-tiny";

export async function runMyAgent(baseURL, prompt) {
  if (process.env.AGENT === "ai") {
    const tools = { get_weather: tool({ inputSchema: jsonSchema(parameters), execute: () => "sunny" }) };
    const model = createOpenAICompatible({ name: "vllm", baseURL, apiKey: "none" })(name);
    return (await generateText({ model, prompt, tools, stopWhen: stepCountIs(5) })).text;
  }
  const weather = { name: "get_weather", parameters, parse: JSON.parse, function: () => "sunny" };
  const runner = new OpenAI({ baseURL, apiKey: "none" }).chat.completions.runTools({
    model: name,
    messages: [{ role: "user", content: prompt }],
    tools: [{ type: "function", function: weather }],
  });
  return runner.finalContent();
}
