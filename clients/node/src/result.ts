/** What a call was answered: the figures of the decision, and the HTTP headers they make. */

import type { Word } from "./connection.js";
import { type HeaderOptions, httpHeaders, type Problem, policies, quotaExceeded } from "./http.js";
import type { FixedRule, Rule, SlidingRule, Window } from "./rules.js";

/**
 * The figures of one window after the call. Times in milliseconds are exact and relative to {@link atMs}; those in
 * seconds are rounded up, so that a client that waits as long as it is told is let in.
 */
export class WindowResult {
  /** Whether the request fitted. */
  readonly allowed: boolean;
  /** Units that fit into the window. */
  readonly limit: number;
  /** Units taken. */
  readonly used: number;
  /** Units left, never below 0. */
  readonly remaining: number;
  /** Milliseconds until the same call will be allowed: 0 if it was, `undefined` if it never will be. */
  readonly retryAfterMs: number | undefined;
  /** Milliseconds until at least one unit more than now is free: 0 if nothing is used, `undefined` if never. */
  readonly nextAfterMs: number | undefined;
  /** Milliseconds until the whole quota is free. */
  readonly resetAfterMs: number | undefined;
  /** The window's length in milliseconds. */
  readonly windowMs: number;
  /** The server's unix time in milliseconds at which the call was decided. */
  readonly atMs: number;

  /** @internal */
  constructor(figures: Figures) {
    this.allowed = figures.allowed === 1;
    this.limit = figures.limit;
    this.used = figures.used;
    this.remaining = figures.remaining;
    this.retryAfterMs = wait(figures["retry-after-ms"]);
    this.nextAfterMs = wait(figures["next-after-ms"]);
    this.resetAfterMs = wait(figures["reset-after-ms"]);
    this.windowMs = figures["window-ms"];
    this.atMs = figures["at-ms"];
  }

  /** Seconds until the same call will be allowed, rounded up: 0 if it was, `undefined` if it never will be. */
  get retryAfter(): number | undefined {
    return upToSeconds(this.retryAfterMs);
  }

  /** Seconds until at least one unit more than now is free, rounded up: 0 if nothing is used, `undefined` if never. */
  get nextAfter(): number | undefined {
    return upToSeconds(this.nextAfterMs);
  }

  /** Seconds until the whole quota is free, rounded up. */
  get resetAfter(): number | undefined {
    return upToSeconds(this.resetAfterMs);
  }
}

/** The decision on a call. With several windows its figures are those of the one that binds. */
export class Result extends WindowResult {
  /**
   * The figures of each window, shortest first. `allowed` there says whether that window by itself had room. Of a forced
   * call with several windows, the one that binds alone.
   */
  readonly each: readonly WindowResult[];
  /** Who holds the lease that was asked for. */
  readonly holder: Word | undefined;
  readonly #rule: Rule;

  /** @internal */
  constructor(rule: Rule, figures: Figures, each: readonly WindowResult[], holder?: Word) {
    super(figures);
    this.#rule = rule;
    this.each = each;
    this.holder = holder;
  }

