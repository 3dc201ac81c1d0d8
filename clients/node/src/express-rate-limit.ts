/** A store for express-rate-limit, version 7 or 8, and for hono-rate-limiter: both ask it in the same way. */

import { AsyncLocalStorage } from "node:async_hooks";
import { type Algorithm, asking, dynamicPolicy, identified, isRefused, ruleOf, type StoreOptions } from "./adapter.js";
import { ADAPTER } from "./defaults.js";
import { adapterKey } from "./identity.js";
import type { Limiter } from "./limiter.js";
import type { Result } from "./result.js";
import type { FixedRule, SlidingRule, Window } from "./rules.js";
import { describe } from "./words.js";

export type { HitStore };

/**
 * ```ts
 * app.use(rateLimit({ windowMs: 60_000, limit: 100, store: expressRateLimitStore(limiter) })); // Express
 * app.use(rateLimiter({ windowMs: 60_000, limit: 100, keyGenerator, store: honoRateLimiterStore(limiter) })); // Hono
 * ```
 *
 * Each middleware needs a store of its own. Two with the same limit and window need a `name`, or an `identifier` of express-rate-limit.
 */
export function expressRateLimitStore(limiter: Limiter, options: HitStoreOptions = {}): HitStore {
  return new HitStore(limiter, options);
}

export interface HitStoreOptions extends StoreOptions {
  /**
   * The limit of a key, where the middleware's `limit` is a function: of that one the store would learn nothing before it
   * counts. See the README.
   */
  readonly limit?: (key: string) => number | Promise<number>;
}

export interface HitStoreSettings {
  readonly windowMs: number;
  readonly limit: unknown;
  readonly skipFailedRequests?: boolean | undefined;
  readonly skipSuccessfulRequests?: boolean | undefined;
  /** Whether express-rate-limit lets requests through after an error of the store. */
  readonly passOnStoreError?: boolean | undefined;
  readonly identifier?: unknown;
}

export interface Hits {
  totalHits: number;
  resetTime: Date;
}

interface Ready {
  readonly windowMs: number;
  readonly algorithm: Algorithm;
  readonly limit: number | ((key: string) => number | Promise<number>);
  /** In front of all keys; express-rate-limit tells two limits of one request apart by it. */
  readonly policy: string;
}

/** What a request was counted as, so that it can be taken back. */
interface Ticket {
  readonly key: string;
  /** When the server counted it; `undefined` if it did not. */
  countedAt: number | undefined;
}

class HitStore {
  /** Keys are shared by all processes on the same server. */
  readonly localKeys = false;
  readonly #limiter: Limiter;
  readonly #options: HitStoreOptions;
  readonly #asking: ReturnType<typeof asking>;
  /** The request that is being handled, where the middleware takes requests back: it names them by their key alone. */
  #tickets: AsyncLocalStorage<Ticket> | undefined;
  /** Until when a request whose ticket is lost may have been one that was not counted. */
  #uncountedUntil = 0;
  #ready: Ready | undefined;
  /** Whether the middleware lets requests through after an error of the store. */
  #passes = false;

  constructor(limiter: Limiter, options: HitStoreOptions = {}) {
    this.#limiter = limiter;
    this.#options = options;
    this.#asking = asking(limiter, options, "the store", ["algorithm", "name", "limit"]);
  }

  /** What stands before the keys, the policy included. */
  get prefix(): string {
    return `${this.#options.prefix ?? ADAPTER.prefix}${this.#ready?.policy ?? ""}`;
  }

