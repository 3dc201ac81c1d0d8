/** The limiter: every command of redis-rl as a method. */

import { randomUUID } from "node:crypto";
import { type Connection, connect, type RedisClient, type Word } from "./connection.js";
import { DeniedError } from "./errors.js";
import { Lease, type LeaseOptions } from "./lease.js";
import { Reservation } from "./reservation.js";
import { AllResult, fromEach, fromFull, type Refund, type Result, readFigures, WindowResult } from "./result.js";
import {
  type FixedRule,
  type LeaseRule,
  type QuotaRule,
  type Rule,
  type SlidingRule,
  seconds,
  words,
} from "./rules.js";
import { type Call, type Mode, Server } from "./server.js";

export interface LimiterOptions {
  /** Put in front of every key, behind a `keyPrefix` of the client. */
  readonly prefix?: string;
  /**
   * How the commands are sent: `module` (`RL.*`), `function` (`FCALL`, the library is loaded where it is missing),
   * `script` (`EVALSHA`), or `auto` for the first of them that the server takes. By default `auto`.
   */
  readonly mode?: Mode | "auto";
  /** For how many milliseconds a call is sent again that the server answers with `TRYAGAIN`. By default 2000. */
  readonly patienceMs?: number;
  /**
   * Whether a call whose reply was lost is sent again. It may then be counted twice, and a client near its limit is
   * denied too early; without it the call rejects with a {@link LostReplyError}. By default false. Calls that do no
   * harm when sent twice (`peek`, `acquire`, `release`, `reset`) are always sent again.
   */
  readonly resendLost?: boolean;
}

/** What a call may say instead of its rule. */
export interface LimitOptions {
  /** Units that this request weighs: an integer from 1. */
  readonly cost?: number;
  /** Count the request whether it fits or not. Not for a throttle rule. */
  readonly force?: boolean;
}

export interface PeekOptions {
  /** Units that the request would weigh: an integer from 0. With 0 the state as it is, without a request of one's own. */
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

/** One key and rule of {@link RateLimiter.all}. */
export interface Demand {
  readonly key: Word;
  readonly rule: Rule;
  readonly cost?: number;
  readonly force?: boolean;
  /** Who holds the lease; needed by a lease rule. */
  readonly holder?: Word;
}

/**
 * Limits over one client of node-redis or ioredis, a cluster client too.
 *
 * Calls reject with the client's error if the server cannot be reached or refuses the call, with
 * {@link LostReplyError} if the connection breaks before the reply, and with {@link UnsupportedServerError} if the server
 * takes the commands in no form.
 */
export class RateLimiter {
  /** The client behind the limiter. */
  readonly connection: Connection;
  readonly #prefix: string;
  readonly #server: Server;

