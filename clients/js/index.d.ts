/** Understudy, a stand-in for vLLM, in tests of JavaScript clients. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** Settings of the server in camel case: `maxNumSeqs` for `--max-num-seqs`. */
export interface Settings {
  /** The server's program and its first words; `["understudy"]` by default. */
  command?: string[];
  /** The working folder of the server. */
  cwd?: string;
  port?: number;
  adminKey?: string;
  [setting: string]: Json | undefined;
}

/** A rule of a script: docs/scripts.md. */
export interface RuleOptions {
  when?: { [condition: string]: Json };
  then: "pass" | { [action: string]: Json };
  name?: string;
  /** Only for requests with this header `X-Understudy-Scope`. */
  scope?: string;
}

export interface RequestFilter {
  /** Path of the request, such as `/v1/chat/completions`. */
  route?: string;
  /** A text in the body. */
  contains?: string;
  /** Header `X-Understudy-Scope` of the request. */
  scope?: string;
}

/** A request and its reply, as `GET /admin/journal` shows them: docs/testing.md. */
export interface JournalEntry {
  id: string;
  /** Id in the body of the answer. */
  response_id: string | null;
  /** Arrival, ISO 8601 in UTC. */
  at: string;
  route: string;
  model: string | null;
  /** null until the answer begins. */
  status: number | null;
  rule: string | null;
  scope: string | null;
  /** The body, secrets masked. */
  request: any;
  text: string | null;
  usage: { prompt_tokens: number; completion_tokens: number; total_tokens: number } | null;
  /** Unix seconds, like all moments. */
  arrived_s: number;
  /** When the scheduler saw the request; known once a choice has ended, like the next ones. */
  queued_s: number | null;
  scheduled_s: number | null;
  /** When the engine had the first token. */
  first_s: number | null;
  /** When the engine had the last token. */
  last_s: number | null;
  /** When the parts of the answer were handed to the connection. */
  sends_s: number[] | null;
  cached_tokens: number | null;
  preemptions: number | null;
}

/** The server refused a request of the test, did not answer, or did not start. */
export class ControlError extends Error {}

/** A rule that a test has set, until `remove` or a reset. */
export interface Reply {
  /** Number of requests that the rule has answered. */
  answered(): Promise<number>;
  remove(): Promise<void>;
}

export interface Server {
  readonly url: string;
  /** The `baseURL` of SDKs; ends with `/v1`. */
  readonly baseURL: string;
  /** The last 64 KiB of what a started server has written. */
  readonly log: string;
  /** Sets a rule, behind earlier ones and before those of files. Rejects with ControlError for a wrong rule. */
  reply(rule: RuleOptions): Promise<Reply>;
  /** The journal, the oldest entry first. */
  requests(filter?: RequestFilter): Promise<JournalEntry[]>;
  /** The requests that fit; rejects with AssertionError unless they are `times`, or at least one. */
  verify(expected?: RequestFilter & { times?: number }): Promise<JournalEntry[]>;
  /** Forgets replies, requests and the verdict on clients. */
  reset(): Promise<void>;
  /** Any other route for operators. */
  ask(method: string, path: string, body?: Json): Promise<any>;
  isHealthy(): Promise<boolean>;
  /** Ends a started server. */
  stop(): Promise<void>;
}

/** Starts a server on a free port. Rejects with ControlError, and its log, when it does not start. */
export function start(settings?: Settings): Promise<Server>;

/** Controls a server that runs already, such as a service beside the job. */
export function connect(url: string, options?: { adminKey?: string }): Server;
