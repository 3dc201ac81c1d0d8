package redisrl.spring;

import static org.assertj.core.api.Assertions.assertThat;

import java.net.URLClassLoader;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import redisrl.Readme;
import redisrl.TestServer;

/** The application of the README compiles and runs as it stands, and its properties are taken. */
class ReadmeTest {
  @TempDir Path folder;

  private static String[] properties(String block) {
    return block.lines().filter(line -> !line.startsWith("#")).toArray(String[]::new);
  }

  @Test
  void theApplicationOfTheReadme() throws Exception {
    String program =
        Readme.blocks("java").stream()
            .filter(block -> block.contains("springframework"))
            .findFirst()
            .orElseThrow();
    ClassLoader before = Thread.currentThread().getContextClassLoader();
    try (TestServer server = new TestServer(true);
        URLClassLoader loader = Readme.compiled(folder, program)) {
      Thread.currentThread().setContextClassLoader(loader);
      try (App app =
          App.servlet(
              loader.loadClass("shop.Shop"),
              App.url(server),
              properties(Readme.blocks("properties").get(0)))) {
        assertThat(app.statuses(2, "/item/1")).containsOnly(200);
        assertThat(app.statuses(2, "/item/2")).containsExactly(200, 429);
        assertThat(app.statuses(6, "/login")).containsExactly(200, 200, 200, 200, 200, 429);
      }
    } finally {
      Thread.currentThread().setContextClassLoader(before);
    }
  }

  @Test
  void thePropertiesOfTheGateway() throws Exception {
    try (TestServer server = new TestServer(true);
        App app =
            App.reactive(
                FluxTest.Shop.class,
                App.url(server),
                properties(
                    Readme.blocks("properties")
                        .get(1)
                        .replace("http://localhost:8081", "forward:///")))) {
      for (int i = 0; i < 5; i++) {
        app.get("/item/1", "X-Key", "k");
      }
      assertThat(app.get("/item/1", "X-Key", "k").statusCode()).isEqualTo(429);
    }
  }
}
