/** What a call was answered: the figures of the decision, who made it, and the HTTP headers that they make. */

import {
  type HeaderOptions,
  httpHeaders,
  type Policy,
  type Problem,
  policies,
  quotaExceeded,
  violatedOf,
} from "./http.js";
import type { Word } from "./keys.js";
import { type Figures, lengthless, readFigures, readIntegers, UnreadableReplyError, WindowResult } from "./reply.js";
import { isForced, type Rule, windowsOf } from "./rules.js";

/**
 * Who made a decision: the server; a denial that this process remembers; the limits of this process, while the server was
 * unavailable (`local`); or nobody, because the policy was `open`. Only the server has counted what `server` allowed.
 */
export type Source = "server" | "memory" | "local" | "open";

/** What the decisions on one rule and on several have in common. */
abstract class Answer extends WindowResult {
  /** Who decided. Of {@link Limiter.all} always the server. */
  readonly source: Source;

  /** @internal */
  constructor(figures: Figures, source: Source) {
    super(figures);
    this.source = source;
  }

  /** The policies with what is known of them. `taken` are the names of others that the client is told of. @internal */
  abstract policies(taken?: ReadonlySet<string>): Policy[];

  /** The names of the policies that the request did not fit into. */
  get violated(): readonly string[] {
    return violatedOf(this.policies());
  }

  /**
   * `RateLimit` and `RateLimit-Policy` after draft-ietf-httpapi-ratelimit-headers, with one policy a window, and
   * `Retry-After` if the request was denied and will fit one day. None where nobody decided.
   */
  headers(options: HeaderOptions = {}): Record<string, string> {
    return this.source === "open" ? {} : httpHeaders(this, this.policies(options.taken), this, options);
  }

  /** The body of a denial, an `application/problem+json` object of type `quota-exceeded`; `undefined` if allowed. */
  problem({ taken }: Pick<HeaderOptions, "taken"> = {}): Problem | undefined {
    return this.allowed ? undefined : quotaExceeded(violatedOf(this.policies(taken)));
  }
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
  readonly #rule: Rule;

  /** @internal */
  constructor(rule: Rule, figures: Figures, each: readonly WindowResult[], source: Source, holder: Word | undefined) {
    super(figures, source);
    this.#rule = rule;
    this.each = each;
    this.holder = holder;
  }

  /** @internal */
  policies(taken?: ReadonlySet<string>): Policy[] {
    return policies([{ rule: this.#rule, states: this.each, denies: true }], taken);
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
  readonly #rules: readonly Rule[];

  /** @internal */
  constructor(rules: readonly Rule[], { figures, index, each }: AllFigures, source: Source) {
    super(figures, source);
    this.index = index;
    this.each = each.map((one) => new WindowResult(one));
    this.#rules = rules;
  }

  /** @internal */
  policies(taken?: ReadonlySet<string>): Policy[] {
    // A forced rule never denies, also where it has no room.
    const each = this.#rules.map((rule, i) => {
      return { rule, states: this.each.slice(i, i + 1), denies: !isForced(rule, undefined) };
    });
    return policies(each, taken);
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

/** The result of the figures of its windows: the binding one is found as the server finds it. */
export function toResult(rule: Rule, windows: readonly Figures[], source: Source, holder?: Word): Result {
  const each = windows.map((figures) => new WindowResult(figures));
  return new Result(rule, binding(windows), each, source, holder);
}

/** The figures of a decision on several keys: of the whole, the rule that binds, and those of each rule. */
export interface AllFigures {
  readonly figures: Figures;
  readonly index: number;
  readonly each: readonly Figures[];
}

/** Reads a reply of RL.ALL with FULL. */
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
  const windows = windowsOf(rule).map(({ limit, windowMs }) => ({
    allowed: 1,
    limit,
    used: 0,
    remaining: limit,
    "retry-after-ms": 0,
    "next-after-ms": 0,
    "reset-after-ms": 0,
    "window-ms": windowMs,
    "at-ms": Date.now(),
  }));
  return rule.kind === "calendar" ? windows.map(lengthless) : windows;
}

/** The window that binds, found as the server finds it. */
function binding(windows: readonly Figures[]): Figures {
  return windows.reduce((one, other) => (bindsMore(other, one) ? other : one));
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
