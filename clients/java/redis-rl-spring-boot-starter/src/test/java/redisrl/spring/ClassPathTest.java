package redisrl.spring;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import redisrl.TestServer;

/** Applications start that do not have what is optional: the other tests have all of it. */
class ClassPathTest {
  private static final String GATEWAY = "spring-cloud|micrometer-core";

  @ParameterizedTest
  @ValueSource(
      strings = {
        // WebFlux alone, Spring MVC alone, and no web.
        GATEWAY + "|webmvc|servlet|tomcat",
        GATEWAY + "|webflux|reactor-netty",
        GATEWAY + "|spring-web|spring-boot-web|servlet|tomcat|reactor-netty",
      })
  void anApplicationStartsWithout(String names) throws Exception {
    Pattern left = Pattern.compile(names);
    String classes =
        Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
            .filter(each -> !left.matcher(new File(each).getName()).find())
            .collect(Collectors.joining(File.pathSeparator));
    try (TestServer server = new TestServer(true)) {
      Process process =
          new ProcessBuilder(
                  System.getProperty("java.home") + "/bin/java",
                  "-XX:TieredStopAtLevel=1",
                  "-classpath",
                  classes,
                  Bare.class.getName(),
                  "--rate-limiter.url=" + App.url(server),
                  "--rate-limiter.rate=2/hour",
                  "--rate-limiter.timeout=10s",
                  "--server.port=0",
                  "--spring.reactor.netty.shutdown-quiet-period=0",
                  "--spring.main.banner-mode=off")
              .redirectErrorStream(true)
              .start();
      process.getOutputStream().close();
      String printed = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
      assertThat(process.waitFor()).as(printed).isZero();
      assertThat(printed.lines().filter(line -> line.matches("\\d{3}")))
          .as(printed)
          .containsExactly("200", "200", "429");
    }
  }
}
