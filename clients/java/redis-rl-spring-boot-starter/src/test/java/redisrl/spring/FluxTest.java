package redisrl.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.reflect.Proxy;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Locale;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cloud.gateway.filter.ratelimit.KeyResolver;
import org.springframework.cloud.gateway.filter.ratelimit.RateLimiter;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Import;
import org.springframework.core.annotation.Order;
import org.springframework.http.HttpStatus;
import org.springframework.http.server.reactive.HttpHandler;
import org.springframework.http.server.reactive.ReactorHttpHandlerAdapter;
import org.springframework.http.server.reactive.ServerHttpRequest;
import org.springframework.stereotype.Component;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.cors.CorsConfiguration;
import org.springframework.web.cors.reactive.CorsWebFilter;
import org.springframework.web.cors.reactive.UrlBasedCorsConfigurationSource;
import org.springframework.web.server.ServerWebExchange;
import org.springframework.web.server.WebFilter;
import org.springframework.web.server.WebFilterChain;
import org.springframework.web.server.WebHandler;
import org.springframework.web.server.adapter.WebHttpHandlerBuilder;
import reactor.core.publisher.Mono;
import reactor.netty.DisposableServer;
import reactor.netty.http.server.HttpServer;
import reactor.util.context.Context;
import redisrl.Guard;
import redisrl.Rule;
import redisrl.TestServer;

/** Limits of WebFlux and of Spring Cloud Gateway, over HTTP. */
class FluxTest {
  private static TestServer server;

  @BeforeAll
  static void start() throws Exception {
    server = new TestServer(true);
  }

  @AfterAll
  static void stop() throws Exception {
    server.close();
  }

