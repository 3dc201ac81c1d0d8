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
import redisrl.Guard.WhenUnavailable;
import redisrl.Mode;

/**
 * What {@code rate-limiter.*} may be, as the README has it. {@link Settings} says what it means.
 */
@ConfigurationProperties(prefix = "rate-limiter", ignoreUnknownFields = false)
record RateLimiterProperties(
    @DefaultValue("sliding") Algorithm useAlgo,
    @DurationUnit(ChronoUnit.SECONDS) @Nullable Duration windowSize,
    @Nullable Long maxRequests,
    @Nullable String rate,
    @DefaultValue List<Limit> limits,
    @DefaultValue("address") String key,
    @DefaultValue("open") WhenUnavailable whenUnavailable,
    @DefaultValue("1") int processes,
    @DefaultValue("250ms") Duration timeout,
    @DefaultValue List<String> trustedProxies,
    @DefaultValue("64") int ipv6Prefix,
    @DefaultValue("false") boolean allowWithoutIdentity,
    @DefaultValue("") String prefix,
    @DefaultValue("redis-rl") String name,
    @DefaultValue("auto") Mode mode,
    @Nullable String url) {
  /** Of all rates, also by the names of the tutorials. */
  enum Algorithm {
    SLIDING,
    SLIDING_WINDOW_ALGO,
    FIXED,
    FIXED_WINDOW_ALGO
  }

  /** A limit of some requests. */
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
