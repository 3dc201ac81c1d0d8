package faults;

import jakarta.servlet.http.HttpServletResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.cloud.gateway.filter.ratelimit.KeyResolver;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.http.HttpHeaders;
import org.springframework.http.HttpStatusCode;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ServerWebExchange;
import reactor.core.publisher.Mono;
import redisrl.Guard;
import redisrl.Rule;
import redisrl.spring.NoIdentityException;
import redisrl.spring.RequestLimits;

/**
 * Applications with the starter: Spring MVC by properties alone, WebFlux by a bean with the limits
 * of each request, and a route of Spring Cloud Gateway.
 */
final class Apps {
  static String can(String kind) {
    return "serve memory open closed local several processes identity local-memory cluster own"
        + (kind.equals("webflux") ? " cost" : "");
  }

  static Map<String, Object> serve(String kind, Main.Request r) {
    Main.Ruled rule = r.rule();
    boolean isPlain = rule.kind().equals("sliding") && rule.cost() == null && !rule.force();
    if (!isPlain && !kind.equals("webflux")) {
      throw new IllegalArgumentException("properties say plain sliding rates");
    }
    List<String> properties =
        new ArrayList<>(
            List.of(
                "server.port=0",
                "spring.main.banner-mode=off",
                "server.max-http-request-header-size=1MB",
                "server.netty.max-initial-line-length=1MB",
                "rate-limiter.url=" + url(r.connect())));
    if (r.policy() != null) {
      properties.add("rate-limiter.when-unavailable=" + r.policy());
    }
    if (r.processes() != null) {
      properties.add("rate-limiter.processes=" + r.processes());
    }
    if (r.timeout() > 0) {
      properties.add("rate-limiter.timeout=" + (long) (r.timeout() * 1000) + "ms");
    }
    String rates = String.join(", ", rule.rates());
    if (kind.equals("mvc")) {
      properties.add("rate-limiter.key=header:x-key");
      properties.add("rate-limiter.rate=" + rates);
      properties.add("spring.cloud.gateway.enabled=false");
    }
    if (kind.equals("gateway")) {
      String route = "spring.cloud.gateway.server.webflux.routes[0].";
      properties.add(route + "id=in");
      properties.add(route + "uri=forward:///in");
      properties.add(route + "predicates[0]=Path=/");
      properties.add(route + "filters[0].name=RequestRateLimiter");
      properties.add(route + "filters[0].args.redis-rl.rate=" + rates);
    }
    var app =
        switch (kind) {
          case "mvc" -> new SpringApplicationBuilder(Mvc.class).web(WebApplicationType.SERVLET);
          case "gateway" ->
              new SpringApplicationBuilder(Gateway.class).web(WebApplicationType.REACTIVE);
          default ->
              new SpringApplicationBuilder(Flux.class)
                  .web(WebApplicationType.REACTIVE)
                  .initializers(
                      context ->
                          context
                              .getBeanFactory()
                              .registerSingleton("rule", rule.made(null, false)));
        };
    System.setProperty("org.springframework.boot.logging.LoggingSystem", "none");
    var context = app.properties(properties.toArray(String[]::new)).run();
    Map<String, Object> told = Main.done(0);
    told.put("port", context.getEnvironment().getProperty("local.server.port", Integer.class));
    return told;
  }

  private static String url(Main.Connect to) {
    return to.cluster() == null
        ? to.url()
        : to.cluster().stream().map(node -> "redis://" + node).collect(Collectors.joining(","));
  }

  @Configuration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @RestController
  static class Mvc {
    @GetMapping("/")
    String in(
        @RequestHeader(name = "x-status", defaultValue = "200") int status,
        HttpServletResponse response) {
      response.setStatus(status);
      return "in";
    }
  }

  @Configuration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @RestController
  static class Flux {
    @GetMapping("/")
    Mono<ResponseEntity<String>> in(
        @RequestHeader(name = "x-status", defaultValue = "200") int status) {
      return Mono.just(ResponseEntity.status(HttpStatusCode.valueOf(status)).body("in"));
    }

    @Bean
    RequestLimits<ServerWebExchange> limits(Rule rule) {
      return exchange -> {
        HttpHeaders headers = exchange.getRequest().getHeaders();
        String key = headers.getFirst("x-key");
        if (key == null) {
          throw new NoIdentityException();
        }
        String cost = headers.getFirst("x-cost");
        Rule weighed =
            cost != null && rule instanceof Rule.Sliding sliding
                ? sliding.cost(Long.parseLong(cost))
                : rule;
        return List.of(new Guard.Limit(key, weighed, null));
      };
    }
  }

  @Configuration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @RestController
  static class Gateway {
    @GetMapping("/in")
    Mono<ResponseEntity<String>> in(
        @RequestHeader(name = "x-status", defaultValue = "200") int status) {
      return Mono.just(ResponseEntity.status(HttpStatusCode.valueOf(status)).body("in"));
    }

    @Bean
    KeyResolver who() {
      return exchange -> Mono.justOrEmpty(exchange.getRequest().getHeaders().getFirst("x-key"));
    }
  }

  private Apps() {}
}
