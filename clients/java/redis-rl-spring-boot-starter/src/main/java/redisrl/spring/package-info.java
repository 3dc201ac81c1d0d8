/** Limits for Spring MVC, WebFlux and Spring Cloud Gateway, by {@code rate-limiter.*}. */
@NullMarked
package redisrl.spring;

import org.jspecify.annotations.NullMarked;
