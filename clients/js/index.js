// Understudy, a stand-in for vLLM, in tests of JavaScript clients: start, reply, requests, verify (README.md).

import { AssertionError } from "node:assert";
import { spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import { createServer } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

const RULES = "/admin/script/rules";
const CHOKE = "/admin/choke?ranks=all";
const [START_LIMIT_MS, STOP_LIMIT_MS, TIMEOUT_MS] = [30_000, 5_000, 10_000];
const PORTS = [16_000, 32_000]; // below the kernel's ephemeral range, so that outgoing connections take none of these
const [MOST_LOG, MOST_LINES, MOST_TEXT] = [1 << 16, 30, 160]; // characters, entries, characters

/** The server refused a request of the test, did not answer, or did not start. */
export class ControlError extends Error {}

/** Starts a server on a free port; `settings` are those of the command line, `maxNumSeqs` for `--max-num-seqs`. */
export async function start({ command = ["understudy"], cwd, ...settings } = {}) {
  const port = settings.port ?? (await freePort());
  const words = flags({ host: "127.0.0.1", seed: 7, journal: 1000, ...settings, port });
  const env = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !name.startsWith("SIM_")),
  );
  const child = spawn(command[0], [...command.slice(1), ...words], { cwd, env, detached: true });
  const server = new Server(`http://127.0.0.1:${port}`, { adminKey: settings.adminKey, child });
  let failure;
  child.on("error", (error) => (failure = error.message));
  child.on("exit", (status) => (failure ??= `it ended with status ${status}`));
  for (const deadline = Date.now() + START_LIMIT_MS; !(await server.isHealthy()); await sleep(20)) {
    if (Date.now() > deadline) failure ??= `it is not healthy after ${START_LIMIT_MS / 1000} s`;
    if (failure !== undefined) {
      await server.stop();
      throw new ControlError(`the server did not start: ${failure}\n${server.log}`);
    }
  }
  return server;
}

/** Controls a server that runs already, such as a service beside the job. */
export function connect(url, { adminKey } = {}) {
  return new Server(url.replace(/\/(v1\/?)?$/, ""), { adminKey });
}

class Server {
  #adminKey;
  #child;
  #log = "";
  #hasChoked = false;
  #expected = new Set(); // id and arrival of the unmatched requests that the test expects

