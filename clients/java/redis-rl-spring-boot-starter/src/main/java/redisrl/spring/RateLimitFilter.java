package redisrl.spring;

import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import org.springframework.core.Ordered;
import org.springframework.web.cors.CorsUtils;
import org.springframework.web.filter.OncePerRequestFilter;

/** Limits the requests of a servlet container. Preflight requests of CORS are not counted. */
final class RateLimitFilter extends OncePerRequestFilter implements Ordered {
  /** Before Spring Security, so that guessing passwords is limited. */
  static final int BEFORE_SECURITY = -110;

  /** Behind it, where limits go by the principal. */
  static final int AFTER_SECURITY = -90;

  private final ServletAdmission admission;
  private final RequestLimits<HttpServletRequest> limits;
  private final int order;

  RateLimitFilter(ServletAdmission admission, RequestLimits<HttpServletRequest> limits, int order) {
    this.admission = admission;
    this.limits = limits;
    this.order = order;
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
        || admission.admits(response, () -> limits.of(request))) {
      chain.doFilter(request, response);
    }
  }
}
