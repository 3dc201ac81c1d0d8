/** A store for express-rate-limit, version 7 or 8. */

import { HitStore, type StoreOptions } from "./hit-store.js";
import type { RateLimiter } from "./limiter.js";

export type { Hits, StoreOptions } from "./hit-store.js";

/**
 * ```ts
 * app.use(rateLimit({ windowMs: 60_000, limit: 100, store: new ExpressRateLimitStore(limiter) }));
 * ```
 *
 * Each middleware needs a store of its own; give those that share a limiter different prefixes.
 */
export class ExpressRateLimitStore extends HitStore {
  constructor(limiter: RateLimiter, { algorithm = "sliding", prefix = "express-rate-limit:" }: StoreOptions = {}) {
    super(limiter, { algorithm, prefix });
  }
}
