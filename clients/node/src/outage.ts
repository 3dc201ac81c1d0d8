/** What the log says: one line when an outage begins, one when it ends, and one a minute of calls that come late without one. */

import type { UnavailableError } from "./errors.js";
import type { Word } from "./keys.js";
import { NotAskedError, type Server } from "./server.js";

/** An outage is over when all nodes answer, and the last call that was not answered is so long ago. */
const CALM_MS = 500;
const LATE_AGAIN_MS = 60_000;

export class Outage {
  /** When a call was not answered last, in an outage. */
  #failedAt: number | undefined;
  #lateAt = Number.NEGATIVE_INFINITY;

  constructor(
    private readonly server: Server,
    private readonly warn: (line: string) => void,
  ) {}

  answered(): void {
    if (this.#failedAt === undefined || performance.now() - this.#failedAt < CALM_MS || this.server.isAway()) return;
    this.#failedAt = undefined;
    this.warn("the server is available again");
  }

  failed(key: Word, error: UnavailableError): void {
    const now = performance.now();
    // A connection that breaks has a cause, and what comes late has none.
    if (error.cause !== undefined || this.server.isAway(key)) {
      if (this.#failedAt === undefined) this.warn(`the server is unavailable: ${error.message}`);
      // What was not sent says nothing new.
      if (!(error instanceof NotAskedError) || this.#failedAt === undefined) this.#failedAt = now;
    } else if (now - this.#lateAt > LATE_AGAIN_MS) {
      this.#lateAt = now;
      this.warn(`a call was not answered in time: ${error.message}`);
    }
  }
}
