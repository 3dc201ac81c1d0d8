/** What the server replies, read: the figures of each window. */

import { inspect } from "node:util";
import type { FixedRule, Rule, SlidingRule, Window } from "./rules.js";

/**
 * The figures of one window after the call. Times in milliseconds are exact and relative to {@link atMs}; those in
 * seconds are rounded up, so that a client that waits as long as it is told is let in.
 */
export class WindowResult {
  declare readonly allowed: boolean;
  /** Units that fit into the window. */
  declare readonly limit: number;
  declare readonly used: number;
  /** Units left, never below 0. */
  declare readonly remaining: number;
  /** Seconds until the same call will be allowed, rounded up: 0 if it was, `undefined` if it never will be. */
  declare readonly retryAfter: number | undefined;
  /** Seconds until at least one unit more than now is free, rounded up: 0 if nothing is used, `undefined` if never. */
  declare readonly nextAfter: number | undefined;
  /** Seconds until the whole quota is free, rounded up. */
  declare readonly resetAfter: number | undefined;
  /** Milliseconds until the same call will be allowed: 0 if it was, `undefined` if it never will be. */
  declare readonly retryAfterMs: number | undefined;
  /** Milliseconds until at least one unit more than now is free: 0 if nothing is used, `undefined` if never. */
  declare readonly nextAfterMs: number | undefined;
  /** Milliseconds until the whole quota is free. */
  declare readonly resetAfterMs: number | undefined;
  declare readonly windowMs: number;
  /** The server's unix time in milliseconds at which the call was decided; of a turn, when it is. */
  declare readonly atMs: number;
  /** Milliseconds until the {@link Limiter.turn}, from when the reply came. 0 of every other call. */
  declare readonly waitMs: number;

  /** @internal */
  constructor(figures: Figures) {
    const { retryAfterMs, nextAfterMs, resetAfterMs } = figures;
    const [retryAfter, nextAfter, resetAfter] = [retryAfterMs, nextAfterMs, resetAfterMs].map(upToSeconds);
    Object.assign(this, figures, { retryAfter, nextAfter, resetAfter });
  }
}

/** What the other figures follow from. */
export type Figures = Omit<WindowResult, "retryAfter" | "nextAfter" | "resetAfter">;

/** Reads a FULL reply: a flat array over RESP2, a map in whatever form the client gives it over RESP3. */
export function readWindow(reply: unknown, isTurn = false): WindowResult {
  const found: Record<string, unknown> = {};
  if (Array.isArray(reply)) {
    for (let i = 0; i + 1 < reply.length; i += 2) found[String(reply[i])] = reply[i + 1];
  } else if (reply instanceof Map) {
    for (const [name, value] of reply) found[String(name)] = value;
  } else if (typeof reply === "object" && reply !== null) {
    Object.assign(found, reply);
  }
  const figure = (name: string) => readInteger(found[name], `${name} of a FULL reply`);
  const waitMs = isTurn ? figure("wait-ms") : 0;
  if (waitMs < 0) throw new UnreadableReplyError(reply, "a turn to come");
  return new WindowResult({
    allowed: figure("allowed") === 1,
    limit: figure("limit"),
    used: figure("used"),
    remaining: figure("remaining"),
    retryAfterMs: readWait(figure("retry-after-ms")),
    nextAfterMs: readWait(figure("next-after-ms")),
    resetAfterMs: readWait(figure("reset-after-ms")),
    windowMs: figure("window-ms"),
    atMs: figure("at-ms"),
    waitMs,
  });
}

/** A window in which this process has counted, and which lasts for `left` milliseconds more. */
export function counted(
  rule: Rule,
  { limit, windowMs }: Window,
  used: number,
  left: number,
  retryAfterMs: number | undefined,
): WindowResult {
  return new WindowResult({
    allowed: retryAfterMs === 0,
    limit,
    used,
    remaining: Math.max(0, limit - used),
    retryAfterMs,
    nextAfterMs: left,
    resetAfterMs: left,
    // Of a calendar's window no length is told.
    windowMs: rule.kind === "calendar" ? 0 : windowMs,
    atMs: Date.now(),
    waitMs: 0,
  });
}

/** What never comes is told as a negative number. */
export function readWait(ms: number): number | undefined {
  return ms < 0 ? undefined : ms;
}

/** An integer of a reply. A client may give it as text or as a BigInt. */
export function readInteger(value: unknown, what: string): number {
  const number = typeof value === "string" && /^-?[0-9]+$/.test(value) ? Number(value) : value;
  if (typeof number === "bigint") return Number(number);
  if (typeof number === "number" && Number.isInteger(number)) return number;
  throw new UnreadableReplyError(value, what);
}

export function readIntegers(reply: unknown, count: number): number[] {
  if (!Array.isArray(reply) || reply.length < count)
    throw new UnreadableReplyError(reply, `a list of ${count} integers`);
  return reply.slice(0, count).map((value) => readInteger(value, "an integer"));
}

export function readWindows(rule: Rule, forced: boolean, reply: unknown, isTurn: boolean): WindowResult[] {
  if (!repliesEach(rule, forced)) return [readWindow(reply, isTurn)];
  const { length } = (rule as SlidingRule | FixedRule).windows;
  if (!Array.isArray(reply) || reply.length !== length)
    throw new UnreadableReplyError(reply, `a list of ${length} maps`);
  return reply.map((map) => readWindow(map, isTurn));
}

/** Whether the call asks for EACH: the server gives it for several windows that are not forced. */
export function repliesEach(rule: Rule, forced: boolean): boolean {
  return (rule.kind === "sliding" || rule.kind === "fixed") && rule.windows.length > 1 && !forced;
}

/** A reply that cannot be read is an error, and never a decision. */
export class UnreadableReplyError extends TypeError {
  constructor(reply: unknown, expected: string) {
    const shown = inspect(reply, { maxArrayLength: 5, maxStringLength: 100, breakLength: Number.POSITIVE_INFINITY });
    super(`The server replied ${shown.slice(0, 500)}, which is not ${expected}`);
  }
}

function upToSeconds(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : Math.ceil(ms / 1000);
}
