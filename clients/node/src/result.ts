/** What a call was answered: the figures of the decision, and the HTTP headers they make. */

import { type HeaderOptions, httpHeaders, type Problem, quotaExceeded } from "./http.js";
import { policyName, type Rule } from "./rules.js";

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
  /** The policy's name in HTTP headers. */
  readonly policy: string;
  /** What is counted, if the rule says so. */
  readonly unit: string | undefined;

  /** @internal */
  constructor(figures: Figures, policy: string, unit: string | undefined) {
    this.allowed = figures.allowed === 1;
    this.limit = figures.limit;
    this.used = figures.used;
    this.remaining = figures.remaining;
    this.retryAfterMs = wait(figures["retry-after-ms"]);
    this.nextAfterMs = wait(figures["next-after-ms"]);
    this.resetAfterMs = wait(figures["reset-after-ms"]);
    this.windowMs = figures["window-ms"];
    this.atMs = figures["at-ms"];
    this.policy = policy;
    this.unit = unit;
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
  /** The figures of each window, shortest first. `allowed` there says whether that window by itself had room. */
  readonly each: readonly WindowResult[];

  /** @internal */
  constructor(figures: Figures, each: readonly WindowResult[], binding: WindowResult) {
    super(figures, binding.policy, binding.unit);
    this.each = each;
  }

  /**
   * `RateLimit` and `RateLimit-Policy` after draft-ietf-httpapi-ratelimit-headers, with one policy a window, and
   * `Retry-After` if the request was denied and will fit one day.
   */
  headers(options: HeaderOptions = {}): Record<string, string> {
    return httpHeaders(this, this.each, this, options);
  }

  /** The body of a denial: an `application/problem+json` object of type `quota-exceeded`. */
  problem(): Problem {
    return quotaExceeded(this.each);
  }
}

/** The decision on several keys; see {@link RateLimiter.all}. */
export class AllResult {
  /** Whether every rule had room. If not, nothing was consumed anywhere. */
  readonly allowed: boolean;
  /** The position, from 0, of the rule that binds. */
  readonly index: number;
  /** Units left by the rule that binds. */
  readonly remaining: number;
  /** Milliseconds until the same call will be allowed: 0 if it was, `undefined` if it never will be. */
  readonly retryAfterMs: number | undefined;
  /** The figures of each rule's binding window, in the order of the rules. `allowed` there is that rule's own answer. */
  readonly each: readonly WindowResult[];

  /** @internal */
  constructor(allowed: boolean, index: number, remaining: number, retryAfterMs: number, each: readonly WindowResult[]) {
    this.allowed = allowed;
    this.index = index;
    this.remaining = remaining;
    this.retryAfterMs = wait(retryAfterMs);
    this.each = each;
  }

  /** Seconds until the same call will be allowed, rounded up: 0 if it was, `undefined` if it never will be. */
  get retryAfter(): number | undefined {
    return upToSeconds(this.retryAfterMs);
  }

  /** As {@link Result.headers}, with one policy a rule. */
  headers(options: HeaderOptions = {}): Record<string, string> {
    return httpHeaders(this, this.each, this.each[this.index], options);
  }

  /** As {@link Result.problem}. */
  problem(): Problem {
    return quotaExceeded(this.each);
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
  for (const field of FIELDS) {
    const value = Number(found[field]);
    if (!Number.isFinite(value)) throw new TypeError(`a FULL reply without ${field}`);
    figures[field] = value;
  }
  return figures;
}

/** Whether a flat reply has these fields in this order and numbers behind them, as nearly every one has. */
function isInOrder(reply: readonly unknown[]): boolean {
  return FIELDS.every((field, i) => reply[2 * i] === field && typeof reply[2 * i + 1] === "number");
}

/** The result of a FULL reply. */
export function fromFull(rule: Rule, reply: unknown): Result {
  const figures = readFigures(reply);
  const only = new WindowResult(figures, policyName(rule), rule.unit);
  return new Result(figures, [only], only);
}

/** The result of an EACH reply: the binding window is found as the server finds it. */
export function fromEach(rule: Rule, reply: unknown): Result {
  if (!Array.isArray(reply)) throw new TypeError(`not an EACH reply: ${String(reply)}`);
  const maps = reply.map(readFigures);
  const windows = maps.map((map, i) => new WindowResult(map, policyName(rule, i, maps.length), rule.unit));
  let binding = 0;
  for (let i = 1; i < maps.length; i++) {
    if (bindsMore(maps[i] as Figures, maps[binding] as Figures)) binding = i;
  }
  const figures = maps[binding];
  const window = windows[binding];
  if (!figures || !window) throw new TypeError("an empty EACH reply");
  return new Result(figures, windows, window);
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

function waitOrEver(ms: number): number {
  return ms < 0 ? Number.POSITIVE_INFINITY : ms;
}

function wait(ms: number): number | undefined {
  return ms < 0 ? undefined : ms;
}

function upToSeconds(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : Math.ceil(ms / 1000);
}
