// A server for the tests of one file, with vitest: README.md.

import { afterAll, afterEach, beforeAll } from "vitest";
import { serverOfTests } from "./hooks.js";

/** Call it at the top of a test file; `settings` are those of `start`. A failed test prints its requests. */
export function useUnderstudy(settings = {}) {
  const didFail = (context) => context?.task?.result?.state === "fail";
  return serverOfTests({ beforeAll, afterEach, afterAll, didFail }, settings);
}