  /**
   * `RateLimit` and `RateLimit-Policy` after draft-ietf-httpapi-ratelimit-headers, with one policy a window, and
   * `Retry-After` if the request was denied and will fit one day.
   */
  headers(options: HeaderOptions = {}): Record<string, string> {
    return httpHeaders(this, this.#policies(), this, options);
  }

  /** The body of a denial, an `application/problem+json` object of type `quota-exceeded`; `undefined` if allowed. */
  problem(): Problem | undefined {
    return this.allowed ? undefined : quotaExceeded(this.#policies());
  }

  #policies() {
    return policies([{ rule: this.#rule, states: this.each }]);
  }
}

/**
 * The decision on several keys; see {@link Limiter.all}. `allowed`, `remaining` and the wait until the same call will be
 * allowed are those of the whole call, the other figures those of the rule that binds.
 */
export class AllResult extends WindowResult {
  /** The position, from 0, of the rule that binds. */
  readonly index: number;
  /** The figures of each rule's binding window, in the order of the rules. `allowed` there is that rule's own answer. */
  readonly each: readonly WindowResult[];
  readonly #rules: readonly Rule[];

  /** @internal */
  constructor(rules: readonly Rule[], figures: Figures, index: number, each: readonly WindowResult[]) {
    super(figures);
    this.index = index;
    this.each = each;
    this.#rules = rules;
  }

  /** As {@link Result.headers}, with the policies of all rules. */
  headers(options: HeaderOptions = {}): Record<string, string> {
    return httpHeaders(this, this.#policies(), this, options);
  }

  /** As {@link Result.problem}. */
  problem(): Problem | undefined {
    // A forced rule never denies, also where it has no room.
    const denying = this.#policies().filter(({ rule }) => !("force" in rule && rule.force));
    return this.allowed ? undefined : quotaExceeded(denying);
  }

  #policies() {
    return policies(this.#rules.map((rule, i) => ({ rule, states: this.each.slice(i, i + 1) })));
  }
}

/** What a refund gave back. */
export interface Refund {
  /** Units given back. */
  readonly refunded: number;
  /** Units still taken in the shortest window. */
  readonly used: number;
  /** Seconds: the window of a sliding rule, the counter's remaining life of a fixed one. */
  readonly ttl: number;
}

const FIELDS = [
  "allowed",
  "limit",
  "used",
  "remaining",
  "retry-after-ms",
  "next-after-ms",
  "reset-after-ms",
  "window-ms",
  "at-ms",
] as const;

/** The server's own words for the figures. */
export type Figures = Record<(typeof FIELDS)[number], number>;

/** Reads a FULL reply: a flat array over RESP2, a map in whatever form the client gives it over RESP3. */
export function readFigures(reply: unknown): Figures {
  if (Array.isArray(reply) && isInOrder(reply)) {
    return {
      allowed: reply[1],
      limit: reply[3],
      used: reply[5],
      remaining: reply[7],
      "retry-after-ms": reply[9],
      "next-after-ms": reply[11],
      "reset-after-ms": reply[13],
      "window-ms": reply[15],
      "at-ms": reply[17],
    };
  }
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
  return figures;
}

/** Whether a flat reply has these fields in this order and numbers behind them, as nearly every one has. */
function isInOrder(reply: readonly unknown[]): boolean {
  return FIELDS.every((field, i) => reply[2 * i] === field && Number.isInteger(reply[2 * i + 1]));
}

/** An integer of a reply. A client may give it as text or as a BigInt. */
export function readInteger(value: unknown, what: string): number {
  const number = typeof value === "string" && /^-?[0-9]+$/.test(value) ? Number(value) : value;
  if (typeof number === "bigint") return Number(number);
  if (typeof number === "number" && Number.isInteger(number)) return number;
  throw new UnreadableReplyError(value, what);
}

/** The first integers of a reply. */
export function readIntegers(reply: unknown, count: number): number[] {
  if (!Array.isArray(reply) || reply.length < count)
    throw new UnreadableReplyError(reply, `a list of ${count} integers`);
  for (let i = 0; i < count; i++) {
    if (!Number.isSafeInteger(reply[i])) return reply.slice(0, count).map((value) => readInteger(value, "an integer"));
  }
  return reply;
}

/** The figures of the windows of a reply to a rule. */
export function readWindows(rule: Rule, forced: boolean, reply: unknown): Figures[] {
  if (!repliesEach(rule, forced)) return [readFigures(reply)];
  const { length } = (rule as SlidingRule | FixedRule).windows;
  if (!Array.isArray(reply) || reply.length !== length)
    throw new UnreadableReplyError(reply, `a list of ${length} maps`);
  return reply.map(readFigures);
}

/**
 * The figures of the short reply to a rule with one window: allowed, a count, and seconds. A sliding window replies how
 * many units there were before the call, and the window, after which it is free again if it has just counted; of a denial
 * it does not say how long to wait. A counter replies what it has now, and the seconds that it has left, rounded to the
 * nearest.
 */
export function readShort({ kind, windows }: SlidingRule | FixedRule, cost: number, reply: unknown): Figures {
  const [allowed, count, seconds] = readIntegers(reply, 3) as [number, number, number];
  const { limit, windowMs } = windows[0] as Window;
  const used = kind === "sliding" && allowed === 1 ? count + cost : count;
  // Never less than what is left, which is more than the window only for a counter that was set by hand.
  const rounded = seconds * 1000 + (seconds * 1000 < windowMs ? 500 : 0);
  const left = kind === "sliding" ? windowMs : rounded;
  return {
    allowed,
    limit,
    used,
    remaining: Math.max(0, limit - used),
    "retry-after-ms": allowed === 1 ? 0 : left,
    "next-after-ms": left,
    "reset-after-ms": left,
    "window-ms": windowMs,
    "at-ms": Date.now(),
  };
}

/** Whether the call asks for EACH: the server gives it for several windows that are not forced. */
export function repliesEach(rule: Rule, forced: boolean): boolean {
  return (rule.kind === "sliding" || rule.kind === "fixed") && rule.windows.length > 1 && !forced;
}

/** The result of the figures of its windows: the binding one is found as the server finds it. */
export function toResult(rule: Rule, windows: readonly Figures[], holder?: Word): Result {
  const [first] = windows as readonly [Figures];
  if (windows.length === 1) return new Result(rule, first, [new WindowResult(first)], holder);
  const binding = windows.reduce((one, other) => (bindsMore(other, one) ? other : one));
  return new Result(
    rule,
    binding,
    windows.map((figures) => new WindowResult(figures)),
    holder,
  );
}

/** The result of a reply of RL.ALL with FULL. */
export function toAllResult(rules: readonly Rule[], reply: unknown): AllResult {
  const [allowed, index, remaining, wait] = readIntegers(reply, 4) as [number, number, number, number];
  const maps = (reply as unknown[])[4];
  if (!Array.isArray(maps) || maps.length !== rules.length)
    throw new UnreadableReplyError(reply, `${rules.length} maps`);
  const figures = maps.map(readFigures);
  const binding = figures[index];
  if (!binding) throw new UnreadableReplyError(reply, "the index of a rule");
  const each = figures.map((map) => new WindowResult(map));
  return new AllResult(rules, { ...binding, allowed, remaining, "retry-after-ms": wait }, index, each);
}

/** Whether one window binds more than another that is shorter. */
function bindsMore(one: Figures, other: Figures): boolean {
  if (one.allowed !== other.allowed) return one.allowed === 0;
  if (one.allowed === 0) {
    const [wait, otherWait] = [waitOrEver(one["retry-after-ms"]), waitOrEver(other["retry-after-ms"])];
    if (wait !== otherWait) return wait > otherWait;
  }
  return one.limit - one.used < other.limit - other.used;
}

/** A reply that cannot be read is an error, and never a decision. */
class UnreadableReplyError extends TypeError {
  constructor(reply: unknown, expected: string) {
    super(`The server replied ${JSON.stringify(reply) ?? String(reply)}, which is not ${expected}`);
  }
}

function waitOrEver(ms: number): number {
  return ms < 0 ? Number.POSITIVE_INFINITY : ms;
}

function wait(ms: number): number | undefined {
  return ms < 0 ? undefined : ms;
}

function upToSeconds(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : Math.ceil(ms / 1000);
}
