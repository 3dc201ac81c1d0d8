package redisrl.spring;

import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.jspecify.annotations.Nullable;
import org.springframework.cloud.gateway.event.FilterArgsEvent;
import org.springframework.cloud.gateway.filter.ratelimit.RateLimiter;
import org.springframework.context.ApplicationListener;
import org.springframework.http.HttpStatus;
import org.springframework.http.HttpStatusCode;
import org.springframework.web.server.ResponseStatusException;
import reactor.core.publisher.Mono;
import redisrl.Decision;
import redisrl.Guard;
import redisrl.Rule;

/**
 * The limiter of the filter RequestRateLimiter of Spring Cloud Gateway.
 *
 * <p>A route has {@code redis-rl.rate}, or the arguments of the gateway's own limiter ({@code
 * redis-rate-limiter.replenishRate}, {@code burstCapacity}, {@code requestedTokens}), which mean
 * the same: a throttle.
 */
public final class RedisRlRateLimiter
    implements RateLimiter<RedisRlRateLimiter.Config>, ApplicationListener<FilterArgsEvent> {
  /** What a route's limit is. */
  public static final class Config {
    private @Nullable Rule rule;
    private Map<String, String> headers = Map.of();

    /** For a route that is written in Java. */
    public Config setRule(Rule rule) {
      this.rule = rule;
      return this;
    }
  }

  private static final String OWN = "redis-rl.";
  private static final String GATEWAY = "redis-rate-limiter.";
  private static final Set<String> ARGUMENTS =
      Set.of("replenishrate", "burstcapacity", "requestedtokens", "includeheaders");

  private final Guard guard;
  private final boolean includeHeaders;
  private final Map<String, Config> routes = new ConcurrentHashMap<>();

  RedisRlRateLimiter(Guard guard, boolean includeHeaders) {
    this.guard = guard;
    this.includeHeaders = includeHeaders;
  }

  @Override
  public Map<String, Config> getConfig() {
    return routes;
  }

  @Override
  public Class<Config> getConfigClass() {
    return Config.class;
  }

  @Override
  public Config newConfig() {
    return new Config();
  }

  /** What a route says. */
  @Override
  public void onApplicationEvent(FilterArgsEvent event) {
    Map<String, String> own = under(OWN, event.getArgs());
    Map<String, String> gateway = under(GATEWAY, event.getArgs());
    if (own.isEmpty() && gateway.isEmpty()) {
      return;
    }
    try {
      routes.put(event.getRouteId(), config(own, gateway));
    } catch (IllegalArgumentException error) {
      throw new IllegalArgumentException(
          "the limit of the route " + event.getRouteId() + ": " + error.getMessage(), error);
    }
  }

  /** The arguments with a prefix, by names in lower case and without hyphens. */
  private static Map<String, String> under(String prefix, Map<String, Object> arguments) {
    Map<String, String> found = new TreeMap<>();
    arguments.forEach(
        (name, value) -> {
          if (name.startsWith(prefix)) {
            String known = name.substring(prefix.length()).replace("-", "");
            found.put(known.toLowerCase(Locale.ROOT), String.valueOf(value));
          }
        });
    return found;
  }

  private static Config config(Map<String, String> own, Map<String, String> gateway) {
    String only = own.get("rate");
    if (only != null && own.size() == 1 && gateway.isEmpty()) {
      return new Config().setRule(Rule.sliding(only));
    }
    if (!own.isEmpty() || !ARGUMENTS.containsAll(gateway.keySet())) {
      throw new IllegalArgumentException(
          "it has redis-rl.rate, or in its place redis-rate-limiter.replenishRate, burstCapacity,"
              + " requestedTokens and includeHeaders, and not "
              + own.keySet()
              + gateway.keySet());
    }
    // No throttle is faster: who says more means no limit.
    long rate = Math.min(number(gateway, "replenishRate", 1, null), 1_000_000_000);
    long capacity = number(gateway, "burstCapacity", 0, 1L);
    long tokens = number(gateway, "requestedTokens", 1, 1L);
    // A bucket that holds nothing refuses everything.
    Rule rule =
        capacity == 0
            ? Rule.sliding("0/second")
            : Rule.throttle(rate + "/second").burst(capacity - 1).cost(tokens);
    Config config = new Config().setRule(rule);
    config.headers =
        Map.of(
            "X-RateLimit-Replenish-Rate", Long.toString(rate),
            "X-RateLimit-Burst-Capacity", Long.toString(capacity),
            "X-RateLimit-Requested-Tokens", Long.toString(tokens));
    return config;
  }

  private static long number(
      Map<String, String> arguments, String name, long least, @Nullable Long otherwise) {
    String text = arguments.get(name.toLowerCase(Locale.ROOT));
    if (text == null && otherwise != null) {
      return otherwise;
    }
    // No number is needed that has more digits.
    if (text != null && text.matches("\\d{1,18}") && Long.parseLong(text) >= least) {
      return Long.parseLong(text);
    }
    throw new IllegalArgumentException(
        GATEWAY + name + " must be an integer from " + least + " on, not " + text);
  }

  @Override
  public Mono<Response> isAllowed(String routeId, String id) {
    Config config = routes.get(routeId);
    Rule rule = config == null ? null : config.rule;
    if (config == null || rule == null) {
      return Mono.error(
          new IllegalStateException(
              "the route " + routeId + " has no limit: give its RequestRateLimiter redis-rl.rate"));
    }
    if (id.isEmpty()) { // Which clients can send, where the key is a field of the request.
      return Mono.error(new ResponseStatusException(HttpStatus.FORBIDDEN));
    }
    return Threads.back(
            Mono.fromFuture(() -> guard.decideAsync(List.of(new Guard.Limit(id, rule, routeId)))))
        .map(decision -> new Response(decision.allowed(), headers(config, decision)))
        .onErrorMap(
            error -> {
              Answer answer = Answer.of(error);
              return new ResponseStatusException(HttpStatusCode.valueOf(answer.status()));
            });
  }

  private Map<String, String> headers(Config config, Decision decision) {
    if (!includeHeaders) {
      return Map.of();
    }
    Map<String, String> headers = decision.headers();
    if (!config.headers.isEmpty()) {
      headers.putAll(config.headers);
      // As the gateway's own limiter says where no server has decided.
      long left = decision.source() == Decision.Source.OPEN ? -1 : decision.remaining();
      headers.put("X-RateLimit-Remaining", Long.toString(left));
    }
    return headers;
  }
}
