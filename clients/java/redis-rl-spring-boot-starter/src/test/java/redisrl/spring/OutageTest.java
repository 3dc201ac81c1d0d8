package redisrl.spring;

import static org.assertj.core.api.Assertions.assertThat;

import java.net.http.HttpResponse;
import java.util.Collections;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.springframework.boot.WebApplicationType;

/** What both filters do where no server is. */
class OutageTest {
  private static App app(WebApplicationType type, String... properties) {
    Class<?> config = type == WebApplicationType.SERVLET ? MvcTest.Shop.class : FluxTest.Shop.class;
    String[] all =
        Stream.concat(
                Stream.of("rate-limiter.rate=3/hour", "rate-limiter.timeout=250ms"),
                Stream.of(properties))
            .toArray(String[]::new);
    return App.start(config, type, "redis://127.0.0.1:1", all);
  }

  @ParameterizedTest
  @EnumSource(names = {"SERVLET", "REACTIVE"})
  void openLetsThrough(WebApplicationType type) throws Exception {
    try (App app = app(type)) {
      assertThat(app.statuses(8, "/")).containsOnly(200);
      assertThat(app.get("/").headers().firstValue("RateLimit")).isEmpty();
    }
  }

  @ParameterizedTest
  @EnumSource(names = {"SERVLET", "REACTIVE"})
  void closedRefuses(WebApplicationType type) throws Exception {
    try (App app = app(type, "rate-limiter.when-unavailable=closed")) {
      HttpResponse<String> refused = app.get("/");
      assertThat(refused.statusCode()).isEqualTo(503);
      assertThat(refused.body()).contains("\"status\":503").doesNotContain("violated");
    }
  }

  @ParameterizedTest
  @EnumSource(names = {"SERVLET", "REACTIVE"})
  void localLimitsInMemoryItsShareOfTheLimit(WebApplicationType type) throws Exception {
    try (App app = app(type, "rate-limiter.when-unavailable=local", "rate-limiter.processes=2")) {
      assertThat(app.statuses(3, "/")).containsExactly(200, 429, 429);
      HttpResponse<String> denied = app.get("/");
      assertThat(denied.headers().firstValue("Retry-After")).isPresent();
      assertThat(Collections.max(app.statuses(2, "/"))).isEqualTo(429);
    }
  }
}
