package redisrl.spring;

import jakarta.servlet.DispatcherType;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.method.HandlerMethod;
import org.springframework.web.servlet.HandlerInterceptor;
import org.springframework.web.servlet.HandlerMapping;
import org.springframework.web.servlet.config.annotation.InterceptorRegistry;
import org.springframework.web.servlet.config.annotation.WebMvcConfigurer;

/** Limits the methods of controllers that have {@link RateLimit}. */
final class RateLimitInterceptor implements HandlerInterceptor, WebMvcConfigurer {
  private record Declared(Settings.OnRoute limit, String methods) {}

  private final RateLimitFilter filter;
  private final Settings settings;
  private final Map<Method, Optional<Declared>> known = new ConcurrentHashMap<>();

  RateLimitInterceptor(RateLimitFilter filter, Settings settings) {
    this.filter = filter;
    this.settings = settings;
  }

  @Override
  public void addInterceptors(InterceptorRegistry registry) {
    registry.addInterceptor(this);
  }

  /** The limit of a method. A wrong one stops the start. */
  Optional<Declared> limitOf(HandlerMethod handler) {
    return known.computeIfAbsent(
        handler.getMethod(),
        method ->
            Optional.ofNullable(Settings.declaredOn(handler))
                .map(limit -> declared(handler, limit)));
  }

  private Declared declared(HandlerMethod handler, RateLimit limit) {
    return new Declared(
        settings.onRoute("@RateLimit of " + handler, limit), methodsOf(handler.getMethod()));
  }

  /** GET and POST of one path are two routes. */
  private static String methodsOf(Method method) {
    RequestMapping mapping =
        AnnotatedElementUtils.findMergedAnnotation(method, RequestMapping.class);
    return mapping == null
        ? ""
        : Arrays.stream(mapping.method())
            .map(Enum::name)
            .sorted()
            .map(name -> name + " ")
            .collect(Collectors.joining());
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
        declared.methods()
            + request.getContextPath()
            + request.getAttribute(HandlerMapping.BEST_MATCHING_PATTERN_ATTRIBUTE);
    return filter.admits(response, () -> declared.limit().of(RateLimitFilter.seen(request), route));
  }
}
