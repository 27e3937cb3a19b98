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
  /** Tool calls of a script's reply; null without calls. */
  tool_calls: { name: string; arguments: string }[] | null;
  /** Token counts of the reply. */
  usage: { prompt_tokens: number; completion_tokens: number; total_tokens: number } | null;
  /** Unix seconds, like all moments. */
  arrived_s: number;
  /** When the scheduler saw the request; known once a choice has ended, like the next ones. */
  queued_s: number | null;
  /** When the request began to run. */
  scheduled_s: number | null;
  /** When the engine had the first token. */
  first_s: number | null;
  /** When the engine had the last token. */
  last_s: number | null;
  /** When the parts of the answer were handed to the connection. */
  sends_s: number[] | null;
  /** Tokens of the prompt that were in the cache. */
  cached_tokens: number | null;
  /** Number of preemptions. */
  preemptions: number | null;
  /** The message of an error. */
  error: string | null;
  /** Whether the error says that no rule answers the request; it names the nearest rule. */
  unmatched: boolean;
  /** Whether the prompt is not in the dataset. */
  dataset_miss: boolean;
  /** The fields of the request that the played version of vLLM ignores, such as `guided_json`. */
  ignored_fields: string[];
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

/** A part of a server for one test: rules and requests with its headers. */
export interface Scope {
  /** Name of the scope. */
  readonly name: string;
  /** The headers of its requests, such as `defaultHeaders` of SDKs. */
  readonly headers: { [name: string]: string };
  /** The `baseURL` of SDKs; ends with `/v1`. */
  readonly baseURL: string;
  /** The `baseURL` of the Anthropic SDK. */
  readonly anthropicBaseURL: string;
  /** Adds a rule for requests of the scope. */
  reply(rule: Omit<RuleOptions, "scope">): Promise<Reply>;
  /** Answers requests of the scope one after another. */
  replies(
    replies: SequenceReply[],
    options?: { when?: { [condition: string]: Json } },
  ): Promise<Reply>;
  /** Fetches the requests of the scope. */
  requests(filter?: Omit<RequestFilter, "scope">): Promise<JournalEntry[]>;
  /** As `verify` of the server, for the scope. */
  verify(expected?: Omit<RequestFilter, "scope"> & { times?: number }): Promise<JournalEntry[]>;
  /** The requests of the scope that no rule has answered; they are then expected. */
  unmatched(): Promise<JournalEntry[]>;
}

export interface Server {
  /** Address of the server. */
  readonly url: string;
  /** The `baseURL` of SDKs; ends with `/v1`. */
  readonly baseURL: string;
  /** The `baseURL` of the Anthropic SDK, which adds /v1 itself. */
  readonly anthropicBaseURL: string;
  /** The last 64 KiB of the output of a started server. */
  readonly log: string;
  /** Adds a rule after earlier ones and before those of files. Rejects an invalid rule with ControlError. */
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
  /** Fetches the received requests, from the oldest to the newest. */
  requests(filter?: RequestFilter): Promise<JournalEntry[]>;
  /** Fetches the matching requests. Rejects with AssertionError unless there are `times`, or at least one. */
  verify(expected?: RequestFilter & { times?: number }): Promise<JournalEntry[]>;
  /** Removes replies, requests and the verdict on clients. Then rejects as `assertMatched` does. */
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
