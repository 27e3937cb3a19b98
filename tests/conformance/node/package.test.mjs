// What the package vllm-understudy does besides its README's example.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { connect, ControlError, start } from "vllm-understudy";

let server;
before(async () => (server = await start({ adminKey: "secret", dataParallelSize: 2 })));
afterEach(() => server.reset());
after(() => server.stop());

const ask = (content, scope) =>
  fetch(`${server.baseURL}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Understudy-Scope": scope },
    body: JSON.stringify({ messages: [{ role: "user", content }], max_tokens: 5 }),
  }).then((answer) => answer.json());

test("a reply is for its scope, counts, and is removed", async () => {
  const greeting = await server.reply({
    when: { message: "hi" },
    then: { text: "Hello." },
    name: "greet",
    scope: "one",
  });
  assert.equal((await ask("hi", "one")).choices[0].message.content, "Hello.");
  assert.notEqual((await ask("hi", "two")).choices[0].message.content, "Hello.");
  assert.equal(await greeting.answered(), 1);
  await greeting.remove();
  assert.notEqual((await ask("hi", "one")).choices[0].message.content, "Hello.");
  assert.deepEqual(
    (await server.requests({ scope: "one" })).map((entry) => entry.rule !== null),
    [true, false],
  );
});

test("what was not sent is shown beside what was", async () => {
  await ask("weather in Rome", "one");
  await ask("weather in Oslo", "two");
  await server.verify({ times: 1, contains: "Rome" });
  const failed = await server
    .verify({ times: 2, contains: "Rome", scope: "one" })
    .catch((error) => error);
  assert.equal(failed.name, "AssertionError");
  const [head, fits, other, why] = failed.message.split("\n");
  assert.equal(
    head,
    'expected 2 requests, contains "Rome", scope "one"; of 2 in the journal 1 fit:',
  );
  assert.match(fits, /^  fits: [\d:.]{12} \/v1\/chat\/completions 200 "weather in Rome"$/);
  assert.match(other, /Oslo/);
  assert.equal(why, '      scope is "two"');
});

test("what cannot be is told", async () => {
  await assert.rejects(
    server.reply({ then: { txt: "x" } }),
    /unknown key 'txt'; did you mean text/,
  );
  await assert.rejects(
    start({ nix: 1 }),
    (error) => error instanceof ControlError && /unknown flag --nix/.test(error.message),
  );
  await assert.rejects(start({ command: ["/nowhere"] }), /did not start: .*ENOENT/);
  await assert.rejects(connect("http://127.0.0.1:1/v1").requests(), ControlError);
  await assert.rejects(connect(server.baseURL).requests(), /answered 401/);
});

test("no outgoing connection can take the port before the server does", () => {
  assert.ok(Number(new URL(server.url).port) < 32_768);
});
