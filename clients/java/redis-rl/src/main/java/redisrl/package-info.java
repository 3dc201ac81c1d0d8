/**
 * Exact rate limits on Redis and Valkey: sliding and fixed windows, steady rates, concurrent
 * requests, token budgets. One call decides, on the server, by the server's clock. Start with
 * {@link redisrl.Limiter}.
 */
@NullMarked
package redisrl;

import org.jspecify.annotations.NullMarked;
