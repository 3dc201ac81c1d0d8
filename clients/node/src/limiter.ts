/** The limiter: every command of redis-rl as a method. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { type Connection, connect, type RedisClient } from "./connection.js";
import { DenialCache } from "./denials.js";
import { DeniedError, LostReplyError, UnavailableError } from "./errors.js";
import { memoryKey, type Word } from "./keys.js";
import { Lease } from "./lease.js";
import { LocalLimits } from "./local.js";
import { readInteger, readIntegers, readWindows, repliesEach } from "./reply.js";
import { Reservation } from "./reservation.js";
import { type AllResult, type Refund, type Result, type Source, toAllResult, toResult, unlimited } from "./result.js";
import {
  checked,
  checkedLease,
  type FixedRule,
  type HeldLeaseRule,
  isForced,
  keyword,
  known,
  type LeaseRule,
  type QuotaRule,
  type Rule,
  type SlidingRule,
  seconds,
  type ThrottleRule,
  words,
} from "./rules.js";
import { type Call, type Mode, NotAskedError, type Server, serverOf } from "./server.js";

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
  readonly source: Source;
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
  /** For how many milliseconds a call waits for its reply, unless it says otherwise. By default 1000; in the adapters at most 250. */
  readonly timeout?: number;
  /**
   * What `hit` and `peek` do when the server is unavailable: `closed` rejects with an {@link UnavailableError}, `open`
   * allows, `local` counts in the memory of this process. By default `closed`. A lease is never allowed without the server.
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
  /** Called with every decision. What it returns is not waited for, and its errors are logged. */
  readonly onDecision?: (decision: Decision) => unknown;
}

/** What every call may say. */
export interface CallOptions {
  /** For how many milliseconds the call waits for its reply; the limiter's `timeout` unless given. */
  readonly timeout?: number;
  /**
   * Ends the call with its reason. The command may have been sent: what it takes nevertheless is given back.
   */
  readonly signal?: AbortSignal;
}

interface LeaseHitOptions extends CallOptions {
  /** Who asks for the lease. */
  readonly holder?: Word;
}

interface ThrottleHitOptions extends CallOptions {
  /** Units that this request weighs: an integer from 1. */
  readonly cost?: number;
}

interface WindowHitOptions extends ThrottleHitOptions {
  /** Count the request whether it fits or not. */
  readonly force?: boolean;
}

/** What a call may say instead of its rule. */
export type HitOptions<R extends Rule = SlidingRule> = R extends LeaseRule
  ? LeaseHitOptions
  : R extends ThrottleRule
    ? ThrottleHitOptions
    : WindowHitOptions;

interface QuotaPeekOptions extends CallOptions {
  /** Units that the request would weigh: an integer from 0. With 0 it shows the state as it is. */
  readonly cost?: number;
}

/** What a peek may say. A lease has no cost; without a `holder` it is somebody new who asks. */
export type PeekOptions<R extends Rule = SlidingRule> = R extends LeaseRule ? LeaseHitOptions : QuotaPeekOptions;

export interface RefundOptions extends CallOptions {
  /** Units to give back; as many as the rule takes unless given. */
  readonly cost?: number;
  /** Give back only what was taken at this time: a result's `atMs`. */
  readonly atMs?: number;
}

export interface AcquireOptions extends CallOptions {
  /** Who asks for the lease; a random UUID unless given. */
  readonly holder?: Word;
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
  /** For how many milliseconds to wait for a place. By default 0: the first answer counts. */
  readonly timeout?: number;
  /** Ends the wait for a place with its reason. */
  readonly signal?: AbortSignal;
}

/** One key and rule of {@link Limiter.all}. */
export type Demand =
  | {
      readonly key: Word;
      readonly rule: SlidingRule | FixedRule;
      /** Units; 0 checks whether there is room and takes none. */
      readonly cost?: number;
      readonly force?: boolean;
      readonly holder?: never;
    }
  | {
      readonly key: Word;
      readonly rule: ThrottleRule;
      readonly cost?: number;
      readonly force?: never;
      readonly holder?: never;
    }
  | {
      readonly key: Word;
      readonly rule: LeaseRule;
      /** Who holds the lease. */
      readonly holder: Word;
      readonly cost?: never;
      readonly force?: never;
    }
  | {
      readonly key: Word;
      readonly rule: HeldLeaseRule;
      readonly holder?: Word;
      readonly cost?: never;
      readonly force?: never;
    };