  constructor(url, { adminKey, child }) {
    [this.url, this.baseURL, this.#adminKey, this.#child] = [url, `${url}/v1`, adminKey, child];
    if (child === undefined) return;
    for (const stream of [child.stdout, child.stderr])
      stream
        .setEncoding("utf8")
        .on("data", (text) => (this.#log = (this.#log + text).slice(-MOST_LOG)));
    this.end = () => kill(child, "SIGKILL");
    process.on("exit", this.end);
  }

  get log() {
    return this.#log;
  }

  /** The `baseURL` of the Anthropic SDK, which adds /v1 itself. */
  get anthropicBaseURL() {
    return this.url;
  }

  async reply({ when = {}, then, name = "", times, scope, owner }) {
    const rule = { name, when, then, ...(times !== undefined && { times }) };
    return this.#addRules([rule], { scope, owner });
  }

  async replies(replies, { when = {}, scope, owner } = {}) {
    if (!Array.isArray(replies) || replies.length === 0)
      throw new TypeError("replies() accepts a list with at least one reply");
    const rules = replies.map((reply, index) => ({
      name: `reply ${index + 1} of ${replies.length}`,
      when,
      then: typeof reply === "string" ? { text: reply } : reply,
      times: 1,
    }));
    return this.#addRules(rules, { scope, owner });
  }

  async #addRules(rules, { scope, owner }) {
    const path = `${RULES}?${query({ ranks: "all", scope, owner })}`;
    const ranks = Object.values(await this.ask("POST", path, { rules }));
    return new Reply(
      this,
      ranks[0].rules.map((rule) => rule.id),
    );
  }

  /** Runs `use` with a part of the server, for tests that share the server at the same time. */
  async withScope(use, { name, unmatched } = {}) {
    const scope = new Scope(this, name, unmatched);
    for (const { owner } of await this.#rulesOf(scope))
      if (owner !== scope.owner)
        throw new ControlError(
          `the scope ${JSON.stringify(scope.name)} is in use by ${owner ?? "another test"}; ` +
            "give each test its own scope",
        );
    let passed = false;
    try {
      const result = await use(scope);
      await this.assertMatched({ scope: scope.name });
      passed = true;
      return result;
    } finally {
      // If another test has won the name, everything in the scope belongs to that test.
      const rules = await this.#rulesOf(scope);
      if (rules.every(({ owner }) => owner === null || owner === scope.owner)) {
        await this.ask("DELETE", scope.rulesPath);
        if (passed) await this.ask("DELETE", scope.journalPath); // a report needs the others
      }
    }
  }

  async #rulesOf(scope) {
    const ranks = await this.ask("GET", scope.rulesPath);
    return Object.values(ranks).flatMap((rank) => rank.rules);
  }

  /** Runs `use` while the engine has fewer `places` or `kvBlocks`, or is `paused`. */
  async choke({ places, kvBlocks, paused = false, seconds }, use) {
    this.#hasChoked = true;
    try {
      // In the block: if a rank that restarts fails the call, the others are choked.
      await this.ask("POST", CHOKE, { places, kv_blocks: kvBlocks, paused, seconds });
      return await use();
    } finally {
      await this.ask("DELETE", CHOKE);
    }
  }

  async unmatched({ scope } = {}) {
    const entries = (await this.requests({ scope })).filter((entry) => entry.unmatched);
    for (const entry of entries) this.#expected.add(`${entry.id} ${entry.at}`);
    return entries;
  }

  async assertMatched({ scope } = {}) {
    const entries = await this.requests({ scope });
    const unmatched = entries.filter(
      (entry) => entry.unmatched && !this.#expected.has(`${entry.id} ${entry.at}`),
    );
    if (unmatched.length === 0) return;
    const count = `${unmatched.length} request${unmatched.length === 1 ? "" : "s"}`;
    throw new AssertionError({
      message: `${count} matched no rule. ${unmatched[0].error}\n${allRequests(entries)}`,
      actual: unmatched.length,
      expected: 0,
      operator: "assertMatched",
    });
  }

  async report() {
    const { seed } = await this.ask("GET", "/admin/config");
    return `seed ${seed}; ${allRequests(await this.requests())}`;
  }

  async requests({ route, contains, scope } = {}) {
    const ranks = await this.ask(
      "GET",
      `/admin/journal?${query({ ranks: "all", route, contains, scope })}`,
    );
    const entries = Object.values(ranks).flatMap((rank) => rank.entries);
    return entries.sort((one, other) => (one.at < other.at ? -1 : one.at > other.at ? 1 : 0));
  }

  async verify({ times, ...wanted } = {}) {
    const fitting = await this.requests(wanted);
    if (times === undefined ? fitting.length > 0 : fitting.length === times) return fitting;
    const message = report(times, wanted, fitting, await this.requests());
    throw new AssertionError({
      message,
      actual: fitting.length,
      expected: times ?? "at least 1",
      operator: "verify",
    });
  }

  async reset() {
    // Without a journal, or without a server, there is nothing to check.
    const failure = await this.assertMatched().catch((error) => error);
    this.#expected.clear();
    if (this.#hasChoked) await this.ask("DELETE", CHOKE);
    this.#hasChoked = false;
    await this.ask("DELETE", `${RULES}?ranks=all`);
    await this.ask("DELETE", "/admin/journal?ranks=all");
    await this.ask("DELETE", "/admin/verdict");
    if (failure instanceof AssertionError) throw failure;
  }

  async ask(method, path, body) {
    const headers = {
      "Content-Type": "application/json",
      ...(this.#adminKey && { "X-Admin-Key": this.#adminKey }),
    };
    const asked = { method, headers, signal: AbortSignal.timeout(TIMEOUT_MS) };
    if (body !== undefined) asked.body = JSON.stringify(body);
    const answer = await fetch(this.url + path, asked).catch((error) => {
      throw new ControlError(
        `${method} ${path}: ${error.cause?.message ?? error.message}\n${this.#log}`,
      );
    });
    const text = await answer.text();
    if (answer.status >= 400)
      throw new ControlError(`${method} ${path} answered ${answer.status}: ${text}`);
    return text.trim() ? JSON.parse(text) : {};
  }

  async isHealthy() {
    const answer = await fetch(`${this.url}/health`, {
      signal: AbortSignal.timeout(TIMEOUT_MS),
    }).catch(() => undefined);
    return answer?.status === 200;
  }

  async stop() {
    const child = this.#child;
    if (child === undefined || child.pid === undefined) return;
    process.off("exit", this.end);
    const over =
      child.exitCode === null &&
      child.signalCode === null &&
      new Promise((done) => child.once("exit", done));
    child.kill("SIGTERM");
    await Promise.race([over, sleep(STOP_LIMIT_MS, undefined, { ref: false })]);
    kill(child, "SIGKILL");
  }
}

class Reply {
  #server;
  #ids;

  constructor(server, ids) {
    [this.#server, this.#ids] = [server, ids];
  }

  async answered() {
    const ranks = Object.values(await this.#server.ask("GET", `${RULES}?ranks=all`));
    const rules = ranks.flatMap((rank) => rank.rules.filter((rule) => this.#ids.includes(rule.id)));
    return rules.reduce((sum, rule) => sum + rule.answered, 0);
  }

  async remove() {
    for (const id of this.#ids)
      await this.#server.ask("DELETE", `${RULES}?${query({ ranks: "all", id })}`);
  }
}

class Scope {
  #server;

  constructor(server, name, unmatched) {
    const token = randomInt(2 ** 32).toString(16);
    this.#server = server;
    this.name = name ?? `scope-${token}`;
    this.owner = `a test (${token})`;
    this.headers = { "X-Understudy-Scope": this.name };
    if (unmatched !== undefined) this.headers["X-Understudy-Unmatched"] = unmatched;
    this.baseURL = server.baseURL;
    this.anthropicBaseURL = server.anthropicBaseURL;
    this.rulesPath = `${RULES}?${query({ ranks: "all", scope: this.name })}`;
    this.journalPath = `/admin/journal?${query({ ranks: "all", scope: this.name })}`;
  }

  reply(rule) {
    return this.#server.reply({ ...rule, scope: this.name, owner: this.owner });
  }

  replies(replies, { when } = {}) {
    return this.#server.replies(replies, { when, scope: this.name, owner: this.owner });
  }

  requests(filter = {}) {
    return this.#server.requests({ ...filter, scope: this.name });
  }

  verify(expected = {}) {
    return this.#server.verify({ ...expected, scope: this.name });
  }

  unmatched() {
    return this.#server.unmatched({ scope: this.name });
  }
}

function allRequests(entries) {
  if (entries.length === 0) return "no requests";
  const head = `${entries.length} request${entries.length === 1 ? "" : "s"}, the oldest first:`;
  const lines = entries.slice(-MOST_LINES).map((entry) => {
    const failed = entry.status === null || entry.status >= 400;
    const reason = failed ? (entry.error ?? entry.rule) : entry.rule;
    const reply = entry.text === null ? "" : ` -> ${brief(entry.text)}`;
    return `  ${line(entry)}${reply}\n      ${reason ?? "no rule: the reply mode answered"}`;
  });
  return [head, ...lines].join("\n");
}

function line(entry) {
  const asked = brief(last(entry.request));
  return `${entry.at.slice(11, 23)} ${entry.route} ${entry.status} ${asked}`;
}

function report(times, wanted, fitting, every) {
  const asked = Object.entries(wanted).map(([name, value]) => `, ${name} ${JSON.stringify(value)}`);
  const count =
    times === undefined ? "at least one request" : `${times} request${times === 1 ? "" : "s"}`;
  const known = new Set(fitting.map((entry) => JSON.stringify(entry)));
  const lines = every.map((entry) => {
    if (known.has(JSON.stringify(entry))) return `  fits: ${line(entry)}`;
    const other = ["route", "scope"].filter(
      (name) => wanted[name] !== undefined && wanted[name] !== entry[name],
    );
    const flaws = other.map((name) => `${name} is ${JSON.stringify(entry[name])}`).join(" and ");
    return `  ${line(entry)}\n      ${flaws || "its body does not contain the text"}`;
  });
  const head = `expected ${count}${asked.join("")}; of ${every.length} in the journal ${fitting.length} fit`;
  return [head + (lines.length ? ":" : ""), ...lines.slice(-MOST_LINES)].join("\n");
}

function last(request) {
  const messages = request?.messages ?? request?.input;
  const content = Array.isArray(messages)
    ? (messages.at(-1)?.content ?? messages.at(-1))
    : messages;
  return content ?? request?.prompt ?? request;
}

function brief(value) {
  const text = JSON.stringify(value) ?? "";
  return text.length <= MOST_TEXT ? text : `${text.slice(0, MOST_TEXT)}...`;
}

function query(given) {
  return new URLSearchParams(
    Object.entries(given).filter(([, value]) => value !== undefined),
  ).toString();
}

/** The words of the command line; for testcontainers.js. */
export function flags(settings) {
  const given = Object.entries(settings).filter(
    ([, value]) => value !== undefined && value !== null,
  );
  return given.flatMap(([name, value]) => [
    `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`,
    ...(Array.isArray(value) && value.every((item) => typeof item === "string")
      ? value
      : [typeof value === "string" ? value : JSON.stringify(value)]),
  ]);
}

async function freePort() {
  for (;;) {
    const [port, probe] = [randomInt(...PORTS), createServer()];
    const isFree = await new Promise((tell, failed) => {
      probe.once("error", (error) => (error.code === "EADDRINUSE" ? tell(false) : failed(error)));
      probe.listen(port, "127.0.0.1", () => tell(true));
    });
    await new Promise((closed) => probe.close(closed));
    if (isFree) return port;
  }
}

function kill(child, signal) {
  try {
    process.kill(-child.pid, signal); // the group: the server has workers
  } catch {
    // it has ended
  }
}
