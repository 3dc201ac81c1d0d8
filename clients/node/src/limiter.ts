/** The limiter: every command of redis-rl as a method. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { type Connection, connect, type RedisClient, type Word } from "./connection.js";
import { DenialCache } from "./denials.js";
import { DeniedError, UnavailableError } from "./errors.js";
import { Lease } from "./lease.js";
import { LocalLimits } from "./local.js";
import { Reservation } from "./reservation.js";
import {
  type AllResult,
  type Figures,
  type Refund,
  type Result,
  readInteger,
  readIntegers,
  readShort,
  readWindows,
  repliesEach,
  toAllResult,
  toResult,
} from "./result.js";
import {
  checked,
  checkedLease,
  type FixedRule,
  keyword,
  type LeaseRule,
  type QuotaRule,
  type Rule,
  type SlidingRule,
  seconds,
  type ThrottleRule,
  type Window,
  words,
} from "./rules.js";
import { type Call, type Mode, type Server, serverOf } from "./server.js";

/** What a limiter does when the server is unavailable: let all through, reject with an error, or count in this process. */
export type WhenUnavailable = "open" | "closed" | "local";

/** Where a limiter writes a line; `console` unless given. */
export interface Logger {
  warn(line: string): void;
}

/** A decision, for {@link LimiterOptions.onDecision}. */
export interface Decision {
  /** The limiter's name. */
  readonly limiter: string;
  readonly command: Call["name"];
  /** The key as the caller gave it; of `all` the first. */
  readonly key: Word;
  readonly rule: Rule;
  readonly allowed: boolean;
  /** What decided: the server, a remembered denial, the limits of this process, or `open` where nothing was asked. */
  readonly by: "server" | "memory" | "local" | "open";
  readonly durationMs: number;
}

/** How many decisions a limiter made, by whom. */
export interface Statistics {
  readonly allowed: number;
  readonly denied: number;
  /** Of the denied, those that a remembered denial decided. */
  readonly deniedFromMemory: number;
  /** Calls that found the server unavailable. */
  readonly unavailable: number;
}

export interface LimiterOptions {
  /** Put in front of every key, behind a `keyPrefix` of the client. */
  readonly prefix?: string;
  /**
   * How the commands are sent: `module` (`RL.*`), `functions` (`FCALL`, the library is loaded where it is missing),
   * `script` (`EVALSHA`), or `auto` for the first of them that the server takes. By default `auto`.
   */
  readonly mode?: Mode | "auto";
  /** For how many milliseconds a call waits for its reply. By default 1000; in the adapters at most 250. */
  readonly timeout?: number;
  /**
   * What `hit` does when the server is unavailable: `closed` rejects with an {@link UnavailableError}, `open` allows,
   * `local` counts in the memory of this process (needs the package rate-limiter-flexible). By default `closed`.
   */
  readonly whenUnavailable?: WhenUnavailable;
  /** Among how many processes `local` divides the limits. By default 1. */
  readonly processes?: number;
  /**
   * How many denials are remembered: for its wait, at most a second, a denied key is denied without asking the server.
   * By default 0; the adapters remember 10,000.
   */
  readonly denyCache?: number;
  /** What log lines and the hook call the limiter. By default the prefix. */
  readonly name?: string;
  readonly logger?: Logger;
  /** Called with every decision. */
  readonly onDecision?: (decision: Decision) => void;
}

/** What a call may say instead of its rule. */
export type HitOptions<R extends Rule = SlidingRule> = R extends LeaseRule
  ? { /** Who asks for the lease. */ readonly holder?: Word }
  : R extends ThrottleRule
    ? { /** Units that this request weighs: an integer from 1. */ readonly cost?: number }
    : {
        /** Units that this request weighs: an integer from 1. */
        readonly cost?: number;
        /** Count the request whether it fits or not. */
        readonly force?: boolean;
      };

export interface PeekOptions {
  /** Units that the request would weigh: an integer from 0. With 0 it shows the state as it is. */
  readonly cost?: number;
  /** Who asks for a lease; somebody new unless given. */
  readonly holder?: Word;
}

