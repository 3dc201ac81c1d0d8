/** What the log says: one line when an outage begins, one when it ends, and one a minute of calls that come late without one. */

import type { UnavailableError } from "./errors.js";
import type { Word } from "./keys.js";
import { NotAskedError, type Server } from "./server.js";

/** An outage is over when a node answers, and the last call that it did not answer is so long ago. */
const CALM_MS = 500;
/** A node that nobody asked for so long has left the cluster. */
const LEFT_MS = 60_000;
const LATE_AGAIN_MS = 60_000;

export class Outage {
  readonly #server: Server;
  readonly #warn: (line: string) => void;
  /** The nodes that did not answer, and when they last did not. */
  readonly #away = new Map<string, number>();
  #lateAt = Number.NEGATIVE_INFINITY;

  constructor(server: Server, warn: (line: string) => void) {
    this.#server = server;
    this.#warn = warn;
  }

  answered(key: Word): void {
    if (this.#away.size === 0) return;
    const [node, now] = [this.#server.nodeOf(key), performance.now()];
    for (const [name, since] of this.#away) {
      // Before the nodes of a cluster are known, they have no names.
      if (now - since > (name === node || name === "" ? CALM_MS : LEFT_MS)) this.#away.delete(name);
    }
    if (this.#away.size === 0) this.#warn("the server is available again");
  }

  failed(key: Word, error: UnavailableError): void {
    const [node, now] = [this.#server.nodeOf(key), performance.now()];
    if (!this.#server.isAway(node)) {
      if (now - this.#lateAt < LATE_AGAIN_MS) return;
      this.#lateAt = now;
      this.#warn(`a call was not answered in time: ${error.message}`);
      return;
    }
    if (this.#away.size === 0) this.#warn(`the server is unavailable: ${error.message}`);
    // What was not sent says nothing new about the node.
    if (!(error instanceof NotAskedError) || !this.#away.has(node)) this.#away.set(node, now);
  }
}
