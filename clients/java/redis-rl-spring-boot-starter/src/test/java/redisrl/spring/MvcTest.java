package redisrl.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.springframework.cloud.gateway.server.mvc.filter.BeforeFilterFunctions.uri;
import static org.springframework.cloud.gateway.server.mvc.handler.GatewayRouterFunctions.route;
import static org.springframework.cloud.gateway.server.mvc.handler.HandlerFunctions.http;
import static redisrl.spring.RedisRlFilterFunctions.redisRl;

import ch.qos.logback.classic.Logger;
import ch.qos.logback.classic.spi.ILoggingEvent;
import ch.qos.logback.core.read.ListAppender;
import io.micrometer.core.instrument.MeterRegistry;
import io.micrometer.core.instrument.simple.SimpleMeterRegistry;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletRequestWrapper;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.http.HttpResponse;
import java.security.Principal;
import java.util.List;
import java.util.concurrent.Callable;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.slf4j.LoggerFactory;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.boot.web.servlet.ServletRegistrationBean;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Import;
import org.springframework.core.annotation.Order;
import org.springframework.stereotype.Component;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestMapping;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.context.support.AnnotationConfigWebApplicationContext;
import org.springframework.web.cors.CorsConfiguration;
import org.springframework.web.cors.UrlBasedCorsConfigurationSource;
import org.springframework.web.filter.CorsFilter;
import org.springframework.web.filter.OncePerRequestFilter;
import org.springframework.web.service.annotation.GetExchange;
import org.springframework.web.service.annotation.HttpExchange;
import org.springframework.web.service.annotation.PostExchange;
import org.springframework.web.servlet.DispatcherServlet;
import org.springframework.web.servlet.config.annotation.EnableWebMvc;
import org.springframework.web.servlet.config.annotation.WebMvcConfigurationSupport;
import org.springframework.web.servlet.function.RouterFunction;
import org.springframework.web.servlet.function.ServerResponse;
import redisrl.Guard;
import redisrl.Limiter;
import redisrl.Rule;
import redisrl.TestServer;

/** Limits of Spring MVC, over HTTP. */
class MvcTest {
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
    String in() {
      return "in";
    }

    @PostMapping("/login")
    String login() {
      return "in";
    }

    @RateLimit("3/hour")
    @GetMapping("/item/{id}")
    String item(@PathVariable("id") String id) {
      return id;
    }

    @RateLimit("3/hour")
    @PostMapping("/item/{id}")
    String change(@PathVariable("id") String id) {
      return id;
    }

    @RateLimit("3/hour")
    @GetMapping("/other")
    Callable<String> other() {
      return () -> "in";
    }

    @RateLimit(
        value = {"10/hour", "5/minute"},
        key = "header:X-Key",
        cost = 2,
        name = "costly")
    @GetMapping("/costly")
    String costly() {
      return "in";
    }

