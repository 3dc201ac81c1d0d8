/** The errors that are this package's own, and what the error lines of a server mean. */

import { STATUS_CODES } from "node:http";
import { STATUS } from "./defaults.js";

/** An error that says what an HTTP framework answers where the application says nothing else. */
export abstract class AnsweredError extends Error {
  abstract readonly status: number;

  get statusCode(): number {
    return this.status;
  }

  /** As Hono asks for it. */
  getResponse(): Response {
    return new Response(STATUS_CODES[this.status], { status: this.status });
  }
}

/**
 * The server cannot decide now: no connection, no reply in time, or a reply such as `LOADING` or `READONLY`. `cause` says
 * what it was.
 */
export class UnavailableError extends AnsweredError {
  override readonly name: string = "UnavailableError";
  readonly status = STATUS.unavailable;
}

/**
 * The call was sent, and no reply came: the connection broke, or the deadline passed. It is unknown whether it was
 * counted. It was not sent again, because a call that is sent twice may be counted twice.
 */
export class LostReplyError extends UnavailableError {
  override readonly name = "LostReplyError";
}

/** The server has no `RL.*` commands, and takes neither the function library nor the script. */
export class UnsupportedServerError extends Error {
  override readonly name = "UnsupportedServerError";

  constructor(readonly attempts: readonly Error[]) {
    const said = attempts.map(({ message }) => message).join("; ");
    super(`The server takes the commands in no form that the mode allows: ${said}`);
  }
}

/** A request has no identity, such as an address, to be counted by. */
export class NoIdentityError extends AnsweredError {
  override readonly name = "NoIdentityError";
  readonly status = STATUS.withoutIdentity;

  constructor() {
    super("The request has no identity to be counted by");
  }
}

/**
 * What an error line of the server means. `unavailable`: it cannot decide now, through no fault of the call. `retry`:
 * unavailable, nothing was counted, and the call is sent again until its deadline. `probe`: the server does not have what
 * the mode needs. `permanent`: everything else.
 */
export type Meaning = "unavailable" | "retry" | "probe" | "permanent";

const UNAVAILABLE =
  /^(?:(?:LOADING|BUSY|MASTERDOWN|CLUSTERDOWN|READONLY|OOM|NOREPLICAS|MISCONF|REDIRECT)(?: |$)|ERR max number of clients )/;

/** Servers that are no Redis, and proxies, have words of their own for a command they do not know. */
const MISSING =
  /^ERR (?:.*unknown command|function not found|.*unsupported command|.*command is not (?:available|supported))/i;

/** `cluster`: whether a cluster client raised it, which follows redirections for as long as it can. */
export function meaning(line: string, cluster = false): Meaning {
  if (/^TRYAGAIN(?: |$)/.test(line)) return "retry";
  if (UNAVAILABLE.test(line) || (cluster && /^(?:MOVED|ASK) /.test(line))) return "unavailable";
  return MISSING.test(line) || line.startsWith("NOSCRIPT") ? "probe" : "permanent";
}

/** Whether an error is a reply of the server, whose line is the message, and no failure of the connection. */
export function isReply(error: unknown, like = /^/): error is Error {
  const isLine = error instanceof Error && /^[A-Z][A-Z0-9_]*(?: |$)/.test(error.message) && like.test(error.message);
  return isLine && !(error instanceof TypeError);
}

/** Why, as an error says it; that of a name with several addresses has a code alone. */
export function reason(error: unknown): string {
  if (error instanceof UnavailableError && error.cause !== undefined) return reason(error.cause);
  return error instanceof Error ? error.message || String((error as NodeJS.ErrnoException).code) : String(error);
}

export const isEnded = (error: unknown) => isReply(error, /^ERR the window has ended/);
export const isSettled = (error: unknown) => isReply(error, /^ERR this hold is settled/);
