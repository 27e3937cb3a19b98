// A server for the tests of one file: the hooks of vitest.js and jest.js.

import { start } from "./index.js";

const START_LIMIT_MS = 60_000;
const MOST_LINES = 30;

/**
 * Starts a server before the tests, forgets replies and requests after each, and stops it after the last.
 * `didFail(context)` tells whether the test of an afterEach hook has failed; its requests are then printed.
 */
export function serverOfTests({ beforeAll, afterEach, afterAll, didFail = () => false }, settings) {
  let server;
  beforeAll(async () => {
    server = await start(settings);
  }, START_LIMIT_MS);
  afterEach(async (context) => {
    if (server === undefined) return;
    if (didFail(context)) console.error(await requestsOf(server));
    await server.reset();
  });
  afterAll(async () => {
    await server?.stop();
  });
  return new Proxy(Object.create(null), {
    get(_target, name) {
      if (name === "then" && server === undefined) return undefined;
      if (server === undefined)
        throw new Error(`server.${String(name)}: the server runs only inside of tests and hooks`);
      const value = Reflect.get(server, name, server);
      return typeof value === "function" ? value.bind(server) : value;
    },
  });
}

async function requestsOf(server) {
  const entries = await server.requests();
  const lines = entries.slice(-MOST_LINES).map((entry) => {
    const rule = entry.rule === null ? "no rule" : `rule ${entry.rule}`;
    return `  ${entry.at.slice(11, 23)} ${entry.route} ${entry.status} (${rule}) -> ${JSON.stringify(entry.text)}`;
  });
  return [
    `Requests of the failed test in the journal of Understudy: ${entries.length}`,
    ...lines,
  ].join("\n");
}
