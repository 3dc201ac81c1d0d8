/** A store for express-rate-limit, version 7 or 8. */

import { HitStore } from "./hit-store.js";

export type { AdapterOptions, StoreOptions } from "./adapter.js";
export type { HitStoreOptions, Hits } from "./hit-store.js";

/**
 * ```ts
 * app.use(rateLimit({ windowMs: 60_000, limit: 100, store: new ExpressRateLimitStore(limiter) }));
 * ```
 *
 * Each middleware needs a store of its own. Two with the same limit and window need an `identifier` or a `name`.
 */
export class ExpressRateLimitStore extends HitStore {}