export interface RefundOptions {
  /** Units to give back; as many as the rule takes unless given. */
  readonly cost?: number;
  /** Give back only what was taken at this time: a result's `atMs`. */
  readonly atMs?: number;
}

export interface WaitOptions {
  /** Units that this request weighs: an integer from 1. */
  readonly cost?: number;
  /** For how many milliseconds to wait; as long as it takes unless given. */
  readonly timeout?: number;
  /** Ends the wait with its reason. */
  readonly signal?: AbortSignal;
}

export interface HoldOptions {
  /** Who holds the lease; a random UUID unless given. */
  readonly holder?: Word;
  /** Renew the lease by itself, each time a third of it has passed. By default true. */
  readonly renew?: boolean;
  /** For how many milliseconds to wait for a place. By default 0. */
  readonly timeout?: number;
  /** Ends the wait for a place with its reason. */
  readonly signal?: AbortSignal;
}

/** One key and rule of {@link Limiter.all}. */
export interface Demand {
  readonly key: Word;
  readonly rule: Rule;
  /** Units; 0 checks whether there is room and takes none. */
  readonly cost?: number;
  readonly force?: boolean;
  /** Who holds the lease; needed by a lease rule. */
  readonly holder?: Word;
}

/** How an adapter asks, where it differs from the limiter's options. */
export interface Asking {
  readonly cost?: number | undefined;
  readonly force?: boolean | undefined;
  readonly holder?: Word | undefined;
  readonly timeout?: number | undefined;
  readonly whenUnavailable?: WhenUnavailable | undefined;
  readonly denyCache?: number | undefined;
  /**
   * Ask for the short reply, which takes clients half of the time to read, where that is enough to know how long to wait,
   * in whole seconds for a counter. For rules with one window.
   */
  readonly short?: boolean | undefined;
}

/** setTimeout takes no more. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * Limits over one client of node-redis or ioredis, a cluster client too.
 *
 * Calls reject with the server's error if it is permanent (`WRONGTYPE`, `NOPERM`, …), with {@link UnavailableError} if
 * the server cannot decide now, with its subclass {@link LostReplyError} if the call may have been counted, and with
 * {@link UnsupportedServerError} if the server takes the commands in no form.
 */
export class Limiter {
  /** The client behind the limiter. */
  readonly connection: Connection;
  /** What log lines and the hook call the limiter. */
  readonly name: string;
  /** For how many milliseconds a call waits for its reply. */
  readonly timeout: number;
  readonly #prefix: string;
  readonly #server: Server;
  readonly #logger: Logger;
  readonly #onDecision: ((decision: Decision) => void) | undefined;
  readonly #whenUnavailable: WhenUnavailable;
  readonly #processes: number;
  readonly #denyCache: number;
  #denials: DenialCache | undefined;
  #local: LocalLimits | undefined;
  /** Whether the last call found the server unavailable; the log says when that changes. */
  #unavailable = false;
  readonly #statistics = { allowed: 0, denied: 0, deniedFromMemory: 0, unavailable: 0 };