  @BeforeEach
  void empty() {
    server.run("FLUSHALL");
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @RestController
  static class Shop {
    @GetMapping({"/", "/login", "/api/a", "/api/b"})
    Mono<String> in() {
      return Mono.just("in");
    }

    @Bean
    KeyResolver who() {
      return exchange -> Mono.justOrEmpty(exchange.getRequest().getHeaders().getFirst("X-Key"));
    }
  }

  @Test
  void requestsAreLimited() throws Exception {
    try (App app =
        App.reactive(
            Shop.class,
            App.url(server),
            "rate-limiter.rate=4/hour",
            "rate-limiter.trusted-proxies=127.0.0.1",
            "rate-limiter.limits[0].paths=/api/**",
            "rate-limiter.limits[0].rate=3/hour",
            "rate-limiter.limits[0].cost=2",
            "rate-limiter.limits[0].key=header:X-Key")) {
      HttpResponse<String> first = app.get("/");
      assertThat(first.statusCode()).isEqualTo(200);
      assertThat(first.headers().firstValue("RateLimit-Policy")).hasValue("\"3600s\";q=4;w=3600");
      assertThat(app.statuses(4, "/login")).containsExactly(200, 200, 200, 429);
      HttpResponse<String> denied = app.get("/");
      assertThat(denied.headers().firstValue("Retry-After")).isPresent();
      assertThat(denied.headers().firstValue("Content-Type")).hasValue("application/problem+json");
      assertThat(denied.body()).contains("quota-exceeded");
      assertThat(app.get("/", "X-Forwarded-For", "6.6.6.6, 198.51.100.1").statusCode())
          .isEqualTo(200);
      assertThat(app.get("/", "X-Forwarded-For", "unknown").statusCode()).isEqualTo(403);
      String[] other = {"X-Forwarded-For", "198.51.100.2", "X-Key", "a,b"};
      assertThat(app.statuses(2, "/api/a", other)).containsExactly(200, 429);
      assertThat(app.statuses(3, "/", other)).containsOnly(200);
      assertThat(server.run("KEYS", "*"))
          .contains("rl:sliding-4/3600s:{198.51.100.1}")
          .contains("rl:/api/** header%3AX-Key sliding-3/3600s:{a,b}");
    }
  }

  @Test
  void theAddressThatSpringHasFromAHeaderCounts() throws Exception {
    try (App app =
        App.reactive(
            Shop.class,
            App.url(server),
            "rate-limiter.rate=1/hour",
            "server.forward-headers-strategy=framework")) {
      assertThat(app.statuses(2, "/", "X-Forwarded-For", "203.0.113.7")).containsExactly(200, 429);
      assertThat(app.statuses(1, "/", "X-Forwarded-For", "203.0.113.8")).containsExactly(200);
    }
  }

  @Test
  void aLimitByPrincipalRefusesWhoIsNotAuthenticated() throws Exception {
    try (App app =
        App.reactive(
            Shop.class,
            App.url(server),
            "rate-limiter.rate=2/hour",
            "rate-limiter.key=principal")) {
      assertThat(app.get("/").statusCode()).isEqualTo(403);
    }
    try (App app =
        App.reactive(
            Shop.class,
            App.url(server),
            "rate-limiter.rate=2/hour",
            "rate-limiter.key=principal",
            "rate-limiter.allow-without-identity=true")) {
      assertThat(app.statuses(3, "/")).containsOnly(200);
    }
  }

  /** At the place of Spring Security, lets in who says a name. */
  @Component
  @Order(-100)
  static class Security implements WebFilter {
    @Override
    public Mono<Void> filter(ServerWebExchange exchange, WebFilterChain chain) {
      String user = exchange.getRequest().getHeaders().getFirst("X-User");
      if (user == null) {
        exchange.getResponse().setStatusCode(HttpStatus.UNAUTHORIZED);
        return exchange.getResponse().setComplete();
      }
      return chain.filter(exchange.mutate().principal(Mono.just(() -> user)).build());
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @Import({Security.class, Shop.class})
  static class Secured {}

  @Test
  void passwordsCannotBeGuessedWhereUsersAreLimitedToo() throws Exception {
    try (App app =
        App.reactive(
            Secured.class,
            App.url(server),
            "rate-limiter.rate=5/hour",
            "rate-limiter.limits[0].key=principal",
            "rate-limiter.limits[0].rate=2/hour")) {
      assertThat(app.statuses(2, "/")).containsExactly(401, 401);
      assertThat(app.statuses(3, "/", "X-User", "a")).containsExactly(200, 200, 429);
      assertThat(app.statuses(1, "/")).containsExactly(429);
      assertThat(server.run("KEYS", "*"))
          .contains("rl:sliding-5/3600s:{127.0.0.1}")
          .contains("rl:principal sliding-2/3600s:{a}");
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @RestController
  static class Others {
    @GetMapping("/")
    String in() {
      return "in";
    }

    @Bean
    RequestLimits<ServerWebExchange> limits() {
      return exchange -> List.of(new Guard.Limit("all", Rule.sliding("2/hour"), null));
    }
  }

  @Test
  void anApplicationMayHaveLimitsOfItsOwn() throws Exception {
    try (App app = App.reactive(Others.class, App.url(server))) {
      assertThat(app.statuses(3, "/")).containsExactly(200, 200, 429);
    }
  }

  /** As Actuator's on a port of its own: it has the filters of its parent. */
  @Test
  void aServerInAContextBelowIsNotLimited() throws Exception {
    try (App app = App.reactive(Shop.class, App.url(server), "rate-limiter.rate=0/hour");
        var child = new AnnotationConfigApplicationContext()) {
      child.setParent(app.context);
      child.registerBean("webHandler", WebHandler.class, () -> exchange -> Mono.empty());
      child.refresh();
      HttpHandler handler = WebHttpHandlerBuilder.applicationContext(child).build();
      DisposableServer other =
          HttpServer.create().port(0).handle(new ReactorHttpHandlerAdapter(handler)).bindNow();
      HttpRequest request =
          HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + other.port())).build();
      assertThat(
              HttpClient.newHttpClient()
                  .send(request, HttpResponse.BodyHandlers.ofString())
                  .statusCode())
          .isEqualTo(200);
      assertThat(app.get("/").statusCode()).isEqualTo(429);
      other.disposeNow();
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class Nothing {
    @Bean
    RequestLimits<ServerWebExchange> limits() {
      return exchange -> null;
    }
  }

  @Test
  void aBeanThatReturnsNoListIsAnError() throws Exception {
    try (App app = App.reactive(Nothing.class, App.url(server))) {
      assertThat(app.get("/").statusCode()).isEqualTo(500);
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @RestController
  static class Annotated {
    @RateLimit("3/hour")
    @GetMapping("/")
    String in() {
      return "in";
    }
  }

  @Test
  void anAnnotationThatWouldDoNothingStopsTheStart() {
    assertThatThrownBy(() -> App.reactive(Annotated.class, App.url(server)))
        .hasMessageContaining("with WebFlux use rate-limiter.limits");
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class Cors {
    @Bean
    @Order(-120)
    CorsWebFilter cors() {
      UrlBasedCorsConfigurationSource source = new UrlBasedCorsConfigurationSource();
      source.registerCorsConfiguration("/**", new CorsConfiguration().applyPermitDefaultValues());
      return new CorsWebFilter(source);
    }
  }

  @Test
  void aDenialHasTheFieldsOfCorsWhereTheirFilterComesFirst() throws Exception {
    try (App app = App.reactive(Cors.class, App.url(server), "rate-limiter.rate=0/hour")) {
      HttpResponse<String> denied = app.get("/", "Origin", "http://shop.test");
      assertThat(denied.statusCode()).isEqualTo(429);
      assertThat(denied.headers().firstValue("Access-Control-Allow-Origin")).hasValue("*");
    }
  }

  private static String[] route(int number, String id, String path, String... arguments) {
    String route = "spring.cloud.gateway.server.webflux.routes[" + number + "].";
    String[] properties = new String[5 + arguments.length];
    properties[0] = route + "id=" + id;
    properties[1] = route + "uri=forward:///";
    properties[2] = route + "predicates[0]=Path=" + path;
    properties[3] = route + "filters[0].name=RequestRateLimiter";
    properties[4] = route + "filters[1]=SetPath=/login";
    for (int i = 0; i < arguments.length; i++) {
      properties[5 + i] = route + "filters[0].args." + arguments[i];
    }
    return properties;
  }

  private static String[] before(int burst) {
    return route(
        1,
        "before",
        "/before",
        "redis-rate-limiter.replenishRate=1",
        "redis-rate-limiter.burstCapacity=" + burst,
        "redis-rate-limiter.requestedTokens=60");
  }

  private static String[] joined(String[]... parts) {
    return java.util.Arrays.stream(parts).flatMap(java.util.Arrays::stream).toArray(String[]::new);
  }

  @Test
  void theLimiterOfRoutesOfTheGateway() throws Exception {
    try (App app =
        App.reactive(
            Shop.class,
            App.url(server),
            joined(
                route(0, "minutes", "/minutes", "redis-rl.rate=2/hour"),
                before(120),
                route(2, "none", "/none")))) {
      assertThat(app.context.getBean(RateLimiter.class)).isInstanceOf(RedisRlRateLimiter.class);
      assertThat(app.context.getBean("redisRlRateLimiter")).isNotNull();
      HttpResponse<String> first = app.get("/minutes", "X-Key", "a");
      assertThat(first.headers().firstValue("RateLimit-Policy")).hasValue("\"3600s\";q=2;w=3600");
      assertThat(app.statuses(2, "/minutes", "X-Key", "a")).containsExactly(200, 429);
      assertThat(app.statuses(1, "/minutes", "X-Key", "b")).containsExactly(200);
      assertThat(app.get("/minutes").statusCode()).isEqualTo(403);
      assertThat(app.get("/minutes", "X-Key", "").statusCode()).isEqualTo(403);

      HttpResponse<String> throttled = app.get("/before", "X-Key", "a");
      assertThat(throttled.headers().firstValue("X-RateLimit-Burst-Capacity")).hasValue("120");
      assertThat(throttled.headers().firstValue("X-RateLimit-Remaining").map(Integer::parseInt))
          .hasValueSatisfying(left -> assertThat(left).isBetween(60, 62));
      assertThat(app.statuses(2, "/before", "X-Key", "a")).containsExactly(200, 429);
      assertThat(app.get("/none", "X-Key", "a").statusCode()).isEqualTo(500);
      assertThat(server.run("KEYS", "*"))
          .contains("rl:minutes sliding-2/3600s:{a}")
          .contains("rl:before throttle-119-1/1s:{a}");
    }
  }

  @Test
  void aRouteWhoseLimitIsMeantToBeNoneStarts() throws Exception {
    try (App app =
        App.reactive(
            Shop.class,
            App.url(server),
            route(
                0,
                "most",
                "/most",
                "redis-rate-limiter.replenishRate=2147483647",
                "redis-rate-limiter.burstCapacity=2147483647"))) {
      assertThat(app.statuses(2, "/most", "X-Key", "a")).containsOnly(200);
    }
  }

  @Test
  void aRouteThatNobodyDecidesOnSaysNotWhatIsLeft() throws Exception {
    try (App app =
        App.reactive(
            Shop.class,
            "redis://127.0.0.1:1",
            joined(
                route(0, "none", "/none"),
                before(60),
                new String[] {"rate-limiter.timeout=250ms"}))) {
      HttpResponse<String> response = app.get("/before", "X-Key", "a");
      assertThat(response.statusCode()).isEqualTo(200);
      assertThat(response.headers().firstValue("X-RateLimit-Remaining")).hasValue("-1");
    }
  }

  /** Reactor Netty stops to read where other threads answer: see Threads. */
  @Test
  void aConnectionIsReadAfterRequestsThatWereDecided() throws Exception {
    try (App app =
        App.reactive(
            Shop.class,
            App.url(server),
            joined(
                route(0, "all", "/all", "redis-rl.rate=9999/hour"),
                new String[] {
                  "rate-limiter.limits[0].paths=/api/**", "rate-limiter.limits[0].rate=9999/hour"
                }))) {
      for (int i = 0; i < 300; i++) {
        assertThat(app.get("/api/a").statusCode()).isEqualTo(200);
        assertThat(app.get("/login").statusCode()).isEqualTo(200);
        assertThat(app.get("/all", "X-Key", "a").statusCode()).isEqualTo(200);
        assertThat(app.get("/all").statusCode()).isEqualTo(403);
      }
    }
  }

  @Test
  void aRequestThatNoServerHasReadIsDecided() {
    ServerHttpRequest mock =
        (ServerHttpRequest)
            Proxy.newProxyInstance(
                getClass().getClassLoader(),
                new Class<?>[] {ServerHttpRequest.class},
                (proxy, method, arguments) -> null);
    assertThat(Threads.with(Context.empty(), mock).isEmpty()).isTrue();
  }

  @Test
  void aFilterOfAllRoutesLimitsEachOfThem() throws Exception {
    String filter = "spring.cloud.gateway.server.webflux.default-filters[0].";
    String route = "spring.cloud.gateway.server.webflux.routes[";
    try (App app =
        App.reactive(
            Shop.class,
            App.url(server),
            filter + "name=RequestRateLimiter",
            filter + "args.redis-rl.rate=1/hour",
            "spring.cloud.gateway.server.webflux.default-filters[1]=SetPath=/login",
            route + "0].id=a",
            route + "0].uri=forward:///",
            route + "0].predicates[0]=Path=/all/a",
            route + "1].id=b",
            route + "1].uri=forward:///",
            route + "1].predicates[0]=Path=/all/b")) {
      assertThat(app.statuses(2, "/all/a", "X-Key", "a")).containsExactly(200, 429);
      assertThat(app.statuses(2, "/all/b", "X-Key", "a")).containsExactly(200, 429);
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"", "server.webflux."})
  void theFieldsOfRoutesAreLeftOutWhereTheGatewayIsToldSo(String part) throws Exception {
    try (App app =
        App.reactive(
            Shop.class,
            App.url(server),
            joined(
                route(0, "hours", "/hours", "redis-rl.rate=1/hour"),
                before(60),
                new String[] {
                  "spring.cloud.gateway." + part + "redis-rate-limiter.include-headers=false"
                }))) {
      for (String path : List.of("/hours", "/before")) {
        for (int status : List.of(200, 429)) {
          HttpResponse<String> response = app.get(path, "X-Key", "a");
          assertThat(response.statusCode()).isEqualTo(status);
          assertThat(response.headers().map().keySet())
              .noneMatch(name -> name.toLowerCase(Locale.ROOT).contains("rate"));
        }
      }
    }
  }

  @Test
  void argumentsOfARouteThatAreWrongStopTheStart() {
    assertThatThrownBy(
            () ->
                App.reactive(
                    Shop.class,
                    App.url(server),
                    route(0, "minutes", "/minutes", "redis-rl.rate=2 an hour")))
        .rootCause()
        .hasMessageContaining("a rate looks like");
  }
}
