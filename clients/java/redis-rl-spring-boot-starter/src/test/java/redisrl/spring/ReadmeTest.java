package redisrl.spring;

import static org.assertj.core.api.Assertions.assertThat;

import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import redisrl.TestServer;

/** The application of the README compiles and runs as it stands, and its properties are taken. */
class ReadmeTest {
  @TempDir Path folder;

  private static List<String> blocks(String language) throws Exception {
    return Pattern.compile("```" + language + "\n(.*?)```", Pattern.DOTALL)
        .matcher(Files.readString(Path.of("../README.md")))
        .results()
        .map(block -> block.group(1))
        .toList();
  }

  private static String[] properties(String block) {
    return block.lines().filter(line -> !line.startsWith("#")).toArray(String[]::new);
  }

  @Test
  void theApplicationOfTheReadme() throws Exception {
    String program =
        blocks("java").stream()
            .filter(block -> block.contains("springframework"))
            .findFirst()
            .orElseThrow();
    Path file = folder.resolve("Shop.java");
    Files.writeString(file, program);
    int result =
        ToolProvider.getSystemJavaCompiler()
            .run(
                null,
                null,
                null,
                "-proc:none",
                "-classpath",
                System.getProperty("java.class.path"),
                "-d",
                folder.toString(),
                file.toString());
    assertThat(result).isZero();
    ClassLoader before = Thread.currentThread().getContextClassLoader();
    try (TestServer server = new TestServer(true);
        URLClassLoader loader = new URLClassLoader(new URL[] {folder.toUri().toURL()})) {
      Thread.currentThread().setContextClassLoader(loader);
      try (App app =
          App.servlet(
              loader.loadClass("shop.Shop"),
              App.url(server),
              properties(blocks("properties").get(0)))) {
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
                    blocks("properties").get(1).replace("http://localhost:8081", "forward:///")))) {
      for (int i = 0; i < 5; i++) {
        app.get("/item/1", "X-Key", "k");
      }
      assertThat(app.get("/item/1", "X-Key", "k").statusCode()).isEqualTo(429);
    }
  }
}
