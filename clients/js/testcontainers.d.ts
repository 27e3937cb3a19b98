import { AbstractStartedContainer, GenericContainer } from "testcontainers";
import type { Server, Settings } from "./index.js";

type ContainerSettings = Omit<Settings, "command" | "cwd" | "port">;

/** A container with a server, of the image that `make image` builds. */
export class UnderstudyContainer extends GenericContainer {
  constructor(image?: string, settings?: ContainerSettings);
  start(): Promise<StartedUnderstudyContainer>;
}

export class StartedUnderstudyContainer extends AbstractStartedContainer {
  readonly server: Server;
  /** The `baseURL` of SDKs; ends with `/v1`. */
  readonly baseURL: string;
}

/** The command of a container with these settings. */
export function containerCommand(settings: ContainerSettings): string[];
