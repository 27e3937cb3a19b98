// Agents with one tool, by the packages of npm: AGENT names one of them.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Anthropic } from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import {
  Agent,
  OpenAIChatCompletionsModel,
  run,
  setTracingDisabled,
  tool as agentTool,
} from "@openai/agents";
import { generateText, jsonSchema, stepCountIs, tool } from "ai";
import { OpenAI } from "openai";

const [model, name, description, apiKey] = [
  "understudy-tiny",
  "get_weather",
  "The weather of a city.",
  "none",
];
const properties = { city: { type: "string" } };
const parameters = { type: "object", properties, required: ["city"], additionalProperties: false };
const weather = ({ city }) => ({ Rome: "sunny" })[city];

const AGENTS = {
  async openai(baseURL, question) {
    const runner = new OpenAI({ baseURL, apiKey }).chat.completions.runTools({
      model,
      messages: [{ role: "user", content: question }],
      tools: [
        { type: "function", function: { name, parameters, parse: JSON.parse, function: weather } },
      ],
    });
    return runner.finalContent();
  },
  async ai(baseURL, prompt) {
    const tools = { [name]: tool({ inputSchema: jsonSchema(parameters), execute: weather }) };
    const provider = createOpenAICompatible({ name: "vllm", baseURL, apiKey });
    return (await generateText({ model: provider(model), prompt, tools, stopWhen: stepCountIs(5) }))
      .text;
  },
  async anthropic(baseURL, question) {
    const client = new Anthropic({ baseURL: baseURL.replace("/v1", ""), apiKey });
    const tools = [betaTool({ name, description, inputSchema: parameters, run: weather })];
    const messages = [{ role: "user", content: question }];
    const { content } = await client.beta.messages.toolRunner({
      model,
      max_tokens: 100,
      messages,
      tools,
    });
    return content.map((block) => block.text ?? "").join("");
  },
  async agents(baseURL, question) {
    setTracingDisabled(true);
    const client = new OpenAIChatCompletionsModel(new OpenAI({ baseURL, apiKey }), model);
    const tools = [agentTool({ name, description, parameters, execute: weather })];
    return (await run(new Agent({ name: "Forecaster", model: client, tools }), question))
      .finalOutput;
  },
};

export const runMyAgent = AGENTS[process.env.AGENT];