  constructor(client: RedisClient, options: LimiterOptions = {}) {
    const { prefix = "", mode = "auto", timeout = 1000, denyCache = 0, processes = 1 } = options;
    if (typeof prefix !== "string") throw new TypeError(`prefix must be a string, not ${String(prefix)}`);
    this.connection = connect(client);
    this.#server = serverOf(this.connection, mode);
    this.#prefix = prefix;
    this.name = options.name ?? (prefix === "" ? "redis-rl" : prefix);
    this.timeout = positive("timeout", timeout);
    this.#logger = options.logger ?? console;
    this.#onDecision = options.onDecision;
    this.#processes = processes;
    if (!Number.isSafeInteger(denyCache) || denyCache < 0) {
      throw new RangeError(`denyCache must be an integer from 0, not ${denyCache}`);
    }
    this.#denyCache = denyCache;
    this.#whenUnavailable = options.whenUnavailable ?? "closed";
    this.prepare({ whenUnavailable: this.#whenUnavailable });
  }

  /** How the commands are sent; `undefined` before the first call. */
  get mode(): Mode | undefined {
    return this.#server.mode;
  }

  /** How many decisions this limiter made since it was made. */
  get statistics(): Statistics {
    return { ...this.#statistics };
  }

  /**
   * Decides on a request, and counts it if it fits: `RL.SLIDING`, `RL.FIXED` or `RL.THROTTLE`. With a lease rule it is
   * {@link acquire}.
   *
   * ```ts
   * const result = await limiter.hit("user:7", sliding("100/minute"));
   * if (!result.allowed) return reply.code(429).headers(result.headers()).send(result.problem());
   * ```
   */
  hit<R extends Rule>(key: Word, rule: R, options: HitOptions<R> = {} as HitOptions<R>): Promise<Result> {
    return this.ask(key, rule, options as Asking);
  }

  /** Says what {@link hit} would answer, and changes nothing: `RL.PEEK`. */
  async peek(key: Word, rule: Rule, { cost, holder }: PeekOptions = {}): Promise<Result> {
    checked(rule);
    const who = rule.kind === "lease" ? (holder ?? rule.holder ?? randomUUID()) : holder;
    const behind = [keyword(rule), ...words(rule, { cost, holder: who }, 0)];
    // A rule that is forced is peeked at as one that is not: the question is whether there is room.
    return this.#decide("peek", key, rule, rule.kind !== "lease" && rule.kind !== "throttle" && rule.force, behind, {});
  }

  /** Gives back what the same rule took: `RL.REFUND`. What lies in a window that is over is not given back. */
  async refund(key: Word, rule: QuotaRule, { cost, atMs }: RefundOptions = {}): Promise<Refund> {
    if (checked<Rule>(rule).kind === "lease") throw new TypeError("a lease is not refunded but released");
    const at = atMs === undefined ? [] : ["AT", String(atMs)];
    const behind = [keyword(rule), ...words(rule, { cost }, 1), ...at];
    const reply = await this.#giveBack("refund", key, behind);
    const [refunded, used, ttl] = readIntegers(reply, 3) as [number, number, number];
    return { refunded, used, ttl };
  }

  /** Gives a key its whole quota back: `RL.RESET`. A fixed rule is needed to find its counters. Resolves with the number of keys removed. */
  async reset(key: Word, rule?: Rule): Promise<number> {
    const windows = rule !== undefined && checked(rule).kind === "fixed" ? (rule as FixedRule).windows : [];
    const behind = windows.map(({ windowMs }) => seconds(windowMs));
    return readInteger(await this.#giveBack("reset", key, behind), "a number of keys");
  }

  /**
   * Hits until the request is allowed, and sleeps for the exact wait between. Resolves with the denial at once where the
   * wait is longer than the time that is left, and if the request never fits.
   */
  async wait(key: Word, rule: QuotaRule, options: WaitOptions = {}): Promise<Result> {
    const { cost, timeout = Number.POSITIVE_INFINITY, signal } = options;
    const deadline = performance.now() + timeout;
    for (;;) {
      signal?.throwIfAborted();
      const result = await this.ask(key, rule, { cost, denyCache: 0 });
      const wait = result.retryAfterMs;
      if (result.allowed || wait === undefined || wait > deadline - performance.now()) return result;
      await pauseFor(wait, signal);
    }
  }

  /**
   * Takes or renews a lease: `RL.ACQUIRE`. The result has the `holder`, a random UUID where none is given. {@link hold}
   * does the same and renews it.
   */
  async acquire(key: Word, rule: LeaseRule, holder?: Word): Promise<Result> {
    return this.ask(key, checkedLease(rule), { holder: holder ?? rule.holder ?? randomUUID() });
  }

  /** Ends leases: `RL.RELEASE`. Resolves with how many there were; releasing twice is no error. */
  async release(key: Word, ...holders: [Word, ...Word[]]): Promise<number> {
    if (holders.length === 0) throw new TypeError("release needs a holder");
    return readInteger(await this.#giveBack("release", key, holders), "a number of leases");
  }

  /**
   * One decision over 1 to 64 keys: `RL.ALL`. Allowed only if every rule has room; otherwise nothing is consumed
   * anywhere. In a cluster all keys need the same hash tag, as in `{org7}:rpm` and `{org7}:tpm`.
   */
  async all(demands: readonly Demand[]): Promise<AllResult> {
    if (!Array.isArray(demands as unknown))
      throw new TypeError(`all takes an array of { key, rule }, not ${String(demands)}`);
    if (demands.length < 1 || demands.length > 64)
      throw new RangeError(`all takes 1 to 64 keys, not ${demands.length}`);
    const [first] = demands as readonly [Demand, ...Demand[]];
    const start = performance.now();
    const rules = demands.map(({ rule }) => rule);
    const behind = [...demands.flatMap((demand) => [keyword(demand.rule), ...words(demand.rule, demand, 0)]), "FULL"];
    const keys = demands.map(({ key }) => key) as [Word, ...Word[]];
    const result = toAllResult(rules, await this.#ask("all", keys, behind, this.timeout));
    this.#decided("all", first.key, first.rule, result.allowed, "server", start);
    return result;
  }

  /**
   * Takes a lease and renews it until it is released; waits for a place for `timeout` milliseconds. With a function it is
   * held while that runs, and the function gets the lease, whose `signal` says when it is lost.
   *
   * ```ts
   * await limiter.hold("jobs", rule, async (held) => work({ signal: held.signal }));
   * await using held = await limiter.hold("jobs", rule);
   * ```
   *
   * @throws DeniedError if as many leases are held as the rule has.
   */
  async hold(key: Word, rule: LeaseRule, options?: HoldOptions): Promise<Lease>;
  async hold<T>(key: Word, rule: LeaseRule, work: (lease: Lease) => Promise<T> | T, options?: HoldOptions): Promise<T>;
  async hold<T>(
    key: Word,
    rule: LeaseRule,
    work?: ((lease: Lease) => Promise<T> | T) | HoldOptions,
    options: HoldOptions = {},
  ): Promise<T | Lease> {
    if (typeof work !== "function") return this.#held(key, rule, work ?? {});
    const held = await this.#held(key, rule, options);
    try {
      return await work(held);
    } finally {
      await held[Symbol.asyncDispose]();
    }
  }

  /**
   * Takes units whose number is an estimate, such as the tokens of an answer that is not written yet. `settle` of the
   * reservation puts the real number in its place.
   *
   * ```ts
   * const reservation = await limiter.reserve("user:7", sliding("200000/minute"), 1800);
   * if (reservation.allowed) await reservation.settle(answer.usage.totalTokens);
   * ```
   */
  async reserve(key: Word, rule: SlidingRule | FixedRule, units: number): Promise<Reservation> {
    const result = await this.ask(key, rule, { cost: units, force: false });
    return new Reservation(this, key, rule, units, result);
  }

  /** The whole key that a name stands for: with the prefixes of client and limiter. */
  keyOf(name: Word): Word {
    if (typeof name !== "string" && !(name instanceof Uint8Array)) {
      throw new TypeError(`a key is a string or bytes, and is not ${String(name)}`);
    }
    const prefix = this.connection.keyPrefix + this.#prefix;
    if (prefix === "") return name;
    return typeof name === "string" ? prefix + name : Buffer.concat([Buffer.from(prefix), name]);
  }

  /** A request, asked as an adapter asks. @internal */
  async ask(key: Word, rule: Rule, asking: Asking): Promise<Result> {
    const { cost, force } = asking;
    const forced = checked(rule).kind !== "lease" && (force ?? (rule as SlidingRule).force ?? false);
    const name = rule.kind === "lease" ? "acquire" : rule.kind;
    try {
      return await this.#decide(name, key, rule, forced, words(rule, asking, 1), asking);
    } catch (error) {
      const policy = asking.whenUnavailable ?? this.#whenUnavailable;
      if (!(error instanceof UnavailableError) || policy === "closed" || rule.kind === "lease") throw error;
      return this.#withoutServer(policy, key, rule, cost ?? rule.cost ?? 1, forced);
    }
  }

  /** Fails at once where an adapter asks for what cannot be had. @internal */
  prepare({ whenUnavailable }: Asking): void {
    if (whenUnavailable !== undefined && !["open", "closed", "local"].includes(whenUnavailable)) {
      throw new TypeError(
        `whenUnavailable must be "open", "closed" or "local", not ${JSON.stringify(whenUnavailable)}`,
      );
    }
    if (whenUnavailable === "local") this.#local ??= new LocalLimits(this.#processes);
  }

  /** Writes a line with the limiter's name. @internal */
  warn(line: string): void {
    this.#logger.warn(`redis-rl (${this.name}): ${line}`);
  }

  async #decide(
    name: Call["name"],
    key: Word,
    rule: Rule,
    forced: boolean,
    behind: readonly Word[],
    { cost, holder, timeout = this.timeout, denyCache = this.#denyCache, short = false }: Asking,
  ): Promise<Result> {
    const start = performance.now();
    const remembers = denyCache > 0 && !forced && name !== "peek" && name !== "acquire";
    const text = remembers ? asText(key) : "";
    const units = cost ?? (rule as SlidingRule).cost ?? 1;
    let wasDenied = false;
    if (remembers) {
      this.#denials ??= new DenialCache(denyCache);
      wasDenied = this.#denials.has(text);
      const known = wasDenied && this.#denials.find(text, rule, units, start);
      if (known) {
        this.#statistics.deniedFromMemory++;
        this.#decided(name, key, rule, false, "memory", start);
        return toResult(rule, known);
      }
    }
    let windows: Figures[] | undefined;
    /** By how much less than its wait a denial is remembered, where that is not exact. */
    let rounded = 0;
    let left = timeout;
    if (short && ((rule.kind === "sliding" && remembers && !wasDenied) || isLongCounter(rule))) {
      const figures = readShort(rule, units, await this.#ask(name, [key], behind, timeout));
      // A sliding window has not counted what it denied, so the request may ask again, for its wait.
      if (figures.allowed === 1 || rule.kind === "fixed") windows = [figures];
      else left = Math.max(1, timeout - Math.ceil(performance.now() - start));
      if (rule.kind === "fixed") rounded = 1000;
    }
    if (!windows) {
      const full = [...behind, repliesEach(rule, forced) ? "EACH" : "FULL"];
      windows = readWindows(rule, forced, await this.#ask(name, [key], full, left));
    }
    const result = toResult(rule, windows, name === "acquire" ? holder : undefined);
    if (remembers && result.allowed) this.#denials?.refute(text, rule, units);
    else if (remembers) {
      const wait = result.retryAfterMs === undefined ? -1 : Math.max(0, result.retryAfterMs - rounded);
      this.#denials?.remember(text, rule, units, windows, wait, start);
    }
    this.#decided(name, key, rule, result.allowed, "server", start);
    return result;
  }

  /** Gives something back at a key, and forgets the denial there. */
  async #giveBack(name: "refund" | "reset" | "release", key: Word, behind: readonly Word[]): Promise<unknown> {
    this.#denials?.forget(asText(key));
    try {
      return await this.#ask(name, [key], behind, this.timeout);
    } finally {
      // A denial that came while this call was under way is from before it.
      this.#denials?.forget(asText(key));
    }
  }

  async #ask(
    name: Call["name"],
    [key, ...others]: readonly [Word, ...Word[]],
    behind: readonly Word[],
    timeout: number,
  ): Promise<unknown> {
    const repeatable = name === "peek" || name === "acquire" || name === "release" || name === "reset";
    const keys: [Word, ...Word[]] = [this.keyOf(key), ...others.map((other) => this.keyOf(other))];
    try {
      const reply = await this.#server.call({ name, keys, words: behind, repeatable }, timeout);
      if (this.#unavailable) {
        this.#unavailable = false;
        this.warn("the server is available again");
      }
      return reply;
    } catch (error) {
      if (error instanceof UnavailableError) {
        this.#statistics.unavailable++;
        if (!this.#unavailable) this.warn(`the server is unavailable: ${error.message}`);
        this.#unavailable = true;
      }
      throw error;
    }
  }

  async #withoutServer(
    policy: "open" | "local",
    key: Word,
    rule: QuotaRule,
    cost: number,
    forced: boolean,
  ): Promise<Result> {
    const start = performance.now();
    if (policy === "local") this.prepare({ whenUnavailable: policy });
    const local = policy === "local" ? this.#local : undefined;
    const result = (await local?.hit(asText(key), rule, cost, forced)) ?? unlimited(rule);
    this.#decided(rule.kind, key, rule, result.allowed, policy, start);
    return result;
  }

  #decided(command: Call["name"], key: Word, rule: Rule, allowed: boolean, by: Decision["by"], start: number): void {
    if (command !== "peek") this.#statistics[allowed ? "allowed" : "denied"]++;
    if (!this.#onDecision) return;
    const durationMs = performance.now() - start;
    try {
      this.#onDecision({ limiter: this.name, command, key, rule, allowed, by, durationMs });
    } catch (error) {
      this.warn(`onDecision failed: ${String(error)}`);
    }
  }

  async #held(key: Word, rule: LeaseRule, options: HoldOptions): Promise<Lease> {
    const { timeout = 0, signal } = options;
    const holder = options.holder ?? checkedLease(rule).holder ?? randomUUID();
    const deadline = performance.now() + timeout;
    for (let pause = 25; ; pause = Math.min(2 * pause, 500)) {
      signal?.throwIfAborted();
      const takenAt = performance.now();
      const result = await this.acquire(key, rule, holder);
      if (result.allowed) return new Lease(this, key, rule, holder, { renew: options.renew ?? true, takenAt });
      const left = deadline - performance.now();
      if (left <= 0 || result.retryAfterMs === undefined) throw new DeniedError(result);
      // A lease may be released at any time. Half of the pause is random, so that not all ask at once.
      const wait = Math.min(result.retryAfterMs, pause * (0.5 + Math.random() / 2), left);
      await pauseFor(wait, signal);
    }
  }
}

/** Whether whole seconds say precisely enough when the window of a counter is over. */
function isLongCounter(rule: Rule): rule is FixedRule {
  return rule.kind === "fixed" && (rule.windows[0] as Window).windowMs >= 60_000;
}

/** The decision of the policy `open`. */
function unlimited(rule: QuotaRule): Result {
  const windows = rule.kind === "throttle" ? [{ limit: rule.burst + 1, windowMs: rule.period * 1000 }] : rule.windows;
  return toResult(
    rule,
    windows.map(({ limit, windowMs }) => ({
      allowed: 1,
      limit,
      used: 0,
      remaining: limit,
      "retry-after-ms": 0,
      "next-after-ms": 0,
      "reset-after-ms": 0,
      "window-ms": windowMs,
      "at-ms": Date.now(),
    })),
  );
}

async function pauseFor(ms: number, signal: AbortSignal | undefined): Promise<void> {
  try {
    await sleep(Math.min(Math.ceil(ms), LONGEST_TIMER_MS), undefined, signal ? { signal } : {});
  } catch {
    signal?.throwIfAborted();
  }
}

/** A key in a map: bytes are not confused with text. */
function asText(key: Word): string {
  return typeof key === "string" ? key : `\0${Buffer.from(key).toString("latin1")}`;
}

function positive(what: string, ms: number): number {
  if (!Number.isFinite(ms) || ms <= 0)
    throw new RangeError(`${what} must be a number of milliseconds above 0, not ${ms}`);
  return ms;
}
