package redisrl.spring;

import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;
import org.springframework.boot.context.properties.source.InvalidConfigurationPropertyValueException;
import org.springframework.boot.convert.DurationUnit;

/**
 * What {@code rate-limiter.*} may be. {@link Settings} says what the values mean.
 *
 * @param useAlgo sliding (sliding-window-algo) or fixed (fixed-window-algo), for all rates
 * @param windowSize with maxRequests, another way to say rate: the window, in seconds unless it has
 *     a unit
 * @param maxRequests how many requests that window holds
 * @param rate a limit of all requests: 100/minute, or several rates joined by commas
 * @param limits limits of some requests. A request has to fit into all that concern it
 * @param key who is limited: address, principal or header:NAME
 * @param whenUnavailable what happens to requests while the server is unavailable: open, closed or
 *     local
 * @param processes among how many processes limits are divided with local
 * @param timeout after what time the server counts as unavailable to a request
 * @param trustedProxies addresses and networks of your proxies, whose X-Forwarded-For is believed
 * @param ipv6Prefix how many bits of an IPv6 address count
 * @param allowWithoutIdentity whether requests without an identity are let through, and not refused
 *     with status 403
 * @param prefix put before every key
 * @param name what the limiter is called in log lines and counters
 * @param mode how the server is called: auto, module, functions or script
 * @param url the server, or with commas the nodes of a cluster; spring.data.redis unless given
 */
@ConfigurationProperties(prefix = "rate-limiter", ignoreUnknownFields = false)
record RateLimiterProperties(
    @DefaultValue("sliding") String useAlgo,
    @DurationUnit(ChronoUnit.SECONDS) @Nullable Duration windowSize,
    @Nullable Long maxRequests,
    @Nullable String rate,
    @DefaultValue List<Limit> limits,
    @DefaultValue("address") String key,
    @DefaultValue("open") String whenUnavailable,
    @DefaultValue("1") int processes,
    @DefaultValue("250ms") Duration timeout,
    @DefaultValue List<String> trustedProxies,
    @DefaultValue("64") int ipv6Prefix,
    @DefaultValue("false") boolean allowWithoutIdentity,
    @DefaultValue("") String prefix,
    @DefaultValue("redis-rl") String name,
    @DefaultValue("auto") String mode,
    @Nullable String url) {
  /**
   * A limit of some requests.
   *
   * @param name what the limit is called in headers and keys
   * @param paths patterns of paths, such as /api/**; all unless given
   * @param methods HTTP methods; all unless given
   * @param rate what is allowed: 100/minute
   * @param key who is limited; rate-limiter.key unless given
   * @param cost what a request weighs
   */
  record Limit(
      @Nullable String name,
      @DefaultValue List<String> paths,
      @DefaultValue List<String> methods,
      @Nullable String rate,
      @Nullable String key,
      @DefaultValue("1") long cost) {}

  static <T> T checked(String property, @Nullable Object value, Supplier<T> made) {
    try {
      return made.get();
    } catch (IllegalArgumentException error) {
      throw wrong(property, value, error.getMessage());
    }
  }

  static InvalidConfigurationPropertyValueException wrong(
      String property, @Nullable Object value, @Nullable String reason) {
    return new InvalidConfigurationPropertyValueException(
        "rate-limiter." + property, value, reason);
  }
}
