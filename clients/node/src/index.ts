/** Rate limits in Redis and Valkey, over node-redis or ioredis. See {@link RateLimiter}. */

export type { Connection, IoredisLike, NodeRedisLike, RedisClient, Route, Word } from "./connection.js";
export { DeniedError, LostReplyError, UnsupportedServerError } from "./errors.js";
export type { HeaderOptions, Problem } from "./http.js";
export { Lease, type LeaseOptions } from "./lease.js";
export {
  type Demand,
  type LimiterOptions,
  type LimitOptions,
  type PeekOptions,
  RateLimiter,
  type RefundOptions,
} from "./limiter.js";
export { Reservation } from "./reservation.js";
export { AllResult, type Refund, Result, WindowResult } from "./result.js";
export {
  type Duration,
  type FixedOptions,
  type FixedRule,
  fixed,
  type LeaseRule,
  lease,
  type Naming,
  type Quota,
  type QuotaRule,
  type QuotaUnit,
  type Rule,
  type SlidingOptions,
  type SlidingRule,
  sliding,
  type ThrottleOptions,
  type ThrottleRule,
  throttle,
  type Window,
} from "./rules.js";
export type { Mode } from "./server.js";
