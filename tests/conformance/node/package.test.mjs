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

test("a sequence answers one after another, and then is an error", async () => {
  await server.replies(["one", "two", { text: "three" }]);
  const texts = [];
  for (let turn = 0; turn < 3; turn++) texts.push((await ask("hi", "")).choices[0].message.content);
  assert.deepEqual(texts, ["one", "two", "three"]);
  const { error } = await ask("hi", "");
  assert.match(error.message, /\(reply 3 of 3\): it has answered 1 time\(s\)/);
  assert.equal((await server.unmatched()).length, 1);
});

test("a request that no rule answers fails the reset, with the nearest rule", async () => {
  await server.reply({ when: { message: "hello" }, then: { text: "Hi." }, name: "greet" });
  await ask("bye", "");
  const failure = await server.reset().catch((error) => error);
  assert.equal(failure.name, "AssertionError");
  assert.match(
    failure.message,
    /^1 request matched no rule\. .* \(greet\): when\.message: the last message is 'bye', not one that is 'hello'\.\n1 request, the oldest first:\n {2}[\d:.]{12} \/v1\/chat\/completions 400 "bye"\n/,
  );
  assert.deepEqual(await server.requests(), []);
});

test("scopes are apart, and end with their tests", async () => {
  const use = (name) =>
    server.withScope(async (scope) => {
      await scope.replies([name, name]);
      const asked = await Promise.all([ask("hi", scope.name), ask("hi", scope.name)]);
      assert.deepEqual(
        asked.map((answer) => answer.choices[0].message.content),
        [name, name],
      );
      await scope.verify({ times: 2 });
    });
  await Promise.all(["a", "b", "c"].map(use));
  assert.deepEqual(await server.requests(), []);
  await assert.rejects(
    server.withScope(
      async (scope) => {
        await scope.reply({ then: { text: "x" } });
        await server.withScope(() => {}, { name: "one" });
      },
      { name: "one" },
    ),
    /the scope "one" is in use by a test/,
  );
  // Both have begun before one of them sets a rule: the loser leaves the winner's rules alone.
  await server.withScope(
    async (winner) => {
      const loser = server.withScope(
        async (scope) => {
          await winner.reply({ then: { text: "won" } });
          await scope.reply({ then: { text: "lost" } });
        },
        { name: "one" },
      );
      await assert.rejects(loser, /The scope 'one' is in use by a test/);
      const answer = await ask("hi", winner.name);
      assert.equal(answer.choices[0].message.content, "won");
    },
    { name: "one" },
  );
  await server.withScope(
    async (scope) => {
      const answer = await fetch(`${scope.baseURL}/completions`, {
        method: "POST",
        headers: { "Content-Type": "application/json", ...scope.headers },
        body: JSON.stringify({ prompt: "hi" }),
      });
      assert.equal(answer.status, 400);
      assert.match((await scope.unmatched())[0].error, /no rules are set for it/);
    },
    { unmatched: "error" },
  );
});

test("a choked engine starts nothing until it is let go", async () => {
  let asked;
  await server.choke({ paused: true }, async () => {
    asked = ask("hi", "");
    while ((await server.ask("GET", "/admin/choke?ranks=all"))[0].waiting === 0);
    assert.equal((await server.requests())[0].text, null);
  });
  assert.ok((await asked).choices);
  await assert.rejects(
    server.choke({ places: 0 }, () => {}),
    /answered 400/,
  );
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
