package redisrl.spring;

import static redisrl.spring.RateLimiterProperties.checked;
import static redisrl.spring.RateLimiterProperties.wrong;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.context.properties.source.InvalidConfigurationPropertyValueException;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.http.server.PathContainer;
import org.springframework.web.bind.annotation.RequestMethod;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.util.pattern.PathPattern;
import org.springframework.web.util.pattern.PathPatternParser;
import redisrl.Addresses;
import redisrl.Guard;
import redisrl.Rule;
import redisrl.spring.RateLimiterProperties.Algorithm;

/** What {@code rate-limiter.*} means. A value that means nothing stops the start. */
final class Settings {
  static final String FORWARDED = "X-Forwarded-For";

  /** The place of limits before Spring Security, so that guessing passwords is limited. */
  static final int BEFORE_SECURITY = -110;

  /** The place of limits by principal, who is not known before. */
  static final int BEHIND_SECURITY = -90;

  private static final String PRINCIPAL = "principal";

  /**
   * What a request has that limits go by.
   *
   * @param forwarded the lines of X-Forwarded-For
   * @param header the first line of a header
   */
  record Request(
      String method,
      Supplier<PathContainer> path,
      @Nullable String peer,
      List<String> forwarded,
      Function<String, @Nullable String> header,
      Supplier<@Nullable String> principal) {}

  /** Who is limited: address, principal or a header. */
  record Key(String text, Function<Request, @Nullable String> identity) {}

  /** A limit of some requests. */
  record Declared(
      Rule rule, Key key, List<PathPattern> paths, Set<String> methods, @Nullable String route) {
    /** One that is declared on a route, which is known with a request. */
    Declared on(String route) {
      return new Declared(rule, key, paths, methods, route);
    }

    boolean isByPrincipal() {
      return key.text().equals(PRINCIPAL);
    }

    boolean concerns(Request request) {
      // A HEAD is answered by the handler of GET.
      String method = request.method();
      boolean isAsked =
          methods.isEmpty()
              || methods.contains(method)
              || method.equals("HEAD") && methods.contains("GET");
      if (!isAsked || paths.isEmpty()) {
        return isAsked;
      }
      PathContainer path = request.path().get();
      return paths.stream().anyMatch(pattern -> pattern.matches(path));
    }
  }

  private final RateLimiterProperties given;
  private final Addresses addresses;
  private final boolean isFixed;
  private final Key key;
  private final List<Declared> limits = new ArrayList<>();
  private final Map<String, Rule> named = new ConcurrentHashMap<>();

  Settings(RateLimiterProperties given) {
    this.given = given;
    this.addresses = new Addresses(given.trustedProxies(), given.ipv6Prefix());
    this.isFixed =
        given.useAlgo() == Algorithm.FIXED || given.useAlgo() == Algorithm.FIXED_WINDOW_ALGO;
    this.key = key("key", given.key());
    Rule rule = ruleOfAll();
    if (rule != null) {
      limits.add(new Declared(rule, key, List.of(), Set.of(), route(List.of(), Set.of(), key)));
    }
    for (int i = 0; i < given.limits().size(); i++) {
      limits.add(declared("limits[" + i + "]", given.limits().get(i)));
    }
  }

  private @Nullable Rule ruleOfAll() {
    var size = given.windowSize();
    Long most = given.maxRequests();
    String rate = given.rate();
    if ((size == null) != (most == null) || size != null && rate != null) {
      throw wrong(
          "rate", rate, "It is given, or in its place window-size and max-requests together.");
    }
    if (size == null || most == null) {
      return rate == null ? null : rule("rate", rate);
    }
    return checked(
        "max-requests", most, () -> isFixed ? Rule.fixed(most, size) : Rule.sliding(most, size));
  }

  private Rule.Windowed<?> rule(String property, String... rates) {
    return checked(
        property,
        String.join(", ", rates),
        () -> isFixed ? Rule.fixed(rates) : Rule.sliding(rates));
  }

  /** A rule of a limit, which may have a name and weigh more than 1. */
  private Rule rule(String at, @Nullable String name, long cost, String... rates) {
    Rule.Windowed<?> plain = rule(at + "rate", rates);
    Rule other = name == null ? null : named.putIfAbsent(name, plain);
    if (other != null && !other.equals(plain)) {
      throw wrong(at + "name", name, "Limits with one name are one limit, and have one rate.");
    }
    Rule.Windowed<?> weighed =
        cost == 1 ? plain : checked(at + "cost", cost, () -> plain.cost(cost));
    return name == null ? weighed : checked(at + "name", name, () -> weighed.name(name));
  }

