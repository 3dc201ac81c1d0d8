/** The store that express-rate-limit and hono-rate-limiter ask: both have the same interface. */

import type { RateLimiter } from "./limiter.js";
import type { Result } from "./result.js";
import { type FixedRule, fixed, type SlidingRule, sliding } from "./rules.js";

export interface StoreOptions {
  /**
   * `sliding`: never more than the limit in any stretch of time as long as the window. `fixed`: one small counter, whose
   * window begins with its first request, as in the framework's own stores. By default `sliding`.
   */
  readonly algorithm?: "sliding" | "fixed";
  /** Put in front of every key, behind the limiter's own prefix. */
  readonly prefix?: string;
}

/** What a store is told by the middleware. */
export interface HitStoreSettings {
  readonly windowMs: number;
  // biome-ignore lint/suspicious/noExplicitAny: the functions of the two frameworks take different arguments.
  readonly limit: number | ((...args: any[]) => unknown);
  readonly skipFailedRequests?: boolean | undefined;
}

export interface Hits {
  totalHits: number;
  resetTime: Date;
}

export class HitStore {
  /** Keys are shared by all processes on the same server. */
  readonly localKeys = false;
  readonly prefix: string;
  readonly #limiter: RateLimiter;
  readonly #algorithm: "sliding" | "fixed";
  #rule: SlidingRule | FixedRule | undefined;

  constructor(limiter: RateLimiter, options: Required<StoreOptions>) {
    this.#limiter = limiter;
    this.#algorithm = options.algorithm;
    this.prefix = options.prefix;
  }

  /** Called by the middleware with its settings. */
  init({ windowMs, limit, skipFailedRequests }: HitStoreSettings): void {
    // A limit that is a function is not told to the store: it counts every request, and the middleware decides.
    const quota = { limit: typeof limit === "number" ? limit : Number.MAX_SAFE_INTEGER, window: windowMs / 1000 };
    // With skipFailedRequests the middleware takes denied requests back as well, so they have to be counted first.
    const force = skipFailedRequests ?? false;
    this.#rule = this.#algorithm === "fixed" ? fixed(quota, { anchored: true, force }) : sliding(quota, { force });
  }

  /** Counts a request. */
  async increment(key: string): Promise<Hits> {
    const result = await this.#limiter.limit(this.prefix + key, this.#ready());
    // A denial is a total above the limit. A sliding window does not count it.
    return hits(result, result.allowed ? result.used : Math.max(result.used, result.limit + 1));
  }

  /** Takes the newest request back. */
  async decrement(key: string): Promise<void> {
    await this.#limiter.refund(this.prefix + key, this.#ready());
  }

  /** Says how many requests there are and counts none. */
  async get(key: string): Promise<Hits | undefined> {
    const result = await this.#limiter.peek(this.prefix + key, this.#ready(), { cost: 0 });
    return result.used === 0 ? undefined : hits(result, result.used);
  }

  /** Gives a key its whole quota back. */
  async resetKey(key: string): Promise<void> {
    await this.#limiter.reset(this.prefix + key, this.#ready());
  }

  #ready(): SlidingRule | FixedRule {
    if (!this.#rule) throw new Error("the middleware has not called init yet");
    return this.#rule;
  }
}

/** `resetTime` is by the clock of this process, against which the middleware holds it. */
function hits(result: Result, totalHits: number): Hits {
  const ms = (result.allowed ? result.resetAfterMs : result.retryAfterMs) ?? result.windowMs;
  return { totalHits, resetTime: new Date(Date.now() + ms) };
}
