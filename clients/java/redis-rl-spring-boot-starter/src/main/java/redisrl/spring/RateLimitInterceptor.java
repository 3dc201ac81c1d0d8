package redisrl.spring;

import jakarta.servlet.DispatcherType;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import jakarta.servlet.http.MappingMatch;
import java.io.IOException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.service.annotation.HttpExchange;
import org.springframework.web.servlet.HandlerInterceptor;
import org.springframework.web.servlet.HandlerMapping;
import redisrl.Guard;
import redisrl.spring.Settings.Declared;

/** Limits the methods of controllers that have {@link RateLimit}. */
final class RateLimitInterceptor implements HandlerInterceptor {
  private final Guard guard;
  private final Settings settings;
  // By controller and method: controllers share the methods that they inherit.
  private final Map<List<Object>, Optional<Declared>> known = new ConcurrentHashMap<>();

  RateLimitInterceptor(Guard guard, Settings settings) {
    this.guard = guard;
    this.settings = settings;
  }

  /** The limit of a method, with its HTTP methods as the route. A wrong one stops the start. */
  Optional<Declared> limitOf(HandlerMethod handler) {
    return known.computeIfAbsent(
        List.of(handler.getBeanType(), handler.getMethod()),
        controller ->
            Optional.ofNullable(Settings.declaredOn(handler))
                .map(limit -> settings.declared("@RateLimit of " + handler, limit))
                .map(limit -> limit.on(methodsOf(handler.getMethod()))));
  }

  /** GET and POST of one path are two routes. */
  private static String methodsOf(Method method) {
    RequestMapping mapping =
        AnnotatedElementUtils.findMergedAnnotation(method, RequestMapping.class);
    HttpExchange exchange = AnnotatedElementUtils.findMergedAnnotation(method, HttpExchange.class);
    Stream<String> names =
        mapping == null
            ? Stream.ofNullable(exchange).map(HttpExchange::method)
            : Arrays.stream(mapping.method()).map(Enum::name);
    return names.sorted().map(name -> name + " ").collect(Collectors.joining());
  }

  @Override
  public boolean preHandle(HttpServletRequest request, HttpServletResponse response, Object handler)
      throws IOException {
    // A request whose handler works elsewhere comes here again when that is done.
    if (!(handler instanceof HandlerMethod method)
        || request.getDispatcherType() == DispatcherType.ASYNC) {
      return true;
    }
    Declared declared = limitOf(method).orElse(null);
    if (declared == null) {
      return true;
    }
    String route =
        declared.route()
            + request.getContextPath()
            + (request.getHttpServletMapping().getMappingMatch() == MappingMatch.PATH
                ? request.getServletPath()
                : "")
            + request.getAttribute(HandlerMapping.BEST_MATCHING_PATTERN_ATTRIBUTE);
    return RateLimitFilter.admits(
        response,
        Answer.by(
            guard, () -> settings.of(RateLimitFilter.seen(request), List.of(declared.on(route)))));
  }
}
