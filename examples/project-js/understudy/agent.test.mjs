// An agent with one tool: `runAgent` stands for your agent, put that in its place. node --test understudy/agent.test.mjs
// starts the command `understudy`. The folder beside it is the npm package vllm-understudy, which is not published yet.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { start } from "./vllm-understudy/index.js";

const parameters = { type: "object", properties: { city: { type: "string" } } };
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];

async function runAgent(baseURL, question) {
  const messages = [{ role: "user", content: question }];
  for (;;) {
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify({ messages, tools });
    const answer = await fetch(`${baseURL}/chat/completions`, { method: "POST", headers, body });
    const { message } = (await answer.json()).choices[0];
    if (!message.tool_calls?.length) return message.content;
    messages.push(message);
    for (const call of message.tool_calls)
      messages.push({ role: "tool", tool_call_id: call.id, content: "sunny" });
  }
}

let server;
before(async () => (server = await start()));
afterEach(() => server.reset());
after(() => server.stop());

test("the agent calls the tool", async () => {
  const call = { name: "get_weather", arguments: { city: "Rome" } };
  await server.reply({ when: { tool_result: false }, then: { tool_calls: [call] } });
  await server.reply({
    when: { tool_result: "get_weather" },
    then: { text: "In Rome it is {{ tool_result }}." },
  });
  assert.equal(await runAgent(server.baseURL, "Is it warm in Rome?"), "In Rome it is sunny.");
  const [, second] = await server.verify({ times: 2, contains: "Rome" });
  assert.equal(second.request.messages.at(-1).content, "sunny");
});
