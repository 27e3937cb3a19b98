// The helpers of the package for vitest, jest and Testcontainers, with the hooks of Node.js and a container that notes its
// arguments: no container is started.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";

globalThis.beforeAll = (hook) => before(hook);
globalThis.afterEach = (hook) => afterEach(hook);
globalThis.afterAll = (hook) => after(hook);
const { useUnderstudy } = await import(`vllm-understudy/${process.env.HELPER}`);

const server = useUnderstudy({ maxNumSeqs: 3 });

async function ask(content) {
  const answer = await fetch(`${server.baseURL}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content }], max_tokens: 5 }),
  });
  return (await answer.json()).choices[0].message.content;
}

test("the server has the settings, and answers as the test says", async () => {
  assert.equal((await server.ask("GET", "/admin/config"))["max-num-seqs"], 3);
  await server.reply({ then: { text: "Hello." } });
  assert.equal(await ask("hi"), "Hello.");
  const [entry] = await server.verify({ times: 1 });
  assert.ok(entry.arrived_s <= entry.first_s && entry.first_s <= entry.last_s);
});

test("replies and requests of an earlier test are forgotten", async () => {
  assert.deepEqual(await server.requests(), []);
  assert.notEqual(await ask("hi"), "Hello.");
});

test("settings become the command of the container", async () => {
  const { UnderstudyContainer } = await import("vllm-understudy/testcontainers");
  const container = new UnderstudyContainer("understudy:0.1.0", { maxNumSeqs: 2, adminKey: "key" });
  assert.equal(container.image, "understudy:0.1.0");
  const words =
    "understudy --host 0.0.0.0 --port 8000 --seed 7 --journal 1000 --max-num-seqs 2 --admin-key key";
  assert.deepEqual(container.command, words.split(" "));
  assert.deepEqual([container.port, container.path], [8000, "/health"]);
  const started = await container.start();
  assert.equal(started.baseURL, "http://docker.example:38000/v1");
  assert.equal(started.server.url, "http://docker.example:38000");
  for (const name of ["host", "port", "dataParallelSize"])
    assert.throws(
      () => new UnderstudyContainer("x", { [name]: 2 }),
      new RegExp(`^Error: ${name} `),
    );
});