  private Declared declared(String at, RateLimiterProperties.Limit limit) {
    String rate = limit.rate();
    if (rate == null) {
      throw wrong(at + ".rate", null, "A limit has a rate, such as 100/minute.");
    }
    Rule rule = rule(at + ".", limit.name(), limit.cost(), rate);
    Key by = limit.key() == null ? key : key(at + ".key", limit.key());
    List<PathPattern> paths = new ArrayList<>();
    for (String path : limit.paths()) {
      paths.add(
          checked(
              at + ".paths",
              path,
              () ->
                  PathPatternParser.defaultInstance.parse(
                      path.startsWith("/") ? path : "/" + path)));
    }
    Set<String> methods = new HashSet<>();
    for (String method : limit.methods()) {
      if (RequestMethod.resolve(method.toUpperCase(Locale.ROOT)) == null) {
        String all = Arrays.toString(RequestMethod.values());
        throw wrong(at + ".methods", method, "A method is one of " + all + ".");
      }
      methods.add(method.toUpperCase(Locale.ROOT));
    }
    return new Declared(rule, by, paths, methods, route(limit.paths(), methods, by));
  }

  /** What tells limits with the same rates apart. */
  private static @Nullable String route(List<String> paths, Set<String> methods, Key key) {
    List<String> parts = new ArrayList<>(paths);
    methods.stream().sorted().forEach(parts::add);
    if (!key.text().equals("address")) {
      parts.add(key.text());
    }
    return parts.isEmpty() ? null : String.join(" ", parts);
  }

  private Key key(String property, String text) {
    return switch (text) {
      case "address" -> new Key(text, request -> addresses.of(request.peer(), request.forwarded()));
      case PRINCIPAL -> new Key(text, request -> request.principal().get());
      default -> {
        String header =
            text.startsWith("header:") ? text.substring("header:".length()).strip() : "";
        if (header.isEmpty()) {
          throw wrong(property, text, "It must be address, principal or header:NAME.");
        }
        yield new Key(text, request -> request.header().apply(header));
      }
    };
  }

  /** By the key of all. */
  Declared declared(Rule rule) {
    return new Declared(rule, key, List.of(), Set.of(), null);
  }

  /** The limit that a method of a controller was declared with. */
  static @Nullable RateLimit declaredOn(HandlerMethod handler) {
    RateLimit own = handler.getMethodAnnotation(RateLimit.class);
    return own != null
        ? own
        : AnnotatedElementUtils.findMergedAnnotation(handler.getBeanType(), RateLimit.class);
  }

  /** Text that is empty was not given. */
  Declared declared(String at, RateLimit limit) {
    try {
      String name = limit.name().isEmpty() ? null : limit.name();
      Rule rule = rule("", name, limit.cost(), limit.value());
      Key by = limit.key().isEmpty() ? key : key("key", limit.key());
      return new Declared(rule, by, List.of(), Set.of(), null);
    } catch (InvalidConfigurationPropertyValueException error) {
      throw new IllegalStateException(at + ": " + error.getReason(), error);
    }
  }

  /** Whether rates are those of fixed windows. */
  boolean isFixed() {
    return isFixed;
  }

  boolean hasPrincipals() {
    return limits.stream().anyMatch(Declared::isByPrincipal);
  }

  /** The limits of a request: those by principal, or all others. */
  List<Guard.Limit> of(Request request, boolean byPrincipal) {
    return of(request, limits.stream().filter(one -> one.isByPrincipal() == byPrincipal).toList());
  }

  List<Guard.Limit> of(Request request, List<Declared> declared) {
    List<Guard.Limit> found = new ArrayList<>();
    for (Declared limit : declared) {
      if (limit.concerns(request)) {
        String identity = limit.key().identity().apply(request);
        if (identity != null && !identity.isEmpty()) {
          found.add(new Guard.Limit(identity, limit.rule(), limit.route()));
        } else if (!given.allowWithoutIdentity()) {
          throw new NoIdentityException();
        }
      }
    }
    return found;
  }
}
