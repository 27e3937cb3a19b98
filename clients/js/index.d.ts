/** Understudy, a stand-in for vLLM, in tests of JavaScript clients. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** Settings of the server in camel case: `maxNumSeqs` for `--max-num-seqs`. */
export interface Settings {
  /** The server's program and its first words; `["understudy"]` by default. */
  command?: string[];
  /** The working folder of the server. */
  cwd?: string;
  /** The port; a free one by default. */
  port?: number;
  /** Key of the admin routes. */
  adminKey?: string;
  /** Any other setting. */
  [setting: string]: Json | undefined;
}

/** A rule of a script: docs/scripts.md. */
export interface RuleOptions {
  /** Conditions; without any, every request matches. */
  when?: { [condition: string]: Json };
  /** The action: the reply, or `pass`. */
  then: "pass" | { [action: string]: Json };
  /** Name of the rule in the journal. */
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
  /** Identifier of the request. */
  id: string;
  /** Id in the body of the answer. */
  response_id: string | null;
  /** Arrival, ISO 8601 in UTC. */
  at: string;
  /** Path of the request. */
  route: string;
  /** Requested model. */
  model: string | null;
  /** Status of the response; null until it begins. */
  status: number | null;
  /** Name of the rule that answered. */
  rule: string | null;
  /** Header `X-Understudy-Scope`. */
  scope: string | null;
  /** The body, with masked secrets. */
  request: any;
  /** Text of the reply. */
  text: string | null;
  /** Token counts of the reply. */
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

/** The server rejected a request of the test, did not answer, or did not start. */
export class ControlError extends Error {}

/** A rule that a test has set, until `remove` or a reset. */
export interface Reply {
  /** Number of requests that the rule has answered. */
  answered(): Promise<number>;
  /** Removes the rule from the server. */
  remove(): Promise<void>;
}

export interface Server {
  /** Address of the server. */
  readonly url: string;
  /** The `baseURL` of SDKs; ends with `/v1`. */
  readonly baseURL: string;
  /** The last 64 KiB of the output of a started server. */
  readonly log: string;
  /** Adds a rule after earlier ones and before those of files. Rejects an invalid rule with ControlError. */
  reply(rule: RuleOptions): Promise<Reply>;
  /** Fetches the received requests, from the oldest to the newest. */
  requests(filter?: RequestFilter): Promise<JournalEntry[]>;
  /** Fetches the matching requests. Rejects with AssertionError unless there are `times`, or at least one. */
  verify(expected?: RequestFilter & { times?: number }): Promise<JournalEntry[]>;
  /** Removes replies, requests and the verdict on clients. */
  reset(): Promise<void>;
  /** Sends a request to any other admin route. */
  ask(method: string, path: string, body?: Json): Promise<any>;
  /** Resolves to true when GET /health answers 200. */
  isHealthy(): Promise<boolean>;
  /** Stops a started server. */
  stop(): Promise<void>;
}

/** Starts a server on a free port. Rejects with ControlError, and its log, when it does not start. */
export function start(settings?: Settings): Promise<Server>;

/** Controls a server that runs already, such as a service beside the job. */
export function connect(url: string, options?: { adminKey?: string }): Server;
