/** A store for @fastify/rate-limit, version 10 or 11. */

import type { StoreOptions } from "./hit-store.js";
import type { RateLimiter } from "./limiter.js";
import type { Result } from "./result.js";
import { type FixedRule, fixed, type SlidingRule, sliding } from "./rules.js";

export type { StoreOptions } from "./hit-store.js";

/** What the plugin calls with the outcome. */
export type FastifyCallback = (error: Error | null, result?: { current: number; ttl: number }) => void;

/** The plugin's settings, global or of one route, as far as the store needs them. */
export interface FastifySettings {
  readonly continueExceeding?: boolean;
  readonly exponentialBackoff?: boolean;
  readonly ban?: number;
  readonly routeInfo?: { readonly method?: string | readonly string[]; readonly url?: string };
}

/** The store that the plugin makes; see {@link fastifyRateLimitStore}. */
export interface FastifyRateLimitStore {
  incr(key: string, callback: FastifyCallback, timeWindow: number, max: number): void;
  read(key: string, callback: FastifyCallback, timeWindow: number, max: number): void;
  child(settings: object): FastifyRateLimitStore;
}

/**
 * The class to give to the plugin, which makes the store itself.
 *
 * ```ts
 * await app.register(rateLimit, { max: 100, timeWindow: "1 minute", store: fastifyRateLimitStore(limiter) });
 * ```
 *
 * With `continueExceeding` or `ban` a sliding window counts denied requests, too; without them it does not. With
 * `continueExceeding` the window is always a sliding one. `exponentialBackoff` is not supported.
 */
export function fastifyRateLimitStore(
  limiter: RateLimiter,
  { algorithm = "sliding", prefix = "fastify-rate-limit:" }: StoreOptions = {},
): new (
  settings: object,
) => FastifyRateLimitStore {
  return class Store implements FastifyRateLimitStore {
    readonly #settings: FastifySettings;
    readonly #prefix: string;

    constructor(settings: FastifySettings, parent = prefix) {
      if (settings.exponentialBackoff) throw new Error("redis-rl does not support exponentialBackoff");
      this.#settings = settings;
      this.#prefix = parent;
    }

    incr(key: string, callback: FastifyCallback, timeWindow: number, max: number): void {
      answer(limiter.limit(this.#prefix + key, this.#rule(timeWindow, max)), callback);
    }

    read(key: string, callback: FastifyCallback, timeWindow: number, max: number): void {
      answer(limiter.peek(this.#prefix + key, this.#rule(timeWindow, max), { cost: 0 }), callback, true);
    }

    child(settings: object): FastifyRateLimitStore {
      const { method = "", url = "" } = (settings as FastifySettings).routeInfo ?? {};
      return new Store(settings, `${this.#prefix}${method}${url}-`);
    }

    #rule(timeWindow: number, max: number): SlidingRule | FixedRule {
      const quota = { limit: max, window: timeWindow / 1000 };
      const { continueExceeding = false, ban = -1 } = this.#settings;
      if (algorithm === "fixed" && !continueExceeding) return fixed(quota, { anchored: true });
      return sliding(quota, { force: continueExceeding || ban !== -1 });
    }
  };
}

/** A denial is a count above the limit; a peek without a request of its own is none. */
function answer(asked: Promise<Result>, callback: FastifyCallback, peek = false): void {
  asked.then(
    (result) => {
      const counted = result.allowed || peek;
      const ttl = (counted ? result.resetAfterMs : result.retryAfterMs) ?? result.windowMs;
      callback(null, { current: counted ? result.used : Math.max(result.used, result.limit + 1), ttl });
    },
    (error) => callback(error),
  );
}
