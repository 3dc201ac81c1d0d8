package redisrl.spring;

import java.util.List;
import redisrl.Guard;

/**
 * The limits of a request, as a bean: in place of the limits of {@code rate-limiter.*}, where they
 * depend on more than those can say.
 *
 * @param <R> {@code HttpServletRequest}, or {@code ServerWebExchange} of WebFlux
 */
@FunctionalInterface
public interface RequestLimits<R> {
  /**
   * The limits of the request: all have room, or it is denied and counts in none. Without any it is
   * not limited.
   *
   * @throws NoIdentityException for a request without an identity
   */
  List<Guard.Limit> of(R request);
}
