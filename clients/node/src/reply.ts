/** What the server replies, read: the figures of each window. */

import { inspect } from "node:util";
import type { FixedRule, Rule, SlidingRule, Window } from "./rules.js";

/**
 * The figures of one window after the call. Times in milliseconds are exact and relative to {@link atMs}; those in
 * seconds are rounded up, so that a client that waits as long as it is told is let in.
 */
export class WindowResult {
  readonly allowed: boolean;
  /** Units that fit into the window. */
  readonly limit: number;
  readonly used: number;
  /** Units left, never below 0. */
  readonly remaining: number;
  /** Seconds until the same call will be allowed, rounded up: 0 if it was, `undefined` if it never will be. */
  readonly retryAfter: number | undefined;
  /** Seconds until at least one unit more than now is free, rounded up: 0 if nothing is used, `undefined` if never. */
  readonly nextAfter: number | undefined;
  /** Seconds until the whole quota is free, rounded up. */
  readonly resetAfter: number | undefined;
  /** Milliseconds until the same call will be allowed: 0 if it was, `undefined` if it never will be. */
  readonly retryAfterMs: number | undefined;
  /** Milliseconds until at least one unit more than now is free: 0 if nothing is used, `undefined` if never. */
  readonly nextAfterMs: number | undefined;
  /** Milliseconds until the whole quota is free. */
  readonly resetAfterMs: number | undefined;
  readonly windowMs: number;
  /** The server's unix time in milliseconds at which the call was decided; of a turn, when it is. */
  readonly atMs: number;
  /** Milliseconds until the {@link Limiter.turn}, from when the reply came. 0 of every other call. */
  readonly waitMs: number;

  /** @internal */
  constructor(figures: Figures) {
    this.allowed = figures.allowed === 1;
    this.limit = figures.limit;
    this.used = figures.used;
    this.remaining = figures.remaining;
    this.retryAfterMs = wait(figures["retry-after-ms"]);
    this.nextAfterMs = wait(figures["next-after-ms"]);
    this.resetAfterMs = wait(figures["reset-after-ms"]);
    this.retryAfter = upToSeconds(this.retryAfterMs);
    this.nextAfter = upToSeconds(this.nextAfterMs);
    this.resetAfter = upToSeconds(this.resetAfterMs);
    this.windowMs = figures["window-ms"];
    this.atMs = figures["at-ms"];
    this.waitMs = figures["wait-ms"] ?? 0;
  }
}

const TIMES = ["retry-after-ms", "next-after-ms", "reset-after-ms", "window-ms", "at-ms"] as const;
const FIELDS = ["allowed", "limit", "used", "remaining", ...TIMES] as const;

export type Figures = Record<(typeof FIELDS)[number], number> & { readonly "wait-ms"?: number };

/** Reads a FULL reply: a flat array over RESP2, a map in whatever form the client gives it over RESP3. */
export function readFigures(reply: unknown, isTurn = false): Figures {
  const found: Record<string, unknown> = {};
  if (Array.isArray(reply)) {
    for (let i = 0; i + 1 < reply.length; i += 2) found[String(reply[i])] = reply[i + 1];
  } else if (reply instanceof Map) {
    for (const [name, value] of reply) found[String(name)] = value;
  } else if (typeof reply === "object" && reply !== null) {
    Object.assign(found, reply);
  }
  const figures = {} as Figures;
  for (const field of FIELDS) figures[field] = readInteger(found[field], `${field} of a FULL reply`);
  if (!isTurn) return figures;
  const wait = readInteger(found["wait-ms"], "wait-ms of a turn");
  if (wait < 0) throw new UnreadableReplyError(reply, "a turn to come");
  return { ...figures, "wait-ms": wait };
}

/** The figures of a window in which this process has counted, and which lasts for `left` milliseconds more. */
export function counted(rule: Rule, { limit, windowMs }: Window, used: number, left: number, wait: number): Figures {
  return {
    allowed: wait === 0 ? 1 : 0,
    limit,
    used,
    remaining: Math.max(0, limit - used),
    "retry-after-ms": wait,
    "next-after-ms": left,
    "reset-after-ms": left,
    // Of a calendar's window no length is told.
    "window-ms": rule.kind === "calendar" ? 0 : windowMs,
    "at-ms": Date.now(),
  };
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

export function readWindows(rule: Rule, forced: boolean, reply: unknown, isTurn: boolean): Figures[] {
  if (!repliesEach(rule, forced)) return [readFigures(reply, isTurn)];
  const { length } = (rule as SlidingRule | FixedRule).windows;
  if (!Array.isArray(reply) || reply.length !== length)
    throw new UnreadableReplyError(reply, `a list of ${length} maps`);
  return reply.map((map) => readFigures(map, isTurn));
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

function wait(ms: number): number | undefined {
  return ms < 0 ? undefined : ms;
}

function upToSeconds(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : Math.ceil(ms / 1000);
}
