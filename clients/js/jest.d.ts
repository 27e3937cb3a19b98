import type { Server, Settings } from "./index.js";

/** Call it at the top of a test file. The server runs inside of its tests, and is reset after each. */
export function useUnderstudy(settings?: Settings): Server;
