package redisrl;

import static org.assertj.core.api.Assertions.assertThat;

import java.net.URLClassLoader;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Pattern;
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
    List<String> programs = Readme.blocks("java");
    try (TestServer server = new TestServer(true)) {
      StringBuilder printed = new StringBuilder();
      for (String program : programs) {
        if (!program.matches("(?s).*(springframework|redisrl\\.integrations).*")) {
          printed.append(run(program.replace(":6379", ":" + server.port)));
        }
      }
      assertThat(printed.toString())
          .contains(
              "allowed, 4 of 5 remaining\n", "denied, 0 of 5 remaining, again in ", "by MODULE\n")
          .contains("settled: true, lost: false\n", "allowed, 9 of 10 remaining\n");
    }
    // Where no server is.
    assertThat(run(programs.get(0).replace(":6379", ":1"))).startsWith("unavailable: ");
  }

  private String run(String program) throws Exception {
    var name = Pattern.compile("class (\\w+)").matcher(program);
    assertThat(name.find()).isTrue();
    try (URLClassLoader loader = Readme.compiled(folder, program)) {
      return Readme.printed(loader.loadClass(name.group(1)));
    }
  }
}
