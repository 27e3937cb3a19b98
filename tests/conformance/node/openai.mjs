// Asks a server through openai's npm package: `openai.mjs FOLDER URL MODEL`, FOLDER has the packages. Prints JSON.

import { createRequire } from "node:module";

const [folder, url, model] = process.argv.slice(2);
const { OpenAI } = createRequire(folder + "/")("openai");

const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Say something." }];
const parameters = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 } },
  required: ["city"],
  additionalProperties: false,
};
const asked = { model, messages, max_tokens: 6, seed: 1 };
const calling = {
  model,
  messages,
  tools: [{ type: "function", function: { name: "weather", parameters } }],
  tool_choice: "required",
};

async function refused(request) {
  try {
    await client.chat.completions.create({ ...asked, ...request });
  } catch (error) {
    return [error.constructor.name, error.status, error.param];
  }
}

const whole = await client.chat.completions.create(asked);
const { data: models } = await client.models.list();
const stream = client.chat.completions.stream({
  ...asked,
  stream_options: { include_usage: true },
});
const deltas = [];
stream.on("content", (delta) => deltas.push(delta));
const gathered = await stream.finalChatCompletion();

const call = (await client.chat.completions.create(calling)).choices[0].message.tool_calls[0];
const streamedCall = (await client.chat.completions.stream(calling).finalChatCompletion())
  .choices[0].message.tool_calls[0];
const answered = await client.chat.completions
  .runTools({
    ...calling,
    tool_choice: "auto",
    tools: [
      {
        type: "function",
        function: {
          name: "weather",
          parameters,
          parse: JSON.parse,
          function: ({ city }) => "sun in " + city,
        },
      },
    ],
  })
  .finalMessage();

const parsed = await client.chat.completions.parse({
  model,
  messages,
  response_format: {
    type: "json_schema",
    json_schema: { name: "place", schema: parameters, strict: true },
  },
});

const texts = [];
for await (const chunk of await client.completions.create({
  model,
  prompt: "hello",
  max_tokens: 6,
  stream: true,
})) {
  texts.push(chunk.choices[0].text);
}
const kinds = [];
for await (const event of await client.responses.create({
  model,
  input: "hi",
  max_output_tokens: 6,
  stream: true,
})) {
  kinds.push(event.type);
}

console.log(
  JSON.stringify({
    models: models.map(({ id }) => id),
    whole: whole.choices[0].message.content,
    usage: whole.usage.completion_tokens,
    streamed: deltas.join(""),
    gathered: gathered.choices[0].message.content,
    gathered_usage: gathered.usage.completion_tokens,
    call: [call.function.name, JSON.parse(call.function.arguments)],
    streamed_call: [streamedCall.function.name, JSON.parse(streamedCall.function.arguments)],
    answered: answered.role,
    parsed: JSON.parse(parsed.choices[0].message.content),
    text: texts.join(""),
    responses: [kinds[0], kinds.at(-1)],
    unknown_model: await refused({ model: "none" }),
    wrong_value: await refused({ temperature: -1 }),
  }),
);
