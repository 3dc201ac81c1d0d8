/** A store for @fastify/rate-limit, version 10 or 11. */

import { asking, dynamicPolicy, identified, isRefused, ruleOf, type StoreOptions } from "./adapter.js";
import { adapterKey } from "./identity.js";
import type { Limiter } from "./limiter.js";
import { type Asking, describe } from "./words.js";

export type FastifyCallback = (error: Error | null, result?: { current: number; ttl: number }) => void;

/** The plugin's settings, global or of one route, as far as the store needs them. */
export interface FastifySettings {
  readonly max?: unknown;
  readonly continueExceeding?: boolean;
  readonly exponentialBackoff?: boolean;
  readonly ban?: number;
  /** Whether the plugin lets requests through after an error of the store. */
  readonly skipOnError?: boolean;
  /** The routes of one group are one limit: the plugin adds its name to their keys. */
  readonly groupId?: string;
  readonly routeInfo?: { readonly method?: string | readonly string[]; readonly url?: string };
}

export interface FastifyRateLimitStore {
  /** The window and the limit are given by every version, and declared from 11 on. */
  incr(key: string, callback: FastifyCallback, timeWindow?: number, max?: number): void;
  read(key: string, callback: FastifyCallback, timeWindow: number, max: number): void;
  child(settings: object): FastifyRateLimitStore;
}

export type FastifyRateLimitStoreClass = new (settings: object) => FastifyRateLimitStore;

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
export function fastifyRateLimitStore(limiter: Limiter, options: StoreOptions = {}): FastifyRateLimitStoreClass {
  const { algorithm = "sliding", prefix, name, withoutIdentity } = options;
  const how = asking(limiter, options, "the store", ["algorithm", "name"]);
  return class Store implements FastifyRateLimitStore {
    readonly #settings: FastifySettings;
    /** The limit's name, and the route or the group of routes that the settings are of. */
    readonly #named: string;
    readonly #asking: Asking;

    constructor(settings: FastifySettings) {
      if (settings.exponentialBackoff) throw new Error("redis-rl does not support exponentialBackoff");
      this.#settings = settings;
      // A ban needs every denial counted.
      this.#asking = (settings.ban ?? -1) >= 0 ? { ...how, denyCache: false } : how;
      const { method = "", url } = settings.routeInfo ?? {};
      const route = url === undefined ? "" : `${String(method)}${url}`;
      this.#named = [name, settings.groupId || route].filter(Boolean).join(" ");
    }

    incr(key: string, callback: FastifyCallback, timeWindow = 0, max = 0): void {
      this.#answer(key, callback, timeWindow, max, this.#asking);
    }

    read(key: string, callback: FastifyCallback, timeWindow: number, max: number): void {
      this.#answer(key, callback, timeWindow, max, { ...this.#asking, peek: true });
    }

    child(settings: object): FastifyRateLimitStore {
      return new Store(settings as FastifySettings);
    }

    #answer(key: string, callback: FastifyCallback, timeWindow: number, max: number, how: Asking): void {
      this.#told(key, timeWindow, max, how).then(
        (told) => callback(null, told),
        (error) => {
          if (!isRefused(limiter, this.#settings.skipOnError ?? false, error)) callback(error as Error);
          else callback(null, { current: max + 1, ttl: timeWindow });
        },
      );
    }

    /** A denial is a count above the limit; a peek counts no request, so it is not a denial. */
    async #told(key: string, timeWindow: number, max: number, how: Asking): Promise<{ current: number; ttl: number }> {
      const { continueExceeding = false, ban = -1, groupId } = this.#settings;
      const identity = key === groupId ? "" : key;
      if (!identified(identity, withoutIdentity)) return { current: how.peek ? 0 : 1, ttl: timeWindow };
      // The plugin bans a key that exceeds the limit by more than `ban`, so denials have to be counted up to there.
      const counts = algorithm === "sliding" && !continueExceeding && ban >= 0 ? max + ban + 1 : max;
      const rule = ruleOf(continueExceeding ? "sliding" : algorithm, counts, timeWindow, continueExceeding);
      // A route is called by its template, and the plugin's own limit by what it allows.
      const isDynamic = typeof this.#settings.max === "function";
      const policy = this.#named || (isDynamic ? dynamicPolicy(algorithm, timeWindow) : describe(rule));
      const counter = adapterKey(prefix, policy, String(key));
      const result = await limiter.ask([{ key: counter, rule, cost: how.peek ? 0 : undefined }], how);
      const counted = result.allowed || how.peek;
      const ttl = (counted ? result.resetAfterMs : result.retryAfterMs) ?? result.windowMs;
      return { current: counted ? result.used : Math.max(result.used, max + 1, result.limit + 1), ttl };
    }
  };
}
