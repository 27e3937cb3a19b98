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
  /** Most requests that the rule answers; then later rules do. */
  times?: number;
  /** Only for requests with this header `X-Understudy-Scope`. */
  scope?: string;
}

/** A reply of a sequence: a text, or the `then` of a rule. */
export type SequenceReply = string | { [action: string]: Json };

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
  /** The message of an error. */
  error: string | null;
  /** Whether the error says that no rule answers the request; it names the nearest rule. */
  unmatched: boolean;
}

/** The server refused a request of the test, did not answer, or did not start. */
export class ControlError extends Error {}

/** A rule that a test has set, until `remove` or a reset. */
export interface Reply {
  /** Number of requests that the rule has answered. */
  answered(): Promise<number>;
  remove(): Promise<void>;
}

/** A part of a server for one test: rules and requests with its headers. */
export interface Scope {
  readonly name: string;
  /** The headers of its requests, such as `defaultHeaders` of SDKs. */
  readonly headers: { [name: string]: string };
  readonly baseURL: string;
  readonly anthropicBaseURL: string;
  reply(rule: Omit<RuleOptions, "scope">): Promise<Reply>;
  replies(
    replies: SequenceReply[],
    options?: { when?: { [condition: string]: Json } },
  ): Promise<Reply>;
  requests(filter?: Omit<RequestFilter, "scope">): Promise<JournalEntry[]>;
  verify(expected?: Omit<RequestFilter, "scope"> & { times?: number }): Promise<JournalEntry[]>;
  unmatched(): Promise<JournalEntry[]>;
}

export interface Server {
  readonly url: string;
  /** The `baseURL` of SDKs; ends with `/v1`. */
  readonly baseURL: string;
  /** The `baseURL` of the Anthropic SDK, which adds /v1 itself. */
  readonly anthropicBaseURL: string;
  /** The last 64 KiB of what a started server has written. */
  readonly log: string;
  /** Sets a rule, behind earlier ones and before those of files. Rejects with ControlError for a wrong rule. */
  reply(rule: RuleOptions): Promise<Reply>;
  /** Answers the requests that meet `when` one after another, each with the next reply. */
  replies(
    replies: SequenceReply[],
    options?: { when?: { [condition: string]: Json }; scope?: string },
  ): Promise<Reply>;
  /** Runs `use` with a part of the server; at its end the rules of the scope are removed, and an unmatched request rejects with AssertionError. */
  withScope<T>(
    use: (scope: Scope) => Promise<T> | T,
    options?: { name?: string; unmatched?: "error" | "pass" },
  ): Promise<T>;
  /** Runs `use` while the engine has fewer places or KV blocks, or starts no sequence; then lets it go. */
  choke<T>(
    choke: { places?: number; kvBlocks?: number; paused?: boolean; seconds?: number },
    use: () => Promise<T> | T,
  ): Promise<T>;
  /** The requests that no rule has answered; they are then expected. */
  unmatched(filter?: { scope?: string }): Promise<JournalEntry[]>;
  /** Rejects with AssertionError, with the nearest rule, if no rule has answered a request that is not expected. */
  assertMatched(filter?: { scope?: string }): Promise<void>;
  /** The seed and the last requests, each with its rule or error, to print when a test fails. */
  report(): Promise<string>;
  /** The journal, the oldest entry first. */
  requests(filter?: RequestFilter): Promise<JournalEntry[]>;
  /** The requests that fit; rejects with AssertionError unless they are `times`, or at least one. */
  verify(expected?: RequestFilter & { times?: number }): Promise<JournalEntry[]>;
  /** Forgets replies, requests and the verdict on clients; then rejects as `assertMatched` does. */
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
