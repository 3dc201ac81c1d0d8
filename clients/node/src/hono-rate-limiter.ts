/** A store for hono-rate-limiter. */

import { HitStore, type StoreOptions } from "./hit-store.js";
import type { RateLimiter } from "./limiter.js";

export type { Hits, StoreOptions } from "./hit-store.js";

/**
 * ```ts
 * app.use(rateLimiter({ windowMs: 60_000, limit: 100, keyGenerator, store: new HonoRateLimiterStore(limiter) }));
 * ```
 *
 * Each middleware needs a store of its own; give those that share a limiter different prefixes.
 */
export class HonoRateLimiterStore extends HitStore {
  constructor(limiter: RateLimiter, { algorithm = "sliding", prefix = "hono-rate-limiter:" }: StoreOptions = {}) {
    super(limiter, { algorithm, prefix });
  }
}