    @Bean
    MeterRegistry registry() {
      return new SimpleMeterRegistry();
    }
  }

  @Test
  void aResponseSaysWhatIsLeftAndADenialIsAProblem() throws Exception {
    try (App app =
        App.servlet(
            Shop.class,
            App.url(server),
            "rate-limiter.use-algo=sliding-window-algo",
            "rate-limiter.window-size=3600",
            "rate-limiter.max-requests=2",
            "rate-limiter.prefix=shop:")) {
      HttpResponse<String> first = app.get("/");
      assertThat(first.statusCode()).isEqualTo(200);
      assertThat(first.headers().firstValue("RateLimit-Policy")).hasValue("\"3600s\";q=2;w=3600");
      assertThat(first.headers().firstValue("RateLimit").orElseThrow())
          .startsWith("\"3600s\";r=1;t=3600");
      assertThat(app.get("/login").statusCode()).isEqualTo(200);
      HttpResponse<String> denied = app.get("/");
      assertThat(denied.statusCode()).isEqualTo(429);
      assertThat(denied.headers().firstValue("Retry-After").map(Integer::parseInt).orElseThrow())
          .isBetween(1, 3600);
      assertThat(denied.headers().firstValue("Content-Type").orElseThrow())
          .startsWith("application/problem+json");
      assertThat(denied.body())
          .contains("\"status\":429")
          .contains("quota-exceeded")
          .contains("\"violated-policies\":[\"3600s\"]");
      assertThat(server.run("KEYS", "*")).isEqualTo("[shop:rl:sliding-2/3600s:{127.0.0.1}]");

      // A denial is remembered, and forgotten when the application resets the key.
      long until = System.nanoTime() + 30_000_000_000L;
      while (app.context
              .getBean(MeterRegistry.class)
              .find("rate.limiter.calls")
              .tags("limiter", "redis-rl", "source", "memory", "outcome", "denied")
              .counter()
          == null) {
        assertThat(app.get("/").statusCode()).isEqualTo(429);
        assertThat(System.nanoTime()).isLessThan(until);
      }
      Guard guard = app.context.getBean(Guard.class);
      Guard.Limit limit = new Guard.Limit("127.0.0.1", Rule.sliding("2/hour"), null);
      app.context.getBean(Limiter.class).reset(guard.key(limit), limit.rule());
      assertThat(app.get("/").statusCode()).isEqualTo(200);
    }
  }

  @Test
  void limitsOfPathsMethodsAndKeys() throws Exception {
    try (App app =
        App.servlet(
            Shop.class,
            App.url(server),
            "rate-limiter.use-algo=fixed-window-algo",
            "rate-limiter.trusted-proxies=127.0.0.0/8",
            "rate-limiter.limits[0].name=login",
            "rate-limiter.limits[0].paths=/login",
            "rate-limiter.limits[0].methods=post",
            "rate-limiter.limits[0].rate=2/30day",
            "rate-limiter.limits[1].paths=/api/**",
            "rate-limiter.limits[1].rate=3/30day",
            "rate-limiter.limits[1].key=header:X-Key")) {
      for (int i = 0; i < 2; i++) {
        assertThat(app.send("POST", "/login").statusCode()).isEqualTo(200);
      }
      assertThat(app.send("POST", "/login").statusCode()).isEqualTo(429);
      assertThat(app.send("POST", "/%6Cogin;a=b").statusCode()).isEqualTo(429);
      assertThat(app.get("/login").statusCode()).isEqualTo(200);
      assertThat(app.send("POST", "/login", "X-Forwarded-For", "2001:db8::1").statusCode())
          .isEqualTo(200);
      assertThat(app.send("POST", "/login", "X-Forwarded-For", "2001:db8::2").statusCode())
          .isEqualTo(200);
      assertThat(app.send("POST", "/login", "X-Forwarded-For", "2001:db8::3").statusCode())
          .isEqualTo(429);
      assertThat(app.send("POST", "/login", "X-Forwarded-For", "unknown").statusCode())
          .isEqualTo(403);

      assertThat(app.get("/api/a").statusCode()).isEqualTo(403);
      assertThat(app.statuses(2, "/api/a", "X-Key", "a")).containsOnly(200);
      assertThat(app.statuses(2, "/api/b", "X-Key", "a")).containsExactly(200, 429);
      assertThat(app.statuses(1, "/api/b", "X-Key", "b")).containsExactly(200);
      // Preflight requests are not counted.
      for (int i = 0; i < 5; i++) {
        app.send(
            "OPTIONS",
            "/api/b",
            "X-Key",
            "b",
            "Origin",
            "http://localhost",
            "Access-Control-Request-Method",
            "GET");
      }
      assertThat(app.statuses(3, "/api/b", "X-Key", "b")).containsExactly(200, 200, 429);
      assertThat(server.run("KEYS", "*")).contains("rl:login:{2001:db8::/64}:");
    }
  }

  @Test
  void aMethodIsLimitedByTheTemplateOfItsRoute() throws Exception {
    try (App app = App.servlet(Shop.class, App.url(server), "server.servlet.context-path=/shop")) {
      assertThat(app.statuses(2, "/shop/item/1")).containsOnly(200);
      assertThat(app.statuses(2, "/shop/item/2")).containsExactly(200, 429);
      assertThat(app.send("POST", "/shop/item/1").statusCode()).isEqualTo(200);
      // One that works in another thread is counted once.
      assertThat(app.statuses(4, "/shop/other")).containsExactly(200, 200, 200, 429);
      assertThat(app.statuses(3, "/shop/costly", "X-Key", "k")).containsExactly(200, 200, 429);
      assertThat(app.get("/shop/costly").statusCode()).isEqualTo(403);
      assertThat(app.statuses(9, "/shop/")).containsOnly(200);
      assertThat(server.run("KEYS", "*"))
          .contains("rl:GET /shop/item/%7Bid%7D sliding-3/3600s:{127.0.0.1}")
          .contains("rl:POST /shop/item/%7Bid%7D sliding-3/3600s:{127.0.0.1}")
          .contains("rl:costly:{k}");
    }
  }

  @Test
  void aKeyOfAnotherTypeIsNotLetThrough() throws Exception {
    server.run("HSET", "rl:sliding-2/3600s:{127.0.0.1}", "a", "b");
    try (App app = App.servlet(Shop.class, App.url(server), "rate-limiter.rate=2/hour")) {
      assertThat(app.get("/").statusCode()).isEqualTo(500);
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class Broken {
    @Bean
    RequestLimits<HttpServletRequest> limits() {
      return request -> {
        throw new IllegalStateException("on purpose");
      };
    }
  }

  @Test
  void whatABeanOfTheApplicationThrowsIsLogged() throws Exception {
    try (App app = App.servlet(Broken.class, App.url(server))) {
      ListAppender<ILoggingEvent> logged = new ListAppender<>();
      logged.start();
      ((Logger) LoggerFactory.getLogger(Answer.class)).addAppender(logged);
      assertThat(app.get("/").statusCode()).isEqualTo(500);
      assertThat(logged.list)
          .anyMatch(line -> line.getThrowableProxy().getMessage().equals("on purpose"));
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class Cors {
    @Bean
    FilterRegistrationBean<CorsFilter> cors() {
      UrlBasedCorsConfigurationSource source = new UrlBasedCorsConfigurationSource();
      source.registerCorsConfiguration("/**", new CorsConfiguration().applyPermitDefaultValues());
      FilterRegistrationBean<CorsFilter> filter =
          new FilterRegistrationBean<>(new CorsFilter(source));
      filter.setOrder(-120);
      return filter;
    }
  }

  @Test
  void aDenialHasTheFieldsOfCorsWhereTheirFilterComesFirst() throws Exception {
    try (App app = App.servlet(Cors.class, App.url(server), "rate-limiter.rate=0/hour")) {
      HttpResponse<String> denied = app.get("/", "Origin", "http://shop.test");
      assertThat(denied.statusCode()).isEqualTo(429);
      assertThat(denied.headers().firstValue("Access-Control-Allow-Origin")).hasValue("*");
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
    RequestLimits<HttpServletRequest> limits() {
      return request ->
          request.getHeader("x-free") != null
              ? List.of()
              : List.of(
                  new Guard.Limit("all", Rule.throttle("1/hour").burst(1), null),
                  new Guard.Limit("all", Rule.sliding("9/hour"), null));
    }
  }

  @Test
  void anApplicationMayHaveLimitsOfItsOwn() throws Exception {
    try (App app = App.servlet(Others.class, App.url(server))) {
      assertThat(app.statuses(3, "/")).containsExactly(200, 200, 429);
      assertThat(app.get("/", "x-free", "1").statusCode()).isEqualTo(200);
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class Gateway {
    static String target;

    @Bean
    RouterFunction<ServerResponse> items() {
      return route("items")
          .GET("/item/{id}", http())
          .before(uri(target))
          .filter(redisRl("2/hour"))
          .build();
    }
  }

  @Test
  void aRouteOfGatewayMvcIsLimited() throws Exception {
    try (App target = App.servlet(Shop.class, App.url(server))) {
      Gateway.target =
          "http://127.0.0.1:" + target.context.getEnvironment().getProperty("local.server.port");
      try (App app = App.servlet(Gateway.class, App.url(server))) {
        for (int left = 1; left >= 0; left--) {
          HttpResponse<String> item = app.get("/item/" + left);
          assertThat(item.statusCode()).isEqualTo(200);
          assertThat(item.headers().firstValue("RateLimit").orElse("")).contains("r=" + left);
          assertThat(item.headers().firstValue("RateLimit-Policy").orElse("")).contains("q=2");
        }
        HttpResponse<String> denied = app.get("/item/3");
        assertThat(denied.statusCode()).isEqualTo(429);
        assertThat(denied.headers().firstValue("Retry-After")).isPresent();
        assertThat(server.run("KEYS", "*")).contains("rl:items sliding-2/3600s:{127.0.0.1}");
      }
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @RestController
  static class Wrong {
    @RateLimit("3 an hour")
    @GetMapping("/")
    String in() {
      return "in";
    }
  }

  abstract static class Base {
    @GetMapping
    String in() {
      return "in";
    }
  }

  @RateLimit("1/hour")
  @RestController
  @RequestMapping("/one")
  static class One extends Base {}

  @RateLimit("2/hour")
  @RestController
  @RequestMapping("/two")
  static class Two extends Base {}

  @RestController
  @RequestMapping("/three")
  static class Three extends Base {}

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @Import({One.class, Two.class, Three.class})
  static class Inheriting {}

  @Test
  void controllersThatInheritAMethodHaveLimitsOfTheirOwn() throws Exception {
    try (App app = App.servlet(Inheriting.class, App.url(server))) {
      assertThat(app.statuses(3, "/one")).containsExactly(200, 429, 429);
      assertThat(app.statuses(3, "/two")).containsExactly(200, 200, 429);
      assertThat(app.statuses(3, "/three")).containsOnly(200);
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @Import({One.class, Three.class})
  static class OwnMvc extends WebMvcConfigurationSupport {}

  @Test
  void anApplicationThatConfiguresMvcByItselfIsLimited() throws Exception {
    try (App app = App.servlet(OwnMvc.class, App.url(server))) {
      assertThat(app.statuses(2, "/one")).containsExactly(200, 429);
      assertThat(app.statuses(2, "/three")).containsOnly(200);
    }
  }

  @Test
  void aHeadCountsAsTheGetThatAnswersIt() throws Exception {
    try (App app =
        App.servlet(
            Inheriting.class,
            App.url(server),
            "rate-limiter.limits[0].paths=/three",
            "rate-limiter.limits[0].methods=get",
            "rate-limiter.limits[0].rate=2/hour")) {
      assertThat(app.get("/three").statusCode()).isEqualTo(200);
      assertThat(app.send("HEAD", "/three").statusCode()).isEqualTo(200);
      assertThat(app.send("HEAD", "/three").statusCode()).isEqualTo(429);
    }
  }

  /** At the place of Spring Security, lets in who says a name. */
  @Component
  @Order(-100)
  static class Security extends OncePerRequestFilter {
    @Override
    protected void doFilterInternal(
        HttpServletRequest request, HttpServletResponse response, FilterChain chain)
        throws ServletException, IOException {
      String user = request.getHeader("X-User");
      if (user == null) {
        response.setStatus(401);
        return;
      }
      chain.doFilter(
          new HttpServletRequestWrapper(request) {
            @Override
            public Principal getUserPrincipal() {
              return () -> user;
            }
          },
          response);
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @Import({Security.class, Three.class})
  static class Secured {}

  @Test
  void passwordsCannotBeGuessedWhereUsersAreLimitedToo() throws Exception {
    try (App app =
        App.servlet(
            Secured.class,
            App.url(server),
            "rate-limiter.rate=5/hour",
            "rate-limiter.limits[0].key=principal",
            "rate-limiter.limits[0].rate=2/hour")) {
      assertThat(app.statuses(2, "/three")).containsExactly(401, 401);
      assertThat(app.statuses(3, "/three", "X-User", "a")).containsExactly(200, 200, 429);
      assertThat(app.statuses(1, "/three")).containsExactly(429);
      assertThat(server.run("KEYS", "*"))
          .contains("rl:sliding-5/3600s:{127.0.0.1}")
          .contains("rl:principal sliding-2/3600s:{a}");
    }
  }

  @Import(Others.class)
  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class Twice {
    @Bean
    RequestLimits<HttpServletRequest> moreLimits() {
      return request -> List.of();
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class Named {
    @Bean
    String rateLimitFilter() {
      return "as the class of every tutorial";
    }

    @Bean
    String limiter() {
      return "";
    }
  }

  @Test
  void beansOfAnApplicationMayHaveTheNamesOfTutorials() throws Exception {
    try (App app = App.servlet(Named.class, App.url(server), "rate-limiter.rate=1/hour")) {
      assertThat(app.statuses(2, "/")).containsExactly(404, 429);
    }
  }

  @Test
  void ofTwoBeansNoneIsPassedOver() {
    assertThatThrownBy(() -> App.servlet(Twice.class, App.url(server)))
        .rootCause()
        .hasMessageContaining("expected single matching bean but found 2");
  }

  @Test
  void slashesThatTheRouterLeavesOutAreNoOtherPath() throws Exception {
    try (App app =
        App.servlet(
            Shop.class,
            App.url(server),
            "spring.mvc.pathmatch.matching-strategy=ant_path_matcher",
            "rate-limiter.limits[0].paths=/api/a",
            "rate-limiter.limits[0].rate=2/hour")) {
      assertThat(app.statuses(2, "/api/a")).containsOnly(200);
      assertThat(app.statuses(1, "//api//a")).containsExactly(429);
    }
  }

  @EnableWebMvc
  @RestController
  static class Mounted {
    @RateLimit("1/hour")
    @GetMapping("/own")
    String own() {
      return "in";
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class Servlets {
    private static ServletRegistrationBean<DispatcherServlet> servlet(String path) {
      var context = new AnnotationConfigWebApplicationContext();
      context.register(Mounted.class);
      var servlet = new ServletRegistrationBean<>(new DispatcherServlet(context), path + "/*");
      servlet.setName(path);
      return servlet;
    }

    @Bean
    ServletRegistrationBean<DispatcherServlet> one() {
      return servlet("/one");
    }

    @Bean
    ServletRegistrationBean<DispatcherServlet> two() {
      return servlet("/two");
    }
  }

  @Test
  void aRouteInTwoServletsIsTwoLimits() throws Exception {
    try (App app = App.servlet(Servlets.class, App.url(server))) {
      assertThat(app.statuses(2, "/one/own")).containsExactly(200, 429);
      assertThat(app.statuses(2, "/two/own")).containsExactly(200, 429);
    }
  }

  @HttpExchange("/exchange")
  interface Exchanged {
    @RateLimit("1/hour")
    @GetExchange
    String get();

    @RateLimit("1/hour")
    @PostExchange
    String post();
  }

  @RestController
  static class Exchanges implements Exchanged {
    @Override
    public String get() {
      return "in";
    }

    @Override
    public String post() {
      return "in";
    }
  }

  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  @Import(Exchanges.class)
  static class Exchanging {}

  @Test
  void methodsOfAnHttpInterfaceAreTwoRoutes() throws Exception {
    try (App app = App.servlet(Exchanging.class, App.url(server))) {
      assertThat(app.statuses(2, "/exchange")).containsExactly(200, 429);
      assertThat(app.send("POST", "/exchange").statusCode()).isEqualTo(200);
    }
  }

  @Test
  void aRateThatIsWrongStopsTheStart() {
    assertThatThrownBy(() -> App.servlet(Wrong.class, App.url(server)))
        .rootCause()
        .hasMessageContaining("a rate looks like \"100/minute\"");
  }
}
