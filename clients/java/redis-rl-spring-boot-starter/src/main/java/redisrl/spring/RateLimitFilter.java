package redisrl.spring;

import static java.nio.charset.StandardCharsets.UTF_8;

import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.security.Principal;
import java.util.Collections;
import java.util.List;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import org.springframework.core.Ordered;
import org.springframework.http.server.RequestPath;
import org.springframework.web.cors.CorsUtils;
import org.springframework.web.filter.OncePerRequestFilter;
import redisrl.Guard;

/**
 * Limits the requests of a servlet container, and answers those that are denied. Preflight requests
 * of CORS are not counted.
 */
final class RateLimitFilter extends OncePerRequestFilter implements Ordered {
  private final Guard guard;
  private final RequestLimits<HttpServletRequest> limits;
  private final int order;

  /** With the limits of the settings, or with others. */
  RateLimitFilter(
      Guard guard, @Nullable RequestLimits<HttpServletRequest> others, Settings settings) {
    this.guard = guard;
    this.limits = others != null ? others : request -> settings.of(seen(request));
    this.order = settings.order(others != null);
  }

  /** A request as limits see it: with the path as Spring MVC routes it. */
  static Settings.Request seen(HttpServletRequest of) {
    var forwarded = of.getHeaders(Settings.FORWARDED);
    return new Settings.Request(
        of.getMethod(),
        () -> RequestPath.parse(of.getRequestURI(), of.getContextPath()).pathWithinApplication(),
        of.getRemoteAddr(),
        forwarded == null ? List.of() : Collections.list(forwarded),
        of::getHeader,
        () -> {
          Principal principal = of.getUserPrincipal();
          return principal == null ? null : principal.getName();
        });
  }

  @Override
  public int getOrder() {
    return order;
  }

  @Override
  protected void doFilterInternal(
      HttpServletRequest request, HttpServletResponse response, FilterChain chain)
      throws ServletException, IOException {
    if (CorsUtils.isPreFlightRequest(request) || admits(response, () -> limits.of(request))) {
      chain.doFilter(request, response);
    }
  }

  Answer decide(Supplier<List<Guard.Limit>> limits) {
    try {
      List<Guard.Limit> asked = limits.get();
      return asked.isEmpty() ? Answer.UNLIMITED : Answer.of(guard.decide(asked));
    } catch (RuntimeException error) {
      return Answer.of(error);
    }
  }

  /** Whether the request goes on. It has its answer otherwise. */
  boolean admits(HttpServletResponse response, Supplier<List<Guard.Limit>> limits)
      throws IOException {
    Answer answer = decide(limits);
    answer.headers().forEach(response::setHeader);
    if (!answer.passes()) {
      response.setStatus(answer.status());
      response.setContentType(Answer.CONTENT_TYPE);
      response.getOutputStream().write(answer.body().getBytes(UTF_8));
    }
    return answer.passes();
  }
}
