package redisrl.spring;

import io.micrometer.core.instrument.MeterRegistry;
import jakarta.servlet.http.HttpServletRequest;
import java.security.Principal;
import java.util.List;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.SmartInitializingSingleton;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnWebApplication;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.cloud.gateway.filter.ratelimit.RateLimiter;
import org.springframework.context.ApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Primary;
import org.springframework.core.env.Environment;
import org.springframework.util.Assert;
import org.springframework.web.reactive.DispatcherHandler;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.WebFilter;
import org.springframework.web.servlet.config.annotation.WebMvcConfigurer;
import org.springframework.web.servlet.handler.MappedInterceptor;
import org.springframework.web.servlet.mvc.method.annotation.RequestMappingHandlerMapping;
import org.springframework.web.util.pattern.PathPattern;
import reactor.core.publisher.Mono;
import redisrl.Guard;
import redisrl.Limiter;
import redisrl.Transport;

/** The limiter, and what limits requests by it in the application's framework. */
@AutoConfiguration(beforeName = "org.springframework.cloud.gateway.config.GatewayAutoConfiguration")
@EnableConfigurationProperties(RateLimiterProperties.class)
public class RateLimiterAutoConfiguration {
  @Bean(destroyMethod = "close")
  @ConditionalOnMissingBean
  Transport rateLimiterTransport(RateLimiterProperties given, Environment environment) {
    return new Connection(environment).to(given.url());
  }

  @Bean(destroyMethod = "close")
  @ConditionalOnMissingBean
  Limiter redisRlLimiter(
      Transport transport, RateLimiterProperties given, ObjectProvider<LimiterListener> listeners) {
    List<LimiterListener> told = listeners.orderedStream().toList();
    return Limiter.builder(transport)
        .prefix(given.prefix())
        .name(given.name())
        .mode(given.mode())
        .listener(event -> told.forEach(listener -> listener.accept(event)))
        .build();
  }

  @Bean
  @ConditionalOnMissingBean
  Guard rateLimiterGuard(Limiter limiter, RateLimiterProperties given) {
    return new Guard(limiter, given.timeout(), given.whenUnavailable(), given.processes());
  }

  /** What limits requests go by, of all kinds of web. */
  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(PathPattern.class)
  static class Web {
    @Bean
    Settings redisRlSettings(RateLimiterProperties given) {
      return new Settings(given);
    }
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(MeterRegistry.class)
  static class Micrometer {
    @Bean
    LimiterListener rateLimiterCounters(ObjectProvider<MeterRegistry> registry) {
      return new Counters(registry);
    }
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(WebMvcConfigurer.class)
  @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.SERVLET)
  static class Mvc {
    @Bean
    RateLimitFilter redisRlFilter(
        Guard guard, Settings settings, ObjectProvider<RequestLimits<HttpServletRequest>> limits) {
      return new RateLimitFilter(
          guard,
          limits.getIfAvailable(() -> request -> settings.of(RateLimitFilter.seen(request), false)),
          Settings.BEFORE_SECURITY);
    }

    @Bean
    @ConditionalOnMissingBean(RequestLimits.class)
    RateLimitFilter redisRlPrincipalFilter(Guard guard, Settings settings) {
      return new RateLimitFilter(
          guard,
          request -> settings.of(RateLimitFilter.seen(request), true),
          Settings.BEHIND_SECURITY);
    }

    @Bean
    RateLimitInterceptor redisRlInterceptor(Guard guard, Settings settings) {
      return new RateLimitInterceptor(guard, settings);
    }

    /** Which every mapping of handlers finds by itself, also one that asks no WebMvcConfigurer. */
    @Bean
    MappedInterceptor redisRlMappedInterceptor(RateLimitInterceptor interceptor) {
      return new MappedInterceptor(null, interceptor);
    }

    /** A rate that is wrong stops the start. */
    @Bean
    SmartInitializingSingleton rateLimitsAreChecked(
        RateLimitInterceptor interceptor, List<RequestMappingHandlerMapping> mappings) {
      return () ->
          mappings.forEach(
              mapping -> mapping.getHandlerMethods().values().forEach(interceptor::limitOf));
    }
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(DispatcherHandler.class)
  @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.REACTIVE)
  static class WebFlux {
    @Bean
    RateLimitWebFilter redisRlWebFilter(
        Guard guard,
        Settings settings,
        ObjectProvider<RequestLimits<ServerWebExchange>> limits,
        ApplicationContext context) {
      RequestLimits<ServerWebExchange> asked =
          limits.getIfAvailable(
              () -> exchange -> settings.of(RateLimitWebFilter.seen(exchange, null), false));
      return new RateLimitWebFilter(
          guard,
          exchange -> Mono.fromCallable(() -> List.copyOf(asked.of(exchange))),
          Settings.BEFORE_SECURITY,
          context);
    }

    @Bean
    @ConditionalOnMissingBean(RequestLimits.class)
    WebFilter redisRlPrincipalWebFilter(
        Guard guard, Settings settings, ApplicationContext context) {
      if (!settings.hasPrincipals()) {
        return (exchange, chain) -> chain.filter(exchange);
      }
      return new RateLimitWebFilter(
          guard,
          exchange ->
              exchange
                  .getPrincipal()
                  .map(Principal::getName)
                  .defaultIfEmpty("")
                  .map(name -> settings.of(RateLimitWebFilter.seen(exchange, name), true)),
          Settings.BEHIND_SECURITY,
          context);
    }

    /** WebFlux has no interceptors: a limit that does nothing must not be taken for one. */
    @Bean
    SmartInitializingSingleton rateLimitsAreRefused(
        List<org.springframework.web.reactive.result.method.annotation.RequestMappingHandlerMapping>
            mappings) {
      return () ->
          mappings.stream()
              .flatMap(mapping -> mapping.getHandlerMethods().values().stream())
              .forEach(
                  method ->
                      Assert.state(
                          Settings.declaredOn(method) == null,
                          () ->
                              "@RateLimit of "
                                  + method
                                  + " is for MVC: with WebFlux use rate-limiter.limits"));
    }
  }

  @Configuration(proxyBeanMethods = false)
  @ConditionalOnClass(RateLimiter.class)
  @ConditionalOnWebApplication(type = ConditionalOnWebApplication.Type.REACTIVE)
  static class Gateway {
    private static final String INCLUDE_HEADERS = "redis-rate-limiter.include-headers";

    @Bean
    @Primary
    RedisRlRateLimiter redisRlRateLimiter(
        Guard guard,
        @Value(
                "${spring.cloud.gateway.server.webflux."
                    + INCLUDE_HEADERS
                    + ":${spring.cloud.gateway."
                    + INCLUDE_HEADERS
                    + ":true}}")
            boolean includeHeaders) {
      return new RedisRlRateLimiter(guard, includeHeaders);
    }
  }
}
