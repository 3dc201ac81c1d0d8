/**
 * What a call was answered: the figures of the reply, the decision, who made it, and what HTTP clients are told of it, after
 * draft-ietf-httpapi-ratelimit-headers-11.
 */

import { inspect } from "node:util";
import { seconds } from "./checks.js";
import type { Word } from "./keys.js";
import type { Source } from "./options.js";
import type { Rule, Window } from "./rules.js";
import type { Command } from "./server.js";
import { type Asked, isForced, repliesEach, windowsOf } from "./words.js";

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
    const [retryAfter, nextAfter, resetAfter] = [retryAfterMs, nextAfterMs, resetAfterMs].map((ms) =>
      ms === undefined ? undefined : Math.ceil(ms / 1000),
    );
    Object.assign(this, figures, { retryAfter, nextAfter, resetAfter });
  }
}

/** What the other figures follow from. */
export type Figures = Omit<WindowResult, "retryAfter" | "nextAfter" | "resetAfter">;

/** Reads a FULL reply: a flat array over RESP2, a map in whatever form the client gives it over RESP3. */
function readWindow(reply: unknown, isTurn = false): WindowResult {
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
function readWait(ms: number): number | undefined {
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

function readMaps(reply: unknown, count: number, isTurn: boolean): WindowResult[] {
  if (Array.isArray(reply) && reply.length === count) return reply.map((map) => readWindow(map, isTurn));
  throw new UnreadableReplyError(reply, `a list of ${count} maps`);
}

/** A reply that cannot be read is an error, and never a decision. */
export class UnreadableReplyError extends TypeError {
  constructor(reply: unknown, expected: string) {
    const shown = inspect(reply, { maxArrayLength: 5, maxStringLength: 100, breakLength: Number.POSITIVE_INFINITY });
    super(`The server replied ${shown.slice(0, 500)}, which is not ${expected}`);
  }
}

/** An `application/problem+json` object, RFC 9457. */
export interface Problem {
  readonly type: "https://iana.org/assignments/http-problem-types#quota-exceeded";
  readonly title: string;
  readonly status: 429;
  /** The names of the policies that denied. */
  readonly "violated-policies": readonly string[];
}

/** A rule, the windows that a reply told of, and whether the call was denied where one of them has no room. */
interface Told {
  readonly rule: Rule;
  readonly states: readonly WindowResult[];
  readonly denies: boolean;
}

type Made = Pick<Result, "source" | "each"> &
  Partial<Pick<Result, "index" | "holder">> & { readonly asked: readonly Told[] };

/** The largest integer of a structured field, RFC 9651. */
const LARGEST = 999_999_999_999_999;

/** The decision on a call. With several windows its figures are those of the one that binds. */
export class Result extends WindowResult {
  /** Who decided. Of {@link Limiter.all} always the server. */
  declare readonly source: Source;
  /**
   * The figures of each window, shortest first. `allowed` there says whether that window by itself had room. Of a forced
   * call with several windows, the one that binds alone. Of several keys those of each rule's binding window, in the order of
   * the rules: `allowed` there is that rule's own answer.
   */
  declare readonly each: readonly WindowResult[];
  /**
   * Of several keys, the position, from 0, of the rule that binds: `allowed`, `remaining` and the wait until the same call will
   * be allowed are those of the whole call, the other figures those of this rule.
   */
  declare readonly index: number;
  /** Who holds the lease that was asked for. */
  declare readonly holder: Word | undefined;
  readonly #asked: readonly Told[];

  /** @internal */
  constructor(figures: Figures, { source, each, asked, index = 0, holder }: Made) {
    super(figures);
    Object.assign(this, { source, each, index, holder });
    this.#asked = asked;
  }

  /** The names of the policies that the request did not fit into. */
  get violated(): readonly string[] {
    return this.problem()?.["violated-policies"] ?? [];
  }

  /**
   * `RateLimit` and `RateLimit-Policy` with one policy a window, and `Retry-After` if the request was denied and will fit one
   * day. None where nobody decided.
   */
  headers(): Record<string, string> {
    return this.told().headers;
  }

  /** The body of a denial, an `application/problem+json` object of type `quota-exceeded`; `undefined` if allowed. */
  problem(): Problem | undefined {
    return this.told().problem;
  }

  /** What a response that tells of policies with the names `others` says of this one, and all their names. @internal */
  told(others: ReadonlySet<string> = new Set()) {
    const names = new Set(others);
    const policies = this.#asked.flatMap(({ rule, states, denies }) => {
      const windows = "windows" in rule ? rule.windows : states.slice(0, 1);
      return windows.map(({ limit, windowMs }) => {
        const window = rule.kind === "calendar" ? rule.period : `${seconds(windowMs)}s`;
        const base = rule.name === undefined ? window : windows.length === 1 ? rule.name : `${rule.name}-${window}`;
        let name = base;
        for (let i = 2; names.has(name); i++) name = `${base}-${i}`;
        names.add(name);
        // None is known of those of a forced call, or of `all`, that do not bind.
        const state = states.find((state) => state.windowMs === windowMs);
        return { name, limit, windowMs, rule, state, violated: denies && state?.allowed === false };
      });
    });
    const wait = this.allowed ? undefined : this.retryAfter;
    const headers: Record<string, string> = {};
    if (this.source !== "open") {
      const states = policies.flatMap(({ name, state }) => (state ? [limitItem(name, state, wait)] : []));
      headers["RateLimit-Policy"] = policies.map(policyItem).join(", ");
      headers.RateLimit = states.join(", ");
      if (wait !== undefined) headers["Retry-After"] = String(wait);
    }
    const problem: Problem = {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Request cannot be satisfied as assigned quota has been exceeded",
      status: 429,
      "violated-policies": policies.flatMap(({ name, violated }) => (violated ? [name] : [])),
    };
    return { names, headers, problem: this.allowed ? undefined : problem };
  }
}

