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
import java.util.regex.Pattern;
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
  private static final Pattern SLASHES = Pattern.compile("//+");

  private final Guard guard;
  private final RequestLimits<HttpServletRequest> limits;
  private final int order;

  RateLimitFilter(Guard guard, RequestLimits<HttpServletRequest> limits, int order) {
    this.guard = guard;
    this.limits = limits;
    this.order = order;
  }

  /** A request as limits see it: with the path as Spring MVC routes it. */
  static Settings.Request seen(HttpServletRequest of) {
    var forwarded = of.getHeaders(Settings.FORWARDED);
    return new Settings.Request(
        of.getMethod(),
        // Slashes that follow one another are one to the router with ant_path_matcher.
        () ->
            RequestPath.parse(
                    SLASHES.matcher(of.getRequestURI()).replaceAll("/"), of.getContextPath())
                .pathWithinApplication(),
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
    if (CorsUtils.isPreFlightRequest(request)
        || admits(response, Answer.by(guard, () -> limits.of(request)))) {
      chain.doFilter(request, response);
    }
  }

  /** Whether the request goes on. It has its answer otherwise. */
  static boolean admits(HttpServletResponse response, Answer answer) throws IOException {
    answer.headers().forEach(response::setHeader);
    if (!answer.passes()) {
      response.setStatus(answer.status());
      response.setContentType(Answer.CONTENT_TYPE);
      response.getOutputStream().write(answer.body().getBytes(UTF_8));
    }
    return answer.passes();
  }
}
