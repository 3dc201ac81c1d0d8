/**
 * What a call was answered: the figures of the decision, who made it, and what HTTP clients are told of it, after
 * draft-ietf-httpapi-ratelimit-headers-11.
 */

import { seconds } from "./checks.js";
import type { Word } from "./keys.js";
import type { Source } from "./options.js";
import {
  counted,
  type Figures,
  readIntegers,
  readWait,
  readWindow,
  UnreadableReplyError,
  WindowResult,
} from "./reply.js";
import type { Rule, Window } from "./rules.js";
import { isForced, windowsOf } from "./words.js";

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

interface More {
  readonly index?: number;
  readonly holder?: Word | undefined;
}

/** The largest integer of a structured field, RFC 9651. */
const LARGEST = 999_999_999_999_999;

/** The decision on a call. With several windows its figures are those of the one that binds. */
export class Result extends WindowResult {
  /** Who decided. Of {@link Limiter.all} always the server. */
  readonly source: Source;
  /**
   * The figures of each window, shortest first. `allowed` there says whether that window by itself had room. Of a forced
   * call with several windows, the one that binds alone. Of several keys those of each rule's binding window, in the order of
   * the rules: `allowed` there is that rule's own answer.
   */
  readonly each: readonly WindowResult[];
  /**
   * Of several keys, the position, from 0, of the rule that binds: `allowed`, `remaining` and the wait until the same call will
   * be allowed are those of the whole call, the other figures those of this rule.
   */
  readonly index: number;
  /** Who holds the lease that was asked for. */
  readonly holder: Word | undefined;
  readonly #asked: readonly Told[];

  /** @internal */
  constructor(
    figures: Figures,
    source: Source,
    each: readonly WindowResult[],
    asked: readonly Told[],
    { index = 0, holder }: More = {},
  ) {
    super(figures);
    this.source = source;
    this.each = each;
    this.index = index;
    this.holder = holder;
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
export function resultOf(rule: Rule, windows: readonly WindowResult[], source: Source, more?: More): Result {
  return new Result(binding(windows), source, windows, [{ rule, states: windows, denies: true }], more);
}

/** The decision on several keys, of the windows of each rule; of the server's, with what it said of the whole. */
export function resultOfAll(
  demands: readonly { readonly rule: Rule; readonly force?: boolean | undefined }[],
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
  return new Result({ ...(judged[index] as WindowResult), ...whole }, source, each, asked, { index });
}

/** The server's decision on several keys. */
export function readAll(demands: Parameters<typeof resultOfAll>[0], reply: unknown): Result {
  const [allowed, index, remaining, wait] = readIntegers(reply, 4) as [number, number, number, number];
  const maps = (reply as unknown[])[4];
  const count = demands.length;
  if (!Array.isArray(maps) || maps.length !== count) throw new UnreadableReplyError(reply, `${count} maps`);
  if (!(index in maps)) throw new UnreadableReplyError(reply, "the index of a rule");
  const whole = { allowed: allowed === 1, remaining, retryAfterMs: readWait(wait), index };
  const windows = maps.map((map) => [readWindow(map)]);
  return resultOfAll(demands, windows, "server", whole);
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