  constructor(client: RedisClient, options: LimiterOptions = {}) {
    this.connection = connect(client);
    this.#prefix = options.prefix ?? "";
    this.#server = new Server(this.connection, {
      mode: options.mode ?? "auto",
      patienceMs: options.patienceMs ?? 2000,
      resendLost: options.resendLost ?? false,
    });
  }

  /** How the commands are sent; `undefined` before the first call. */
  get mode(): Mode | undefined {
    return this.#server.mode;
  }

  /**
   * Takes units from a quota: `RL.SLIDING`, `RL.FIXED` or `RL.THROTTLE`.
   *
   * ```ts
   * const result = await limiter.limit("user:7", sliding("100/minute"));
   * if (!result.allowed) return reply.code(429).headers(result.headers()).send(result.problem());
   * ```
   */
  async limit(key: Word, rule: QuotaRule, options: LimitOptions = {}): Promise<Result> {
    return this.#decide(rule.kind, key, rule, words(rule, options));
  }

  /** Says what {@link limit} or {@link acquire} would answer, and changes nothing: `RL.PEEK`. */
  async peek(key: Word, rule: Rule, { cost, holder }: PeekOptions = {}): Promise<Result> {
    const asked = words(rule, { cost, holder: holder ?? (rule.kind === "lease" ? randomUUID() : undefined) });
    return this.#decide("peek", key, rule, [keyword(rule), ...asked]);
  }

  /** Gives back what the same rule took: `RL.REFUND`. What lies in a window that is over is not given back. */
  async refund(key: Word, rule: QuotaRule, { cost, atMs }: RefundOptions = {}): Promise<Refund> {
    const at = atMs === undefined ? [] : ["AT", String(atMs)];
    const reply = await this.#call("refund", [key], [keyword(rule), ...words(rule, { cost, force: false }), ...at]);
    const [refunded, used, ttl] = integers(reply, 3) as [number, number, number];
    return { refunded, used, ttl };
  }

  /** Gives a key its whole quota back: `RL.RESET`. A fixed rule is needed to find its counters. Resolves with the number of keys removed. */
  async reset(key: Word, rule?: Rule): Promise<number> {
    const windows = rule?.kind === "fixed" ? rule.windows.map(({ windowMs }) => seconds(windowMs)) : [];
    return Number(await this.#call("reset", [key], windows));
  }

  /** Takes or renews a lease: `RL.ACQUIRE`. {@link lease} does the same and renews it. */
  async acquire(key: Word, rule: LeaseRule, holder: Word): Promise<Result> {
    return this.#decide("acquire", key, rule, words(rule, { holder }));
  }

  /** Ends leases: `RL.RELEASE`. Resolves with how many there were; releasing twice is no error. */
  async release(key: Word, ...holders: [Word, ...Word[]]): Promise<number> {
    return Number(await this.#call("release", [key], holders));
  }

  /**
   * One decision over 1 to 64 keys: `RL.ALL`. Allowed only if every rule has room; otherwise nothing is consumed
   * anywhere. In a cluster all keys need the same hash tag, as in `{org7}:rpm` and `{org7}:tpm`.
   */
  async all(demands: readonly [Demand, ...Demand[]]): Promise<AllResult> {
    const keys = demands.map(({ key }) => key) as [Word, ...Word[]];
    const rules = demands.flatMap((demand) => [keyword(demand.rule), ...words(demand.rule, demand)]);
    const reply = await this.#call("all", keys, [...rules, "FULL"]);
    if (!Array.isArray(reply) || !Array.isArray(reply[4])) throw new TypeError("not a FULL reply of RL.ALL");
    const [allowed, index, remaining, wait] = integers(reply, 4) as [number, number, number, number];
    const each = reply[4].map((map, i) => {
      const rule = demands[i]?.rule;
      const name = rule?.name ?? (demands.length === 1 ? "default" : `${rule?.kind}-${i}`);
      return new WindowResult(readFigures(map), name, rule?.unit);
    });
    return new AllResult(allowed === 1, index, remaining, wait, each);
  }

  /**
   * Takes a lease and renews it until it is released.
   *
   * ```ts
   * await using lease = await limiter.lease("jobs", rule);
   * ```
   *
   * @throws DeniedError if as many leases are held as the rule has.
   */
  async lease(key: Word, rule: LeaseRule, options: LeaseOptions = {}): Promise<Lease> {
    const holder = options.holder ?? randomUUID();
    const result = await this.acquire(key, rule, holder);
    if (!result.allowed) throw new DeniedError(result);
    return new Lease(this, key, rule, holder, options);
  }

  /**
   * Runs a function while holding a lease. The function gets the lease, whose `signal` says when it is lost.
   *
   * @throws DeniedError if as many leases are held as the rule has.
   */
  async withLease<T>(
    key: Word,
    rule: LeaseRule,
    work: (lease: Lease) => Promise<T> | T,
    options: LeaseOptions = {},
  ): Promise<T> {
    const lease = await this.lease(key, rule, options);
    try {
      return await work(lease);
    } finally {
      await lease[Symbol.asyncDispose]();
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
    const result = await this.limit(key, rule, { cost: units, force: false });
    return new Reservation(this, key, rule, units, result);
  }

  /** The whole key that a name stands for: with the prefixes of client and limiter. */
  keyOf(name: Word): Word {
    const prefix = this.connection.keyPrefix + this.#prefix;
    if (prefix === "") return name;
    return typeof name === "string" ? prefix + name : Buffer.concat([Buffer.from(prefix), name]);
  }

  async #decide(name: Call["name"], key: Word, rule: Rule, behind: readonly Word[]): Promise<Result> {
    const several = (rule.kind === "sliding" || rule.kind === "fixed") && rule.windows.length > 1;
    const reply = await this.#call(name, [key], [...behind, several ? "EACH" : "FULL"]);
    return several ? fromEach(rule, reply) : fromFull(rule, reply);
  }

  #call(name: Call["name"], keys: readonly [Word, ...Word[]], behind: readonly Word[]): Promise<unknown> {
    const repeatable = name === "peek" || name === "acquire" || name === "release" || name === "reset";
    const whole = keys.map((key) => this.keyOf(key)) as [Word, ...Word[]];
    return this.#server.call({ name, keys: whole, words: behind, repeatable });
  }
}

function keyword(rule: Rule): string {
  return rule.kind === "lease" ? "ACQUIRE" : rule.kind.toUpperCase();
}

function integers(reply: unknown, count: number): number[] {
  if (!Array.isArray(reply) || reply.length < count) throw new TypeError(`not ${count} integers: ${String(reply)}`);
  return reply.slice(0, count).map(Number);
}
