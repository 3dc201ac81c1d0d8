/** The errors that are this package's own. What the server replies with comes through as the client's error. */

import type { Result } from "./result.js";

/**
 * The connection broke after the call was written and before its reply came. Nobody can know whether it was counted.
 * It was not sent again, because a call that is sent twice may be counted twice.
 */
export class LostReplyError extends Error {
  override readonly name = "LostReplyError";

  constructor(cause: unknown) {
    super("The connection closed before the reply came: the call may have been counted, or not", { cause });
  }
}

/** The server has no `RL.*` commands, and takes neither the function library nor the script. */
export class UnsupportedServerError extends Error {
  override readonly name = "UnsupportedServerError";

  /** What the server said to each attempt, in order. */
  readonly attempts: readonly Error[];

  constructor(attempts: readonly Error[]) {
    super(
      `The server has no RL commands and takes neither the function library nor the script: ${attempts
        .map((error) => error.message)
        .join("; ")}`,
    );
    this.attempts = attempts;
  }
}

/** A lease was asked for and denied. */
export class DeniedError extends Error {
  override readonly name = "DeniedError";

  /** The decision, with the time to wait. */
  readonly result: Result;

  constructor(result: Result) {
    const wait = result.retryAfter;
    super(wait === undefined ? "Denied: it never fits" : `Denied: retry after ${wait} s`);
    this.result = result;
  }
}
