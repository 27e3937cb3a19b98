// A server for the tests of one file, with jest: README.md.

import { serverOfTests } from "./hooks.js";

/** Call it at the top of a test file; `settings` are those of `start`. */
export function useUnderstudy(settings = {}) {
  const { beforeAll, afterEach, afterAll } = globalThis;
  if (beforeAll === undefined)
    throw new Error("useUnderstudy needs the globals of jest: injectGlobals must not be false");
  // Without a parameter, because jest calls a hook that has one with a callback.
  const afterEachTest = (hook) => afterEach(() => hook());
  return serverOfTests({ beforeAll, afterEach: afterEachTest, afterAll }, settings);
}
