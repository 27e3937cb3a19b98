// A container of the image for Testcontainers: README.md.

import { AbstractStartedContainer, GenericContainer, Wait } from "testcontainers";
import { connect, flags } from "./index.js";

const PORT = 8000;

/** A container with a server; `settings` are those of the command line, `maxNumSeqs` for `--max-num-seqs`. */
export class UnderstudyContainer extends GenericContainer {
  #adminKey;

  constructor(image = "understudy", settings = {}) {
    super(image);
    this.#adminKey = settings.adminKey;
    this.withCommand(containerCommand(settings))
      .withExposedPorts(PORT)
      .withWaitStrategy(Wait.forHttp("/health", PORT))
      .withStartupTimeout(60_000);
  }

  async start() {
    return new StartedUnderstudyContainer(await super.start(), this.#adminKey);
  }
}

export class StartedUnderstudyContainer extends AbstractStartedContainer {
  constructor(started, adminKey) {
    super(started);
    const url = `http://${started.getHost()}:${started.getMappedPort(PORT)}`;
    this.server = connect(url, { adminKey });
    this.baseURL = this.server.baseURL;
  }
}

/** The command of a container with these settings. */
export function containerCommand(settings) {
  for (const name of ["host", "port", "dataParallelSize"])
    if (settings[name] !== undefined)
      throw new Error(`${name} cannot be set: the container exposes port ${PORT}`);
  const defaults = { host: "0.0.0.0", port: PORT, seed: 7, journal: 1000 };
  return ["understudy", ...flags({ ...defaults, ...settings })];
}
