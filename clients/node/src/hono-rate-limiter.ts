/** A store for hono-rate-limiter: that of express-rate-limit. */

export type * from "./express-rate-limit.js";
export { expressRateLimitStore as honoRateLimiterStore } from "./express-rate-limit.js";
