package redisrl;

import java.time.Duration;

/**
 * The answer to {@link Limiter#refund}.
 *
 * @param refunded how many units were given back
 * @param used how many are still in use in the first (shortest) window
 * @param ttl the first window's length, or what is left of it (fixed), or the time until all is
 *     free (throttle)
 */
public record Refund(long refunded, long used, Duration ttl) {}
