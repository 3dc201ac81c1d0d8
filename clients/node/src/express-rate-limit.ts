/** A store for express-rate-limit, version 7 or 8. */

import { HitStore, type HitStoreOptions } from "./hit-store.js";
import type { Limiter } from "./limiter.js";

export type { AdapterOptions, StoreOptions } from "./adapter.js";
export type { HitStore, HitStoreOptions, HitStoreSettings, Hits } from "./hit-store.js";

/**
 * ```ts
 * app.use(rateLimit({ windowMs: 60_000, limit: 100, store: expressRateLimitStore(limiter) }));
 * ```
 *
 * Each middleware needs a store of its own. Two with the same limit and window need an `identifier` or a `name`.
 */
export function expressRateLimitStore(limiter: Limiter, options: HitStoreOptions = {}): HitStore {
  return new HitStore(limiter, options);
}
