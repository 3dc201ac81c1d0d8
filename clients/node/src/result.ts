/**
 * What a call was answered: the figures of the decision, who made it, and what HTTP clients are told of it, after
 * draft-ietf-httpapi-ratelimit-headers-11.
 */

import { seconds } from "./checks.js";
import type { Word } from "./keys.js";
import type { Source } from "./options.js";
import { counted, type Figures, readFigures, readIntegers, UnreadableReplyError, WindowResult } from "./reply.js";
import type { Rule } from "./rules.js";
import { isForced, windowsOf } from "./words.js";

export interface HeaderOptions {
  /** Also send `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds) of the policy that binds. */
  readonly legacy?: boolean;
  /** The names of other policies that the same response tells of. */
  readonly taken?: ReadonlySet<string> | undefined;
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

/** The largest integer of a structured field, RFC 9651. */
const LARGEST = 999_999_999_999_999;

abstract class Answer extends WindowResult {
  /** Who decided. Of {@link Limiter.all} always the server. */
  readonly source: Source;
  readonly #asked: readonly Told[];

  /** @internal */
  constructor(figures: Figures, source: Source, asked: readonly Told[]) {
    super(figures);
    this.source = source;
    this.#asked = asked;
  }

  /**
   * The windows of the rules, of which none is called as another of the same response. No state is known of those of a forced
   * call, or of `all`, that do not bind. @internal
   */
  policies(others: ReadonlySet<string> = new Set()) {
    const taken = new Set(others);
    return this.#asked.flatMap(({ rule, states, denies }) => {
      const windows = "windows" in rule ? rule.windows : states.slice(0, 1);
      return windows.map(({ limit, windowMs }) => {
        const window = rule.kind === "calendar" ? rule.period : `${seconds(windowMs)}s`;
        const base = rule.name === undefined ? window : windows.length === 1 ? rule.name : `${rule.name}-${window}`;
        let name = base;
        for (let i = 2; taken.has(name); i++) name = `${base}-${i}`;
        taken.add(name);
        const state = states.find((state) => state.windowMs === windowMs);
        return { name, limit, windowMs, rule, state, violated: denies && state?.allowed === false };
      });
    });
  }

  /** The names of the policies that the request did not fit into. */
  get violated(): readonly string[] {
    return this.problem()?.["violated-policies"] ?? [];
  }

  /**
   * `RateLimit` and `RateLimit-Policy` with one policy a window, and `Retry-After` if the request was denied and will fit one
   * day. None where nobody decided.
   */
  headers({ legacy = false, taken }: HeaderOptions = {}): Record<string, string> {
    if (this.source === "open") return {};
    const policies = this.policies(taken);
    const wait = this.allowed ? undefined : this.retryAfter;
    const headers: Record<string, string> = {
      "RateLimit-Policy": policies.map(policyItem).join(", "),
      RateLimit: policies.flatMap(({ name, state }) => (state ? [limitItem(name, state, wait)] : [])).join(", "),
    };
    if (legacy) {
      headers["X-RateLimit-Limit"] = String(this.limit);
      headers["X-RateLimit-Remaining"] = String(this.remaining);
      if (this.resetAfter !== undefined) headers["X-RateLimit-Reset"] = String(this.resetAfter);
    }
    if (wait !== undefined) headers["Retry-After"] = String(wait);
    return headers;
  }

  /** The body of a denial, an `application/problem+json` object of type `quota-exceeded`; `undefined` if allowed. */
  problem({ taken }: Pick<HeaderOptions, "taken"> = {}): Problem | undefined {
    if (this.allowed) return undefined;
    return {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Request cannot be satisfied as assigned quota has been exceeded",
      status: 429,
      "violated-policies": this.policies(taken).flatMap(({ name, violated }) => (violated ? [name] : [])),
    };
  }
}

