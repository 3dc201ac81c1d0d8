/** A store for hono-rate-limiter. */

import { HitStore } from "./hit-store.js";

export type { AdapterOptions, StoreOptions } from "./adapter.js";
export type { HitStoreOptions, Hits } from "./hit-store.js";

/**
 * ```ts
 * app.use(rateLimiter({ windowMs: 60_000, limit: 100, keyGenerator, store: new HonoRateLimiterStore(limiter) }));
 * ```
 *
 * Each middleware needs a store of its own. Two with the same limit and window need a `name`.
 */
export class HonoRateLimiterStore extends HitStore {}
