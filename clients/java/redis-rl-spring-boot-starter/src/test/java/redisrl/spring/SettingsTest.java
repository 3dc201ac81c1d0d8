package redisrl.spring;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowable;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.context.properties.bind.Binder;
import org.springframework.boot.context.properties.source.MapConfigurationPropertySource;
import org.springframework.boot.diagnostics.FailureAnalyzer;
import org.springframework.boot.json.JsonParserFactory;
import org.springframework.core.NestedExceptionUtils;
import org.springframework.core.env.Environment;
import org.springframework.core.env.StandardEnvironment;
import org.springframework.core.io.support.SpringFactoriesLoader;
import org.springframework.core.io.support.SpringFactoriesLoader.ArgumentResolver;
import org.springframework.core.io.support.SpringFactoriesLoader.FailureHandler;
import redisrl.Limiter;
import redisrl.Rule;
import redisrl.TestServer;
import redisrl.UnavailableException;

/** What the properties accept, and where the server is. */
class SettingsTest {
  @SpringBootConfiguration(proxyBeanMethods = false)
  @EnableAutoConfiguration
  static class None {}

  private static App plain(String url, String... properties) {
    return App.start(None.class, WebApplicationType.NONE, url, properties);
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "use-algo=token-bucket | FIXED, FIXED_WINDOW_ALGO, SLIDING, SLIDING_WINDOW_ALGO",
        "mode=lua | AUTO, FUNCTIONS, MODULE, SCRIPT",
        "when-unavailable=panic | CLOSED, LOCAL, OPEN",
        "key=ip | address, principal or header:NAME",
        "rate=lots | a rate looks like",
        "max-requests=5 | together",
        "processes=0 | at least 1 process",
        "timeout=0 | at least a millisecond",
        "trusted-proxies=proxy | a trusted proxy is an address",
        "ipv6-prefix=0 | from 1 to 128",
        "limits[0].paths=/a | A limit has a rate",
        "limits[0].rate=1/s,rate-limiter.limits[0].cost=9007199254740992 | the cost must be",
        "limits[0].rate=1/s,rate-limiter.limits[0].methods=GTE | GET, HEAD, POST, PUT",
        "limits[0].rate=1/s,rate-limiter.limits[0].name=a,rate-limiter.limits[1].rate=2/s,rate-limiter.limits[1].name=a"
            + " | one name",
      })
  void aValueThatIsUnknownStopsTheStart(String property, String accepted) {
    Throwable error =
        catchThrowable(
            () -> plain("redis://127.0.0.1:1", ("rate-limiter." + property.strip()).split(",")));
    assertThat(told(error)).contains(accepted.strip());
  }

  /** What Boot prints of a start that has failed, with lists in one line. */
  private static String told(Throwable error) {
    return SpringFactoriesLoader.forDefaultResourceLocation()
        .load(
            FailureAnalyzer.class,
            ArgumentResolver.of(Environment.class, new StandardEnvironment()),
            FailureHandler.handleMessage((message, needsMore) -> {}))
        .stream()
        .map(analyzer -> analyzer.analyze(error))
        .filter(Objects::nonNull)
        .map(known -> known.getDescription() + known.getAction())
        .findFirst()
        .orElse(String.valueOf(NestedExceptionUtils.getMostSpecificCause(error).getMessage()))
        .replaceAll("\\R +", ", ");
  }

  @Test
  void anUrlThatCannotBeReadIsNotShown() {
    assertThatThrownBy(() -> plain("", "rate-limiter.url=redis://:s3cret^@host:6379"))
        .hasStackTraceContaining("must be like redis://:password@host:6379/0")
        .rootCause()
        .isExactlyInstanceOf(IllegalArgumentException.class)
        .hasMessageNotContaining("s3cret");
  }

  @Test
  void aPropertyThatIsUnknownStopsTheStart() {
    assertThatThrownBy(() -> plain("redis://127.0.0.1:1", "rate-limiter.limts[0].rate=5/s"))
        .rootCause()
        .hasMessageContaining("limts");
  }

  @Test
  void theServerIsThatOfSpringDataUnlessGiven() throws Exception {
    Path config = Files.createTempFile("sentinel", ".conf");
    try (TestServer server = new TestServer(true, "--requirepass", "pass");
        TestServer sentinel =
            new TestServer(
                false,
                Files.writeString(config, "sentinel monitor main 127.0.0.1 " + server.port + " 1\n")
                    .toString(),
                "--sentinel")) {
      for (String[] way :
          new String[][] {
            {
              "spring.data.redis.host=127.0.0.1",
              "spring.data.redis.port=" + server.port,
              "spring.data.redis.password=pass"
            },
            {
              // What is empty is not given: a variable may have no value.
              "rate-limiter.url=",
              "spring.data.redis.url=redis://:pass@127.0.0.1:" + server.port,
              "spring.data.redis.username=",
              "spring.data.redis.ssl.bundle="
            },
            {
              "spring.data.redis.host=127.0.0.1",
              "spring.data.redis.port=" + server.port,
              "spring.data.redis.username=",
              "spring.data.redis.password=pass"
            },
            {
              "spring.data.redis.sentinel.master=main",
              "spring.data.redis.sentinel.nodes=127.0.0.1:" + sentinel.port,
              "spring.data.redis.password=pass"
            },
            {"rate-limiter.url=redis-sentinel://pass@127.0.0.1:" + sentinel.port + "/0#main"}
          }) {
        try (App app = plain("", way)) {
          Limiter limiter = app.context.getBean(Limiter.class);
          assertThat(limiter.hit("k", Rule.sliding("5/hour")).allowed()).isTrue();
        }
      }
    }
  }

  @ParameterizedTest
  @ValueSource(strings = {"ssl.bundle=a", "sentinel.password=a", "masterreplica.nodes=127.0.0.1:1"})
  void whatIsNotReadOfSpringDataStopsTheStart(String property) {
    assertThatThrownBy(() -> plain("", "spring.data.redis." + property))
        .rootCause()
        .hasMessageContaining(property.split("=")[0]);
  }

  @Test
  void anUrlOfSpringDataIsUsedWithItsTls() throws Exception {
    try (TestServer server = new TestServer(true);
        App app =
            plain(
                "",
                "spring.data.redis.url=redis://127.0.0.1:" + server.port,
                "spring.data.redis.ssl.enabled=true")) {
      Limiter limiter = app.context.getBean(Limiter.class);
      assertThatThrownBy(() -> limiter.hit("k", Rule.sliding("5/hour")))
          .isInstanceOf(UnavailableException.class);
    }
  }

  @Test
  void aClusterIsThatOfSpringData() throws Exception {
    try (TestServer server = new TestServer(true, "--cluster-enabled", "yes")) {
      server.run("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
      while (!server.run("CLUSTER", "INFO").contains("cluster_state:ok")) {
        Thread.sleep(20);
      }
      try (App app = plain("", "spring.data.redis.cluster.nodes=127.0.0.1:" + server.port)) {
        Limiter limiter = app.context.getBean(Limiter.class);
        assertThat(limiter.hit("k", Rule.sliding("5/hour")).allowed()).isTrue();
      }
    }
  }

  @Test
  @SuppressWarnings("unchecked")
  void theDefaultsAreThoseOfAllPackages() throws Exception {
    String text = Files.readString(Path.of("../../cases/defaults.json"));
    Map<String, Object> all = JsonParserFactory.getJsonParser().parseMap(text);
    Map<String, Object> adapter = (Map<String, Object>) all.get("adapter");
    RateLimiterProperties given =
        new Binder(new MapConfigurationPropertySource(Map.of()))
            .bindOrCreate("rate-limiter", RateLimiterProperties.class);
    assertThat(given.whenUnavailable().name().toLowerCase(Locale.ROOT))
        .isEqualTo(adapter.get("when_unavailable"));
    assertThat(given.ipv6Prefix()).isEqualTo(adapter.get("ipv6_prefix"));
    assertThat((int) given.timeout().toMillis()).isEqualTo(adapter.get("timeout_ms"));
    assertThat(given.allowWithoutIdentity() ? "allowed" : "refused")
        .isEqualTo(adapter.get("without_identity"));
    Map<String, Object> problem = (Map<String, Object>) all.get("problem");
    assertThat(Answer.CONTENT_TYPE).isEqualTo(problem.get("content_type"));
    Map<String, Object> status = (Map<String, Object>) adapter.get("status");
    assertThat(Answer.of(new NoIdentityException()).status())
        .isEqualTo(status.remove("without_identity"));
    // MvcTest and OutageTest see these.
    assertThat(status).isEqualTo(Map.of("denied", 429, "unavailable", 503));
  }
}