  init({ windowMs, limit, identifier, ...settings }: HitStoreSettings): void {
    this.#passes = settings.passOnStoreError ?? false;
    const { limit: limitOf, name } = this.#options;
    // That of express-slow-down is 0: it counts, and decides by itself.
    const isKnown = typeof limit === "number" && limit !== 0;
    // The middleware calls its function after the store has counted. A counter takes denials in one small number, a
    // sliding log would grow with each.
    const algorithm = isKnown || limitOf ? (this.#options.algorithm ?? "sliding") : "fixed";
    const counted = isKnown ? limit : (limitOf ?? Number.MAX_SAFE_INTEGER);
    const rule = typeof counted === "number" ? ruleOf(algorithm, counted, windowMs) : undefined;
    const unnamed = rule && isKnown ? describe(rule) : dynamicPolicy(algorithm, windowMs);
    const policy = name ?? (typeof identifier === "string" ? identifier : unnamed);
    this.#ready = { windowMs, algorithm, limit: counted, policy };
    if (settings.skipFailedRequests || settings.skipSuccessfulRequests) this.#tickets ??= new AsyncLocalStorage();
  }

  /** Where a key is counted, and by which rule. */
  async #counter(key: string): Promise<[string, SlidingRule | FixedRule]> {
    const { algorithm, limit, windowMs, policy } = this.#settings();
    const rule = ruleOf(algorithm, typeof limit === "number" ? limit : await limit(key), windowMs);
    return [adapterKey(this.#options.prefix, policy, String(key)), rule];
  }

  async increment(key: string): Promise<Hits> {
    const ticket: Ticket = { key, countedAt: undefined };
    // Before the first await: what the middleware does afterwards is done with this ticket.
    this.#tickets?.enterWith(ticket);
    try {
      const { windowMs, algorithm } = this.#settings();
      if (!identified(key, this.#options.withoutIdentity)) {
        return { totalHits: 1, resetTime: new Date(Date.now() + windowMs) };
      }
      const [counter, rule] = await this.#counter(key);
      const result = await this.#limiter.ask([{ key: counter, rule }], this.#asking);
      // A sliding rule does not count what it denies.
      if (result.source === "server" && (result.allowed || algorithm === "fixed")) ticket.countedAt = result.atMs;
      // A denial is a total above the limit, whether it was counted or not; that of this process alone may be lower.
      const [{ limit }] = rule.windows as readonly [Window];
      return hits(result, Math.max(result.used, result.allowed ? 1 : limit + 1));
    } catch (error) {
      if (!isRefused(this.#limiter, this.#passes, error)) throw error;
      const { windowMs = 1000 } = this.#ready ?? {};
      return { totalHits: Number.MAX_SAFE_INTEGER, resetTime: new Date(Date.now() + windowMs) };
    } finally {
      if (ticket.countedAt === undefined) this.#uncountedUntil = performance.now() + (this.#ready?.windowMs ?? 0);
    }
  }

  /** Takes a request back, if the server has counted it. Never rejects: the middleware does not await it. */
  async decrement(key: string): Promise<void> {
    const ticket = this.#tickets?.getStore();
    const known = ticket?.key === key ? ticket : undefined;
    if (known ? known.countedAt === undefined : performance.now() < this.#uncountedUntil) return;
    const at = known ? { atMs: known.countedAt as number } : {};
    if (known) known.countedAt = undefined;
    try {
      if (identified(key, "allow"))
        await this.#limiter.refund(...(await this.#counter(key)), { ...this.#asking, ...at });
    } catch (error) {
      this.#limiter.warn(`a request could not be taken back: ${(error as Error).message}`);
    }
  }

  async get(key: string): Promise<Hits | undefined> {
    if (!identified(key, this.#options.withoutIdentity)) return undefined;
    const [counter, rule] = await this.#counter(key);
    const result = await this.#limiter.ask([{ key: counter, rule, cost: 0 }], { ...this.#asking, peek: true });
    return result.used === 0 ? undefined : hits(result, result.used);
  }

  async resetKey(key: string): Promise<void> {
    await this.#limiter.reset(...(await this.#counter(key)), this.#asking);
  }

  #settings(): Ready {
    // express-rate-limit logs why init has failed, and goes on to ask the store.
    if (!this.#ready) throw new Error("the store knows no limit: the middleware has not called init, or in vain");
    return this.#ready;
  }
}

/** `resetTime` is by the clock of this process, against which the middleware holds it. */
function hits(result: Result, totalHits: number): Hits {
  const ms = (result.allowed ? result.resetAfterMs : result.retryAfterMs) ?? result.windowMs;
  return { totalHits, resetTime: new Date(Date.now() + ms) };
}
