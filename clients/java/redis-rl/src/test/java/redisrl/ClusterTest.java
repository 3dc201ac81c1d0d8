package redisrl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.catchThrowable;

import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.protocol.ProtocolVersion;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The limiter on a cluster of three. */
class ClusterTest {
  @ParameterizedTest
  @EnumSource
  void keysOfAllNodesAreLimitedAndOneThatDiesTakesNoOtherWithIt(Way way) throws Exception {
    List<TestServer> nodes = new ArrayList<>();
    try {
      for (int i = 0; i < 3; i++) {
        nodes.add(
            new TestServer(
                true,
                "--cluster-enabled",
                "yes",
                "--cluster-require-full-coverage",
                "no",
                "--cluster-node-timeout",
                "60000"));
      }
      join(nodes);
      Rule.Sliding rule = Rule.sliding("2/minute");
      try (Transport transport = way.toCluster(nodes.get(0));
          Limiter limiter = Limiter.builder(transport).timeout(Duration.ofSeconds(10)).build()) {
        for (int i = 0; i < 30; i++) {
          String key = "key" + i;
          assertThat(limiter.hit(key, rule).allowed()).isTrue();
          assertThat(limiter.hit(key, rule).allowed()).isTrue();
          assertThat(limiter.hit(key, rule).allowed()).isFalse();
        }
        assertThat(limiter.all(Keyed.of("{t}a", rule), Keyed.of("{t}b", rule)).allowed()).isTrue();
        assertThat(catchThrowable(() -> limiter.all(Keyed.of("a", rule), Keyed.of("b", rule))))
            .hasMessageContaining("CROSSSLOT");
        assertThat(limiter.mode()).isEqualTo(Mode.MODULE);
      }
      try (Transport transport = way.toCluster(nodes.get(0));
          Limiter limiter = Limiter.builder(transport).timeout(Duration.ofMillis(500)).build()) {
        eventually(() -> catchThrowable(() -> limiter.hit("key0", rule)) == null);
        String dead = transport.server("key0");
        for (TestServer node : nodes) {
          if (node.run("KEYS", "key0").contains("key0")) {
            node.kill();
            break;
          }
        }
        for (int i = 0; i < 30; i++) {
          String key = "other" + i;
          if (transport.server(key).equals(dead)) {
            assertThat(catchThrowable(() -> limiter.hit(key, rule)))
                .isInstanceOf(UnavailableException.class);
          } else {
            eventually(() -> catchThrowable(() -> limiter.hit(key, rule)) == null);
          }
        }
      }
    } finally {
      for (TestServer node : nodes) {
        node.close();
      }
    }
  }

  @Test
  void theOptionsOfAClientAreThoseOfOursToo() throws Exception {
    try (TestServer node = new TestServer(true, "--cluster-enabled", "yes")) {
      join(List.of(node));
      RedisClusterClient client = RedisClusterClient.create(node.uri());
      client.setOptions(
          ClusterClientOptions.builder().protocolVersion(ProtocolVersion.RESP2).build());
      try (Transport transport = LettuceTransport.of(client);
          Limiter limiter = Limiter.builder(transport).timeout(Duration.ofSeconds(10)).build()) {
        limiter.hit("k", Rule.sliding("2/minute"));
        assertThat(node.run("CLIENT", "LIST").lines().filter(line -> line.contains("cmd=rl.")))
            .isNotEmpty()
            .allMatch(line -> line.contains("resp=2"));
      } finally {
        client.shutdown(0, 0, TimeUnit.SECONDS);
      }
    }
  }

  private static void eventually(java.util.function.BooleanSupplier condition) throws Exception {
    for (long until = System.nanoTime() + 30_000_000_000L;
        !condition.getAsBoolean();
        Thread.sleep(20)) {
      assertThat(System.nanoTime()).isLessThan(until);
    }
  }

  private static void join(List<TestServer> nodes) throws Exception {
    for (int i = 0; i < nodes.size(); i++) {
      int first = 16384 * i / nodes.size();
      int last = 16384 * (i + 1) / nodes.size() - 1;
      nodes.get(i).run("CLUSTER", "ADDSLOTSRANGE", "" + first, "" + last);
      nodes.get(i).run("CLUSTER", "MEET", "127.0.0.1", "" + nodes.get(0).port);
    }
    for (TestServer node : nodes) {
      for (long until = System.nanoTime() + 60_000_000_000L;
          !node.run("CLUSTER", "INFO").contains("cluster_slots_ok:16384")
              || !node.run("CLUSTER", "INFO").contains("cluster_state:ok");
          Thread.sleep(50)) {
        assertThat(System.nanoTime()).isLessThan(until);
      }
    }
  }
}
