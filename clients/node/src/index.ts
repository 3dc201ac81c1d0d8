/** Rate limits in Redis and Valkey, over node-redis or ioredis. See {@link Limiter}. */

export type { AdapterOptions, Algorithm, StoreOptions } from "./adapter.js";
export type { Period } from "./calendar.js";
export type { Duration } from "./checks.js";
export type { Connection, IoredisLike, NodeRedisLike, RedisClient, Route } from "./connection.js";
export { LostReplyError, NoIdentityError, UnavailableError, UnsupportedServerError } from "./errors.js";
export type { CostOf, KeyOf, Limit, Limits, RuleOf } from "./guard.js";
export { clientAddress, type IdentityOptions, type RequestLike } from "./identity.js";
export type { Word } from "./keys.js";
export { Lease, type LeaseKeeper, type LeaseOptions } from "./lease.js";
export { Limiter } from "./limiter.js";
export type * from "./options.js";
export { Reservation, type Work } from "./reservation.js";
export { DeniedError, type Problem, type Refund, Result, WindowResult } from "./result.js";
export * from "./rules.js";
export type { Mode } from "./server.js";