function policyItem({ name, limit, windowMs, rule }: Window & { readonly name: string; readonly rule: Rule }): string {
  let text = `${quoted(name)};q=${Math.min(limit, LARGEST)}`;
  if (rule.unit !== undefined && rule.unit !== "requests") text += `;qu=${quoted(rule.unit)}`;
  // A lease is no window, the length of a calendar's differs, and w takes whole seconds only.
  if (rule.kind !== "lease" && rule.kind !== "calendar" && windowMs % 1000 === 0) text += `;w=${windowMs / 1000}`;
  return text;
}

/** `t` is not sent beyond Retry-After, which a client would then wait for in vain. */
function limitItem(name: string, { remaining, nextAfter }: WindowResult, retryAfter: number | undefined): string {
  const text = `${quoted(name)};r=${Math.min(remaining, LARGEST)}`;
  return !nextAfter || nextAfter > (retryAfter ?? nextAfter) ? text : `${text};t=${nextAfter}`;
}

function quoted(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}

export interface Refund {
  readonly refunded: number;
  /** Units still taken in the shortest window. */
  readonly used: number;
  /** Seconds: the window of a sliding rule, the counter's remaining life of a fixed one. */
  readonly ttl: number;
}

/** The decision on one key. */
export function resultOf(rule: Rule, each: readonly WindowResult[], source: Source, more: Partial<Made> = {}): Result {
  return new Result(binding(each), { source, each, asked: [{ rule, states: each, denies: true }], ...more });
}

/** The decision on several keys, of the windows of each rule; of the server's, with what it said of the whole. */
export function resultOfAll(
  demands: readonly Asked[],
  windows: readonly (readonly WindowResult[])[],
  source: Source,
  said: Partial<Figures> & { readonly index?: number } = {},
): Result {
  const each = windows.map(binding);
  // A forced rule never denies, also where it has no room.
  const asked = demands.map(({ rule, force }, i) => {
    return { rule, states: each.slice(i, i + 1), denies: !isForced(rule, force) };
  });
  const judged = each.map((one, i) => (asked[i]?.denies ? one : { ...one, allowed: true, retryAfterMs: 0 }));
  const { index = judged.indexOf(binding(judged)), ...whole } = said;
  return new Result({ ...(judged[index] as WindowResult), ...whole }, { source, each, asked, index });
}

/** The server's decision. */
export function readResult(command: Command, asked: readonly Asked[], reply: unknown, isTurn: boolean): Result {
  const [one] = asked as readonly [Asked];
  if (command !== "all") {
    const { rule, holder } = one;
    const windows = repliesEach(one) ? readMaps(reply, windowsOf(rule).length, isTurn) : [readWindow(reply, isTurn)];
    return resultOf(rule, windows, "server", rule.kind === "lease" ? { holder: holder ?? rule.holder } : {});
  }
  const [allowed, index, remaining, wait] = readIntegers(reply, 4) as [number, number, number, number];
  const each = readMaps((reply as unknown[])[4], asked.length, false);
  if (!(index in each)) throw new UnreadableReplyError(reply, "the index of a rule");
  const whole = { allowed: allowed === 1, remaining, retryAfterMs: readWait(wait), index };
  return resultOfAll(
    asked,
    each.map((window) => [window]),
    "server",
    whole,
  );
}

/** The windows of the policy `open`: nothing is used. */
export function unlimited(rule: Rule): WindowResult[] {
  return windowsOf(rule).map((window) => counted(rule, window, 0, 0, 0));
}

/** The window that binds, found as the server finds it. */
function binding(windows: readonly WindowResult[]): WindowResult {
  return windows.reduce((one, other) => (bindsMore(other, one) ? other : one));
}

/** Whether one window binds more than another that is shorter. One that has room is not waited for. */
function bindsMore(one: WindowResult, other: WindowResult): boolean {
  const [wait = 0, otherWait = 0] = [one, other].map(({ retryAfterMs = Number.POSITIVE_INFINITY }) => retryAfterMs);
  return wait === otherWait ? one.limit - one.used < other.limit - other.used : wait > otherWait;
}

/** A lease or a reservation was asked for and denied. */
export class DeniedError extends Error {
  override readonly name = "DeniedError";

  constructor(readonly result: Result) {
    const wait = result.retryAfter;
    super(wait === undefined ? "Denied: it never fits" : `Denied: retry after ${wait} s`);
  }
}
