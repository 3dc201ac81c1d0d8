package redisrl.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * A limit of a method of a Spring MVC controller, or of each method of a controller. It is counted
 * by the route's template: {@code /item/1} and {@code /item/2} of {@code /item/{id}} are one limit.
 */
@Documented
@Target({ElementType.METHOD, ElementType.TYPE})
@Retention(RetentionPolicy.RUNTIME)
public @interface RateLimit {
  /** The rates of the limit: {@code "3/hour"}, or several windows. */
  String[] value();

  /** Who is limited: address, principal or header:NAME; {@code rate-limiter.key} unless given. */
  String key() default "";

  /** What a request weighs. */
  long cost() default 1;

  /** What the limit is called. All routes whose limit has this name share it. */
  String name() default "";
}
