/** Rate limits in Redis and Valkey, over node-redis or ioredis. See {@link Limiter}. */

export type { Period } from "./calendar.js";
export type { Connection, IoredisLike, NodeRedisLike, RedisClient, Route } from "./connection.js";
export {
  DeniedError,
  LostReplyError,
  NoIdentityError,
  UnavailableError,
  UnsupportedServerError,
} from "./errors.js";
export type { HeaderOptions, Problem } from "./http.js";
export { clientAddress, type IdentityOptions, type RequestLike } from "./identity.js";
export type { Word } from "./keys.js";
export { Lease, type LeaseKeeper, type LeaseOptions } from "./lease.js";
export { Limiter } from "./limiter.js";
export type {
  AcquireOptions,
  CallOptions,
  Decision,
  Demand,
  HitOptions,
  HoldOptions,
  LimiterOptions,
  Logger,
  PeekOptions,
  RefundOptions,
  ReservedDemand,
  ReserveOptions,
  Statistics,
  WaitOptions,
  WhenUnavailable,
} from "./options.js";
export { WindowResult } from "./reply.js";
export { Reservation, type Work } from "./reservation.js";
export { AllResult, type Refund, Result, type Source } from "./result.js";
export {
  type CalendarOptions,
  type CalendarRule,
  calendar,
  type Duration,
  type FixedOptions,
  type FixedRule,
  fixed,
  type HeldLeaseRule,
  type LeaseRule,
  type LeaseRuleOptions,
  lease,
  type Naming,
  type QuotaRule,
  type QuotaUnit,
  type Rate,
  type Rule,
  type SlidingOptions,
  type SlidingRule,
  sliding,
  type ThrottleOptions,
  type ThrottleRule,
  throttle,
  type UnitRule,
  type Window,
} from "./rules.js";
export type { Mode } from "./server.js";