/** How an adapter asks, where it differs from the limiter's options. */
export interface Asking {
  readonly cost?: number | undefined;
  readonly force?: boolean | undefined;
  readonly holder?: Word | undefined;
  readonly timeout?: number | undefined;
  readonly whenUnavailable?: WhenUnavailable | undefined;
  readonly denyCache?: number | undefined;
  /** Ask what the answer would be, and change nothing. */
  readonly peek?: boolean | undefined;
}

/** setTimeout takes no more. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
/** An outage is over when a node answers, and the last call that it did not answer is so long ago. */
const CALM_MS = 500;
/** A node that nobody asked for so long has left the cluster. */
const LEFT_MS = 60_000;

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
  readonly #onDecision: ((decision: Decision) => unknown) | undefined;
  readonly #whenUnavailable: WhenUnavailable;
  readonly #denyCache: number;
  readonly #denials = new DenialCache();
  readonly #local: LocalLimits;
  /** The nodes that did not answer, and when they last did not. The log says when there are any, and when there are none. */
  readonly #away = new Map<string, number>();
  /** The last caller that waits for a place at a key. */
  readonly #turns = new Map<string, Promise<void>>();
  readonly #statistics = { allowed: 0, denied: 0, deniedFromMemory: 0, unavailable: 0 };
  #closed = false;

  constructor(client: RedisClient, options: LimiterOptions = {}) {
    known("new Limiter()", options, OPTIONS);
    const { prefix = "", mode = "auto", timeout = 1000, denyCache = 0, processes = 1 } = options;
    if (typeof prefix !== "string") throw new TypeError(`prefix must be a string, not ${String(prefix)}`);
    this.timeout = duration("timeout", timeout);
    this.#denyCache = checkedDenyCache(denyCache);
    this.#whenUnavailable = checkedPolicy(options.whenUnavailable ?? "closed");
    if (!Number.isSafeInteger(processes) || processes < 1) {
      throw new RangeError(`processes must be an integer from 1, not ${processes}`);
    }
    this.#local = new LocalLimits(processes);
    this.connection = connect(client);
    this.#server = serverOf(this.connection, mode);
    this.#server.open();
    this.#prefix = prefix;
    this.name = options.name ?? (prefix === "" ? "redis-rl" : prefix);
    this.#logger = options.logger ?? console;
    this.#onDecision = options.onDecision;
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
   * Ends the limiter: later calls reject. The client stays open, and other limiters over it go on. With the last limiter
   * over an ioredis client ends the connection that was opened beside it.
   */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#server.close();
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
    return unlessLeft(
      options.signal,
      () => this.ask(key, rule, options as Asking),
      (result) => this.#undo(key, rule, options as Asking, result),
    );
  }

  /** Says what {@link hit} would answer, and changes nothing: `RL.PEEK`. */
  peek<R extends Rule>(key: Word, rule: R, options: PeekOptions<R> = {} as PeekOptions<R>): Promise<Result> {
    return unlessLeft(options.signal, () => this.ask(key, rule, { ...(options as Asking), peek: true }));
  }

  /** Gives back what the same rule took: `RL.REFUND`. What lies in a window that is over is not given back. */
  async refund(key: Word, rule: QuotaRule, options: RefundOptions = {}): Promise<Refund> {
    const { cost, atMs } = options;
    if (checked<Rule>(rule).kind === "lease") throw new TypeError("a lease is not refunded but released");
    const at = atMs === undefined ? [] : ["AT", String(atMs)];
    const behind = [keyword(rule), ...words(rule, { cost }, 1), ...at];
    const reply = await this.#giveBack("refund", key, behind, options);
    const [refunded, used, ttl] = readIntegers(reply, 3) as [number, number, number];
    return { refunded, used, ttl };
  }

  /** Gives a key its whole quota back: `RL.RESET`. A fixed rule is needed to find its counters. Resolves with the number of keys removed. */
  async reset(key: Word, rule?: Rule, options: CallOptions = {}): Promise<number> {
    const windows = rule !== undefined && checked(rule).kind === "fixed" ? (rule as FixedRule).windows : [];
    const behind = windows.map(({ windowMs }) => seconds(windowMs));
    return readInteger(await this.#giveBack("reset", key, behind, options), "a number of keys");
  }

  /**
   * Hits until the request is allowed, and sleeps for the exact wait between. Resolves with the denial at once where the
   * wait is longer than the time that is left, and if the request never fits.
   */
  async wait(key: Word, rule: QuotaRule, options: WaitOptions = {}): Promise<Result> {
    const { cost, signal, timeout = Number.POSITIVE_INFINITY } = options;
    const left = countdown(timeout);
    for (;;) {
      const result = await unlessLeft(
        signal,
        () => this.ask(key, rule, { cost, denyCache: 0, timeout: Math.max(1, Math.min(this.timeout, left())) }),
        (late) => this.#undo(key, rule, { cost }, late),
      );
      const wait = result.retryAfterMs;
      if (result.allowed || wait === undefined || wait > left()) return result;
      await pauseFor(wait, signal);
    }
  }

  /**
   * Takes or renews a lease: `RL.ACQUIRE`. The result has the `holder`, a random UUID where none is given. {@link hold}
   * does the same and renews it.
   */
  async acquire(key: Word, rule: LeaseRule, options: AcquireOptions = {}): Promise<Result> {
    const { signal, timeout } = options;
    const known = options.holder ?? checkedLease(rule).holder;
    const holder = known ?? randomUUID();
    // Nobody else knows the name that was made here. With one of the caller's own it may have been a renewal.
    const giveBack = known === undefined ? () => this.#releaseLeft(key, rule, holder) : undefined;
    return unlessLeft(signal, () => this.ask(key, rule, { holder, timeout }), giveBack, giveBack);
  }

  /** Ends leases: `RL.RELEASE`. Resolves with how many there were; releasing twice is no error. */
  async release(key: Word, ...holders: [Word, ...Word[]]): Promise<number> {
    if (holders.length === 0) throw new TypeError("release needs a holder");
    return readInteger(await this.#giveBack("release", key, holders, {}), "a number of leases");
  }

  /**
   * One decision over 1 to 64 keys: `RL.ALL`. Allowed only if every rule has room; otherwise nothing is consumed
   * anywhere. In a cluster all keys need the same hash tag, as in `{org7}:rpm` and `{org7}:tpm`.
   */
  async all<const D extends readonly Demand[]>(
    demands: D & (D extends readonly [] ? never : unknown),
    options: CallOptions = {},
  ): Promise<AllResult> {
    const list = demands as readonly Demand[];
    if (!Array.isArray(list as unknown))
      throw new TypeError(`all takes an array of { key, rule }, not ${String(list)}`);
    if (list.length < 1 || list.length > 64) throw new RangeError(`all takes 1 to 64 keys, not ${list.length}`);
    const [first] = list as readonly [Demand, ...Demand[]];
    const start = performance.now();
    const rules = list.map(({ rule }) => rule);
    const behind = [...list.flatMap((demand) => [keyword(demand.rule), ...words(demand.rule, demand, 0)]), "FULL"];
    const keys = list.map(({ key }) => key) as [Word, ...Word[]];
    const reply = await unlessLeft(options.signal, () => this.#call("all", keys, behind, options.timeout));
    const result = toAllResult(rules, reply);
    this.#decided("all", first.key, first.rule, result.allowed, "server", start);
    return result;
  }

  /**
   * Takes a lease and renews it until it is released; waits for a place for `timeout` milliseconds. With a function it is
   * held while that runs, and the function gets the lease, whose `signal` says when it is lost.
   *
   * ```ts
   * await limiter.hold("jobs", rule, async (held) => work({ signal: held.signal }));
   *
   * const held = await limiter.hold("jobs", rule);
   * try {
   *   await work({ signal: held.signal });
   * } finally {
   *   await held.end();
   * }
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
      await held.end();
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
  async reserve(
    key: Word,
    rule: SlidingRule | FixedRule,
    units: number,
    options: CallOptions = {},
  ): Promise<Reservation> {
    const result = await this.hit(key, rule, { ...options, cost: units, force: false });
    const charge = async (more: number) => {
      if (more > 0) await this.ask(key, rule, { cost: more, force: true, whenUnavailable: "closed" });
      if (more < 0) await this.refund(key, rule, { cost: -more, atMs: result.atMs });
    };
    return new Reservation(result, units, charge);
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

  /**
   * A request, asked as an adapter asks. One function with few promises, since each request of an application goes through
   * it. @internal
   */
  async ask(key: Word, rule: Rule, asking: Asking): Promise<Result> {
    const start = performance.now();
    const { cost, force, peek = false, timeout } = asking;
    // A peek of a forced rule asks whether there is room, as that of any other rule.
    const forced = isForced(checked(rule), peek ? undefined : force);
    const command = peek ? "peek" : rule.kind === "lease" ? "acquire" : rule.kind;
    const holder =
      rule.kind === "lease" ? (asking.holder ?? rule.holder ?? (peek ? randomUUID() : undefined)) : undefined;
    const behind = words(rule, { cost, force: peek ? undefined : force, holder }, peek ? 0 : 1);
    if (peek) behind.unshift(keyword(rule));
    behind.push(repliesEach(rule, forced) ? "EACH" : "FULL");
    const units = cost ?? (rule as SlidingRule).cost ?? 1;
    const denyCache = asking.denyCache ?? this.#denyCache;
    const remembers = denyCache > 0 && !forced && !peek && rule.kind !== "lease";
    const id = remembers ? memoryKey(key) : "";
    const remembered = (since?: number) => {
      const windows = remembers ? this.#denials.find(id, rule, units, performance.now(), since) : undefined;
      if (!windows) return undefined;
      this.#statistics.deniedFromMemory++;
      this.#decided(command, key, rule, false, "memory", start);
      return toResult(rule, windows, "memory");
    };
    const denied = remembered();
    if (denied) return denied;
    try {
      const windows = readWindows(rule, forced, await this.#call(command, [key], behind, timeout));
      const result = toResult(rule, windows, "server", holder);
      if (remembers && result.allowed) this.#denials.refute(id, rule, units);
      else if (remembers) {
        this.#denials.entries = Math.max(this.#denials.entries, denyCache);
        this.#denials.remember(id, rule, units, windows, result.retryAfterMs ?? -1, start);
      }
      this.#decided(command, key, rule, result.allowed, "server", start);
      return result;
    } catch (error) {
      const policy = asking.whenUnavailable ?? this.#whenUnavailable;
      if (!(error instanceof UnavailableError) || rule.kind === "lease") throw error;
      // Of a crowd that is larger than the process can serve in time, others may have been denied meanwhile.
      const known = remembered(start);
      if (known) return known;
      if (policy === "closed") throw error;
      const result =
        policy === "open" ? unlimited(rule) : this.#local.decide(memoryKey(key), rule, units, forced, peek);
      this.#decided(command, key, rule, result.allowed, result.source, start);
      return result;
    }
  }

  /** Gives a counter another value and life: what rate-limiter-flexible calls `set` and `block`. @internal */
  async setCounter(counter: Word, value: number, ms: number, timeout: number | undefined): Promise<void> {
    await this.#call("set", [counter], [String(value), "PX", String(ms)], timeout);
  }

  /** Writes a line with the limiter's name. @internal */
  warn(line: string): void {
    this.#logger.warn(`redis-rl (${this.name}): ${line}`);
  }

  /** Gives something back at a key, and forgets the denial there. */
  async #giveBack(
    name: "refund" | "reset" | "release",
    key: Word,
    behind: readonly Word[],
    { signal, timeout }: CallOptions,
  ): Promise<unknown> {
    const id = memoryKey(key);
    this.#denials.forget(id);
    try {
      return await unlessLeft(signal, () => this.#call(name, [key], behind, timeout));
    } finally {
      // A denial that came while this call was under way is from before it.
      this.#denials.forget(id);
    }
  }

  /** Gives back what a call has taken for a caller that left meanwhile. */
  async #undo(key: Word, rule: Rule, { cost, force }: Asking, result: Result): Promise<void> {
    // The caller can release a lease, whose holder it has named.
    if (rule.kind === "lease" || result.source !== "server" || !(result.allowed || isForced(rule, force))) return;
    const at = rule.kind === "throttle" ? {} : { atMs: result.atMs };
    await this.refund(key, rule, { ...at, ...(cost !== undefined && { cost }) });
  }

  async #call(
    name: Call["name"],
    names: readonly Word[],
    behind: readonly Word[],
    timeout: number | undefined,
  ): Promise<unknown> {
    if (this.#closed) throw new TypeError("The limiter is closed");
    const keys = names.map((key) => this.keyOf(key)) as [Word, ...Word[]];
    const ms = timeout === undefined ? this.timeout : duration("timeout", timeout);
    try {
      const reply = await this.#server.call({ name, keys, words: behind }, ms);
      if (this.#away.size > 0) this.#answered(keys[0]);
      return reply;
    } catch (error) {
      if (error instanceof UnavailableError) this.#failed(keys[0], error);
      throw error;
    }
  }

  #answered(key: Word): void {
    const [node, now] = [this.#server.nodeOf(key), performance.now()];
    for (const [name, since] of this.#away) {
      // Before the nodes of a cluster are known, they have no names.
      if (now - since > (name === node || name === "" ? CALM_MS : LEFT_MS)) this.#away.delete(name);
    }
    if (this.#away.size === 0) this.warn("the server is available again");
  }

  #failed(key: Word, error: UnavailableError): void {
    this.#statistics.unavailable++;
    if (this.#away.size === 0) this.warn(`the server is unavailable: ${error.message}`);
    const node = this.#server.nodeOf(key);
    // What was not sent says nothing new about the node.
    if (!(error instanceof NotAskedError) || !this.#away.has(node)) this.#away.set(node, performance.now());
  }

  #decided(command: Call["name"], key: Word, rule: Rule, allowed: boolean, source: Source, start: number): void {
    if (command !== "peek") this.#statistics[allowed ? "allowed" : "denied"]++;
    if (!this.#onDecision) return;
    const durationMs = performance.now() - start;
    const failed = (error: unknown) => this.warn(`onDecision failed: ${String(error)}`);
    try {
      const told = this.#onDecision({ limiter: this.name, command, key, rule, allowed, source, durationMs });
      if (told instanceof Promise) told.catch(failed);
    } catch (error) {
      failed(error);
    }
  }

  async #held(key: Word, rule: LeaseRule, options: HoldOptions): Promise<Lease> {
    const { timeout = 0, signal, renew = true } = options;
    const holder = options.holder ?? checkedLease(rule).holder ?? randomUUID();
    const left = countdown(timeout);
    const giveBack = () => this.#releaseLeft(key, rule, holder);
    let passOn: (() => void) | undefined;
    try {
      for (;;) {
        const takenAt = performance.now();
        const ms = timeout > 0 ? Math.max(1, Math.min(this.timeout, left())) : this.timeout;
        const result = await unlessLeft(signal, () => this.ask(key, rule, { holder, timeout: ms }), giveBack, giveBack);
        if (result.allowed) return new Lease(this, key, rule, holder, { renew, takenAt });
        if (result.retryAfterMs === undefined || left() <= 0) throw new DeniedError(result);
        if (!passOn) passOn = await this.#turn(key, left(), signal);
        // A lease may be released at any time. Half of the pause is random, so that not all processes ask at once.
        else await pauseFor(Math.min(result.retryAfterMs, left(), 25 * (0.5 + Math.random() / 2)), signal);
        if (left() <= 0) throw new DeniedError(result);
      }
    } finally {
      passOn?.();
    }
  }

  /** Of the callers of this limiter that wait for a place at a key one asks, and the others wait for their turn. */
  async #turn(key: Word, ms: number, signal: AbortSignal | undefined): Promise<() => void> {
    const id = memoryKey(key);
    const before = this.#turns.get(id) ?? Promise.resolve();
    let passOn = () => {};
    const mine = new Promise<void>((resolve) => {
      passOn = resolve;
    });
    const both = before.then(() => mine);
    this.#turns.set(id, both);
    both.then(() => {
      if (this.#turns.get(id) === both) this.#turns.delete(id);
    });
    const over = new AbortController();
    const ended = signal ? AbortSignal.any([signal, over.signal]) : over.signal;
    try {
      await Promise.race([before, pauseFor(ms, ended)]);
      return passOn;
    } catch (error) {
      passOn();
      throw error;
    } finally {
      over.abort();
    }
  }

  /** Releases what nobody knows of but this process, however long the server is away; the lease ends by itself. */
  async #releaseLeft(key: Word, rule: LeaseRule, holder: Word): Promise<void> {
    const left = countdown(rule.leaseMs);
    // The call that took it may be on its way still, on another connection.
    for (let released = 0; released < 2 && left() > 0; ) {
      const count = await this.release(key, holder).catch(() => undefined);
      if (count === 1) return;
      if (count === 0) released++;
      await sleep(Math.min(1000, left()), undefined, { ref: false });
    }
  }
}

/** A call that its caller may leave; what it takes after that is given back, as well as that can be. */
function unlessLeft<T>(
  signal: AbortSignal | undefined,
  call: () => Promise<T>,
  giveBack?: (taken: T) => unknown,
  giveBackUnknown?: () => unknown,
): Promise<T> {
  if (!signal) return call();
  if (signal.aborted) return Promise.reject(signal.reason);
  return new Promise((resolve, reject) => {
    const work = call();
    const leave = () => {
      reject(signal.reason);
      const lost = (error: unknown) => (error instanceof LostReplyError ? giveBackUnknown?.() : undefined);
      work.then(giveBack, lost).catch(() => {});
    };
    signal.addEventListener("abort", leave, { once: true });
    const stay = () => signal.removeEventListener("abort", leave);
    work.then(stay, stay);
    work.then(resolve, reject);
  });
}

async function pauseFor(ms: number, signal: AbortSignal | undefined): Promise<void> {
  try {
    await sleep(Math.min(Math.ceil(ms), LONGEST_TIMER_MS), undefined, signal ? { signal } : {});
  } catch {
    signal?.throwIfAborted();
  }
}

/** How many milliseconds are left of a time that begins now. */
function countdown(timeout: number): () => number {
  if (typeof timeout !== "number" || !(timeout >= 0)) {
    throw new RangeError(`timeout must be a number of milliseconds from 0, not ${String(timeout)}`);
  }
  const deadline = performance.now() + timeout;
  return () => deadline - performance.now();
}

/** A time that a timer takes. */
export function duration(what: string, ms: number): number {
  if (typeof ms === "number" && ms > 0 && ms <= LONGEST_TIMER_MS) return ms;
  throw new RangeError(
    `${what} must be a number of milliseconds above 0 and up to ${LONGEST_TIMER_MS}, not ${String(ms)}`,
  );
}

export function checkedDenyCache(entries: number): number {
  if (Number.isSafeInteger(entries) && entries >= 0) return entries;
  throw new RangeError(`denyCache must be an integer from 0, not ${String(entries)}`);
}

export function checkedPolicy(policy: WhenUnavailable): WhenUnavailable {
  if (["open", "closed", "local"].includes(policy)) return policy;
  throw new TypeError(`whenUnavailable must be "open", "closed" or "local", not ${JSON.stringify(policy)}`);
}

const OPTIONS: readonly (keyof LimiterOptions)[] = [
  "prefix",
  "mode",
  "timeout",
  "whenUnavailable",
  "processes",
  "denyCache",
  "name",
  "logger",
  "onDecision",
];
