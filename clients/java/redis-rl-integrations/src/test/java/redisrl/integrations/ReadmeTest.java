package redisrl.integrations;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.ai.chat.client.ChatClient;
import org.springframework.ai.chat.model.ChatModel;
import redisrl.Limiter;
import redisrl.TestServer;

/** The programs of the README compile and run as they stand, but for the port. */
class ReadmeTest {
  @TempDir Path folder;

  private Class<?> program(String name, int port) throws Exception {
    String program =
        Pattern.compile("```java\n(.*?)```", Pattern.DOTALL)
            .matcher(Files.readString(Path.of("../README.md")))
            .results()
            .map(block -> block.group(1))
            .filter(block -> block.contains("class " + name + " "))
            .findFirst()
            .orElseThrow();
    Path file = folder.resolve(name + ".java");
    Files.writeString(file, program.replace(":6379", ":" + port));
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
    return new URLClassLoader(new URL[] {folder.toUri().toURL()}).loadClass(name);
  }

  private String printed(Class<?> program) throws Exception {
    ByteArrayOutputStream printed = new ByteArrayOutputStream();
    PrintStream before = System.out;
    System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
    try {
      program.getMethod("main", String[].class).invoke(null, (Object) new String[0]);
    } finally {
      System.setOut(before);
    }
    return printed.toString(StandardCharsets.UTF_8);
  }

  @Test
  void theProgramsRun() throws Exception {
    try (TestServer server = new TestServer(true)) {
      assertThat(printed(program("Orders", server.port))).isEqualTo("ordered\n");
      assertThat(printed(program("Buckets", server.port)))
          .contains("consumed=true, remainingTokens=7,");
    }
  }

  @Test
  void theAssistantAnswers() throws Exception {
    Class<?> assistant = program("Assistant", 0);
    Method of = assistant.getDeclaredMethod("of", ChatClient.Builder.class, Limiter.class);
    Method ask = assistant.getDeclaredMethod("ask", ChatClient.class, String.class, String.class);
    of.setAccessible(true);
    ask.setAccessible(true);
    ChatModel model = prompt -> TokenBudgetAdvisorTest.said("By a limiter.", 30);
    Object client = of.invoke(null, ChatClient.builder(model), Servers.MODULE.limiter());
    assertThat(ask.invoke(null, client, "ann", "How?")).isEqualTo("By a limiter.");
  }
}
