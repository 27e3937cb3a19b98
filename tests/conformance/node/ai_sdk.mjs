// Asks a server through Vercel's AI SDK: `ai_sdk.mjs FOLDER URL MODEL`, FOLDER has the packages. Prints JSON.

import { createRequire } from "node:module";

const [folder, url, name] = process.argv.slice(2);
const require = createRequire(folder + "/");
const {
  generateObject,
  generateText,
  jsonSchema,
  stepCountIs,
  streamObject,
  streamText,
  tool,
} = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAICompatible({
  name: "vllm",
  baseURL: url + "/v1",
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider(name);
const asked = { model, prompt: "Say something.", maxOutputTokens: 6, seed: 1, maxRetries: 0 };
const schema = jsonSchema({
  type: "object",
  properties: {
    city: { type: "string", maxLength: 20 },
    days: { type: "integer", minimum: 1, maximum: 5 },
  },
  required: ["city", "days"],
  additionalProperties: false,
});
const weather = tool({ inputSchema: schema, execute: ({ city }) => "sun in " + city });
const calling = {
  model,
  prompt: "How is the weather?",
  tools: { weather },
  toolChoice: "required",
  maxRetries: 0,
};

async function refused(request) {
  try {
    await generateText({ ...asked, ...request });
  } catch (error) {
    return [error.name, error.statusCode, error.isRetryable];
  }
}

async function streamed(request) {
  const failures = [];
  const result = streamText({ ...request, onError: ({ error }) => failures.push(String(error)) });
  const kinds = [];
  const texts = [];
  for await (const part of result.fullStream) {
    kinds.push(part.type);
    if (part.type === "text-delta") texts.push(part.text);
  }
  return {
    text: texts.join(""),
    kinds: [...new Set(kinds)],
    finish: await result.finishReason,
    usage: (await result.usage).outputTokens,
    calls: (await result.toolCalls).map(({ toolName, input }) => [toolName, input]),
    failures,
  };
}

const whole = await generateText(asked);
const called = await generateText(calling);
const agent = await generateText({ ...calling, toolChoice: "auto", stopWhen: stepCountIs(3) });
const { object } = await generateObject({ model, schema, prompt: "Where?", maxRetries: 0 });
const partial = streamObject({ model, schema, prompt: "Where?", maxRetries: 0 });
const parts = [];
for await (const part of partial.partialObjectStream) parts.push(part);

console.log(
  JSON.stringify({
    whole: whole.text,
    finish: whole.finishReason,
    usage: whole.usage.outputTokens,
    streamed: await streamed(asked),
    calls: called.toolCalls.map(({ toolName, input }) => [toolName, input]),
    results: called.toolResults.map(({ output }) => output),
    streamed_calls: await streamed(calling),
    agent_steps: agent.steps.length,
    object,
    streamed_object: [parts.at(-1), await partial.object],
    unknown_model: await refused({ model: provider("none") }),
    wrong_value: await refused({ temperature: -1 }),
  }),
);
