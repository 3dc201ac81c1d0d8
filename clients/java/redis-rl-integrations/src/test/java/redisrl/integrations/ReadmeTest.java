package redisrl.integrations;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.reflect.Method;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.ai.chat.client.ChatClient;
import org.springframework.ai.chat.model.ChatModel;
import redisrl.Limiter;
import redisrl.Readme;
import redisrl.TestServer;

/** The programs of the README compile and run as they stand, but for the port. */
class ReadmeTest {
  @TempDir Path folder;

  private Class<?> program(String name, int port) throws Exception {
    String program =
        Readme.blocks("java").stream()
            .filter(block -> block.contains("class " + name + " "))
            .findFirst()
            .orElseThrow();
    return Readme.compiled(folder, program.replace(":6379", ":" + port)).loadClass(name);
  }

  @Test
  void theProgramsRun() throws Exception {
    try (TestServer server = new TestServer(true)) {
      assertThat(Readme.printed(program("Orders", server.port))).isEqualTo("ordered\n");
      assertThat(Readme.printed(program("Buckets", server.port)))
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
