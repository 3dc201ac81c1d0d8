package redisrl;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * The programs of the README compile and run as they stand, but for the port. Those with Spring and
 * other libraries are other modules'.
 */
class ReadmeTest {
  @TempDir Path folder;

  @Test
  void theProgramsRun() throws Exception {
    String readme = Files.readString(Path.of("../README.md"));
    try (TestServer server = new TestServer(true)) {
      StringBuilder printed = new StringBuilder();
      var blocks = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(readme);
      while (blocks.find()) {
        if (blocks.group(1).matches("(?s).*(springframework|redisrl\\.integrations).*")) {
          continue;
        }
        printed.append(run(blocks.group(1).replace(":6379", ":" + server.port)));
      }
      assertThat(printed.toString())
          .contains(
              "allowed, 4 of 5 remaining\n", "denied, 0 of 5 remaining, again in ", "by MODULE\n")
          .contains("settled: true, lost: false\n", "allowed, 9 of 10 remaining\n");
    }
    // Where no server is.
    var first = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(readme);
    assertThat(first.find()).isTrue();
    assertThat(run(first.group(1).replace(":6379", ":1"))).startsWith("unavailable: ");
  }

  private String run(String program) throws Exception {
    var name = Pattern.compile("class (\\w+)").matcher(program);
    assertThat(name.find()).isTrue();
    Path file = folder.resolve(name.group(1) + ".java");
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
    ByteArrayOutputStream printed = new ByteArrayOutputStream();
    PrintStream before = System.out;
    try (URLClassLoader loader = new URLClassLoader(new java.net.URL[] {folder.toUri().toURL()})) {
      System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
      loader
          .loadClass(name.group(1))
          .getMethod("main", String[].class)
          .invoke(null, (Object) new String[0]);
    } finally {
      System.setOut(before);
    }
    return printed.toString(StandardCharsets.UTF_8);
  }
}
