/** A store for @fastify/rate-limit, version 10 or 11. */

import { asking, dynamicPolicy, identified, keysOf, policyOf, ruleOf, type StoreOptions } from "./adapter.js";
import type { Asking, Limiter } from "./limiter.js";
import type { Result } from "./result.js";
import type { FixedRule, SlidingRule } from "./rules.js";

export type { AdapterOptions, StoreOptions } from "./adapter.js";

/** What the plugin calls with the outcome. */
export type FastifyCallback = (error: Error | null, result?: { current: number; ttl: number }) => void;

/** The plugin's settings, global or of one route, as far as the store needs them. */
export interface FastifySettings {
  readonly max?: unknown;
  readonly continueExceeding?: boolean;
  readonly exponentialBackoff?: boolean;
  readonly ban?: number;
  readonly routeInfo?: { readonly method?: string | readonly string[]; readonly url?: string };
}

/** What is made of a window and a number. */
interface Limit {
  readonly timeWindow: number;
  readonly max: number;
  readonly rule: SlidingRule | FixedRule;
  readonly keyOf: (identity: string) => string;
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
 * With `ban` a sliding window counts as many denied requests as it takes; without it none. With `continueExceeding` it
 * counts them all, and is always a sliding one. `exponentialBackoff` is not supported.
 */
export function fastifyRateLimitStore(
  limiter: Limiter,
  options: StoreOptions = {},
): new (
  settings: object,
) => FastifyRateLimitStore {
  const { algorithm = "sliding", prefix = "rl:", name, withoutIdentity } = options;
  const how = { ...asking(limiter, options), short: true };
  return class Store implements FastifyRateLimitStore {
    readonly #settings: FastifySettings;
    /** The limit's name, and the route that the settings are of. */
    readonly #named: string;
    readonly #asking: Asking;
    /** Requests come with the same limit: what is made of it. */
    #limit: Limit | undefined;

    constructor(settings: FastifySettings) {
      if (settings.exponentialBackoff) throw new Error("redis-rl does not support exponentialBackoff");
      this.#settings = settings;
      // A ban needs every denial counted.
      this.#asking = (settings.ban ?? -1) >= 0 ? { ...how, denyCache: 0 } : how;
      const { method = "", url } = settings.routeInfo ?? {};
      const route = url === undefined ? "" : `${String(method)}${url}`;
      this.#named = [name, route].filter(Boolean).join(" ");
    }

    incr(key: string, callback: FastifyCallback, timeWindow: number, max: number): void {
      try {
        if (identified(key, withoutIdentity)) {
          const { rule, keyOf } = this.#of(timeWindow, max);
          answer(limiter.ask(keyOf(String(key)), rule, this.#asking), max, callback);
        } else callback(null, { current: 1, ttl: timeWindow });
      } catch (error) {
        callback(error as Error);
      }
    }

    read(key: string, callback: FastifyCallback, timeWindow: number, max: number): void {
      const { rule, keyOf } = this.#of(timeWindow, max);
      answer(limiter.peek(keyOf(String(key)), rule, { cost: 0 }), max, callback, true);
    }

    child(settings: object): FastifyRateLimitStore {
      return new Store(settings as FastifySettings);
    }

    /** A route is called by its template, and the plugin's own limit by what it allows. */
    #of(timeWindow: number, max: number): Limit {
      if (this.#limit?.timeWindow === timeWindow && this.#limit.max === max) return this.#limit;
      const rule = this.#rule(timeWindow, max);
      const policy = typeof this.#settings.max === "function" ? dynamicPolicy(algorithm, timeWindow) : policyOf(rule);
      this.#limit = { timeWindow, max, rule, keyOf: keysOf(prefix, this.#named || policy) };
      return this.#limit;
    }

    #rule(timeWindow: number, max: number): SlidingRule | FixedRule {
      const { continueExceeding = false, ban = -1 } = this.#settings;
      if (continueExceeding) return ruleOf("sliding", max, timeWindow, true);
      // The plugin bans a key that exceeds the limit by more than `ban`, so denials have to be counted up to there.
      return ruleOf(algorithm, algorithm === "sliding" && ban >= 0 ? max + ban + 1 : max, timeWindow);
    }
  };
}

/** A denial is a count above the limit; a peek counts no request, so it is not a denial. */
function answer(asked: Promise<Result>, max: number, callback: FastifyCallback, peek = false): void {
  asked.then(
    (result) => {
      const counted = result.allowed || peek;
      const ttl = (counted ? result.resetAfterMs : result.retryAfterMs) ?? result.windowMs;
      callback(null, { current: counted ? result.used : Math.max(result.used, max + 1, result.limit + 1), ttl });
    },
    (error) => callback(error),
  );
}