function policyItem({ name, limit, windowMs, rule }: ReturnType<Answer["policies"]>[number]): string {
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

/** The decision on a call. With several windows its figures are those of the one that binds. */
export class Result extends Answer {
  /**
   * The figures of each window, shortest first. `allowed` there says whether that window by itself had room. Of a forced
   * call with several windows, the one that binds alone.
   */
  readonly each: readonly WindowResult[];
  /** Who holds the lease that was asked for. */
  readonly holder: Word | undefined;

  /** @internal */
  constructor(rule: Rule, windows: readonly Figures[], source: Source, holder?: Word) {
    const each = windows.map((figures) => new WindowResult(figures));
    super(binding(windows), source, [{ rule, states: each, denies: true }]);
    this.each = each;
    this.holder = holder;
  }
}

/**
 * The decision on several keys; see {@link Limiter.all}. `allowed`, `remaining` and the wait until the same call will be
 * allowed are those of the whole call, the other figures those of the rule that binds.
 */
export class AllResult extends Answer {
  /** The position, from 0, of the rule that binds. */
  readonly index: number;
  /** The figures of each rule's binding window, in the order of the rules. `allowed` there is that rule's own answer. */
  readonly each: readonly WindowResult[];

  /** @internal */
  constructor(
    demands: readonly { readonly rule: Rule; readonly force?: boolean }[],
    { figures, index, each }: AllFigures,
    source: Source,
  ) {
    const states = each.map((one) => new WindowResult(one));
    // A forced rule never denies, also where it has no room.
    const asked = demands.map(({ rule, force }, i) => {
      return { rule, states: states.slice(i, i + 1), denies: !isForced(rule, force) };
    });
    super(figures, source, asked);
    this.index = index;
    this.each = states;
  }
}

export interface Refund {
  readonly refunded: number;
  /** Units still taken in the shortest window. */
  readonly used: number;
  /** Seconds: the window of a sliding rule, the counter's remaining life of a fixed one. */
  readonly ttl: number;
}

/** The figures of a decision on several keys: of the whole, the rule that binds, and those of each rule. */
export interface AllFigures {
  readonly figures: Figures;
  readonly index: number;
  readonly each: readonly Figures[];
}

export function readAll(count: number, reply: unknown): AllFigures {
  const [allowed, index, remaining, wait] = readIntegers(reply, 4) as [number, number, number, number];
  const maps = (reply as unknown[])[4];
  if (!Array.isArray(maps) || maps.length !== count) throw new UnreadableReplyError(reply, `${count} maps`);
  const each = maps.map((map) => readFigures(map));
  const binding = each[index];
  if (!binding) throw new UnreadableReplyError(reply, "the index of a rule");
  return { figures: { ...binding, allowed, remaining, "retry-after-ms": wait }, index, each };
}

/** The figures of a decision that this process made, of those of the windows of each rule. */
export function togetherOf(windows: readonly (readonly Figures[])[]): AllFigures {
  const each = windows.map(binding);
  const figures = binding(each);
  return { figures, index: each.indexOf(figures), each };
}

/** The figures of the policy `open`: nothing is used. */
export function unlimited(rule: Rule): Figures[] {
  return windowsOf(rule).map((window) => counted(rule, window, 0, 0, 0));
}

/** The window that binds, found as the server finds it. */
function binding(windows: readonly Figures[]): Figures {
  return windows.reduce((one, other) => (bindsMore(other, one) ? other : one));
}

/** Whether one window binds more than another that is shorter. */
function bindsMore(one: Figures, other: Figures): boolean {
  if (one.allowed !== other.allowed) return one.allowed === 0;
  if (one.allowed === 0) {
    const [wait, otherWait] = [one, other].map(({ "retry-after-ms": ms }) => (ms < 0 ? Number.POSITIVE_INFINITY : ms));
    if (wait !== otherWait) return (wait as number) > (otherWait as number);
  }
  return one.limit - one.used < other.limit - other.used;
}

/** A lease or a reservation was asked for and denied. */
export class DeniedError extends Error {
  override readonly name = "DeniedError";

  readonly result: Result | AllResult;

  constructor(result: Result | AllResult) {
    const wait = result.retryAfter;
    super(wait === undefined ? "Denied: it never fits" : `Denied: retry after ${wait} s`);
    this.result = result;
  }
}
