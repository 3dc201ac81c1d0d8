package redisrl.integrations;

import static org.assertj.core.api.Assertions.assertThat;

import java.time.Duration;
import java.util.function.BooleanSupplier;
import redisrl.LettuceTransport;
import redisrl.Limiter;
import redisrl.TestServer;

/** The servers of the tests: with the module, and with functions. */
enum Servers {
  MODULE,
  FUNCTIONS;

  private TestServer server;
  private LettuceTransport transport;

  /** A limiter on a server that all tests share until the process ends. */
  synchronized Limiter limiter() throws Exception {
    if (server == null) {
      server = new TestServer(this == MODULE);
      transport = LettuceTransport.create(server.uri());
      Runtime.getRuntime().addShutdownHook(new Thread(this::stop));
    }
    return Limiter.builder(transport).timeout(Duration.ofSeconds(10)).build();
  }

  private void stop() {
    try {
      transport.close();
      server.close();
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }

  /** One whose server is away. */
  static Limiter away() {
    return Limiter.builder(LettuceTransport.create(io.lettuce.core.RedisURI.create("127.0.0.1", 1)))
        .timeout(Duration.ofMillis(250))
        .build();
  }

  static void eventually(BooleanSupplier condition) throws InterruptedException {
    for (long until = System.nanoTime() + 30_000_000_000L;
        !condition.getAsBoolean();
        Thread.sleep(10)) {
      assertThat(System.nanoTime()).isLessThan(until);
    }
  }
}
