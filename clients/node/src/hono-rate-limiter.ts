/** A store for hono-rate-limiter. */

import { HitStore, type HitStoreOptions } from "./hit-store.js";
import type { Limiter } from "./limiter.js";

export type { AdapterOptions, StoreOptions } from "./adapter.js";
export type { HitStore, HitStoreOptions, HitStoreSettings, Hits } from "./hit-store.js";

/**
 * ```ts
 * app.use(rateLimiter({ windowMs: 60_000, limit: 100, keyGenerator, store: honoRateLimiterStore(limiter) }));
 * ```
 *
 * Each middleware needs a store of its own. Two with the same limit and window need a `name`.
 */
export function honoRateLimiterStore(limiter: Limiter, options: HitStoreOptions = {}): HitStore {
  return new HitStore(limiter, options);
}
