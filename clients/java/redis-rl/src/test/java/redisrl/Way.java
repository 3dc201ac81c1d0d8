package redisrl;

import io.lettuce.core.cluster.RedisClusterClient;
import java.util.Set;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

/** The transports, as a test opens them. */
enum Way {
  LETTUCE {
    @Override
    Transport to(TestServer server) {
      return LettuceTransport.create(server.uri());
    }

    @Override
    Transport toCluster(TestServer node) {
      return LettuceTransport.of(RedisClusterClient.create(node.uri()));
    }
  },
  JEDIS {
    @Override
    Transport to(TestServer server) {
      return JedisTransport.create(address(server), DefaultJedisClientConfig.builder().build());
    }

    @Override
    Transport toCluster(TestServer node) {
      return JedisTransport.cluster(
          Set.of(address(node)), DefaultJedisClientConfig.builder().build());
    }

    private static HostAndPort address(TestServer server) {
      return new HostAndPort("127.0.0.1", server.port);
    }
  };

  abstract Transport to(TestServer server);

  abstract Transport toCluster(TestServer node);
}
