package redisrl.spring;

import io.lettuce.core.RedisURI;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import org.jspecify.annotations.Nullable;
import org.springframework.boot.context.properties.bind.Bindable;
import org.springframework.boot.context.properties.bind.Binder;
import org.springframework.core.env.Environment;
import org.springframework.util.StringUtils;
import redisrl.LettuceTransport;
import redisrl.Transport;

/**
 * The way to the server, by {@code rate-limiter.url} or {@code spring.data.redis.*}. Those are read
 * by their names, since the class that has them is another one in each version of Boot.
 */
record Connection(Environment environment) {
  private static final String SPRING = "spring.data.redis.";

  Transport to(@Nullable String url) {
    if (StringUtils.hasText(url)) {
      return to(uris(url));
    }
    if (text("ssl.bundle") != null
        || text("sentinel.password") != null
        || !list("masterreplica.nodes").isEmpty()) {
      throw RateLimiterProperties.wrong(
          "url",
          null,
          "ssl.bundle, sentinel.password and masterreplica.nodes of spring.data.redis are not read"
              + " by the rate limiter: give it a url, or a bean of the type redisrl.Transport.");
    }
    String own = text("url");
    List<String> nodes = list("cluster.nodes");
    if (!nodes.isEmpty()) {
      return LettuceTransport.cluster(
          nodes.stream().map(node -> finished(RedisURI.builder(uri(node)))).toList());
    }
    if (text("sentinel.master") != null) {
      return LettuceTransport.create(sentinels());
    }
    if (own != null) {
      List<RedisURI> uris = uris(own);
      uris.forEach(uri -> uri.setSsl(uri.isSsl() || isSecured()));
      return to(uris);
    }
    return LettuceTransport.create(
        finished(
            RedisURI.builder()
                .withHost(text("host", "localhost"))
                .withPort(Integer.parseInt(text("port", "6379")))));
  }

  private static Transport to(List<RedisURI> uris) {
    return uris.size() == 1 ? LettuceTransport.create(uris.get(0)) : LettuceTransport.cluster(uris);
  }

  private RedisURI sentinels() {
    RedisURI.Builder uri = RedisURI.builder().withSentinelMasterId(text("sentinel.master", ""));
    list("sentinel.nodes").forEach(node -> uri.withSentinel(uri(node)));
    return finished(uri);
  }

  private RedisURI finished(RedisURI.Builder uri) {
    String user = text("username");
    String password = text("password");
    if (password != null && user != null) {
      uri.withAuthentication(user, password);
    } else if (password != null) {
      uri.withPassword(password.toCharArray());
    }
    return uri.withDatabase(Integer.parseInt(text("database", "0"))).withSsl(isSecured()).build();
  }

  private boolean isSecured() {
    return Boolean.parseBoolean(text("ssl.enabled", "false"));
  }

  private static RedisURI uri(String node) {
    int colon = node.lastIndexOf(':');
    return colon < 0
        ? RedisURI.create(node, 6379)
        : RedisURI.create(node.substring(0, colon), Integer.parseInt(node.substring(colon + 1)));
  }

  /** An URL may have a password: no error quotes it. */
  @SuppressWarnings("UnusedException")
  private static List<RedisURI> uris(String url) {
    List<RedisURI> uris = new ArrayList<>();
    for (String each : url.split(",", -1)) {
      try {
        uris.add(RedisURI.create(each.strip()));
      } catch (IllegalArgumentException error) {
        // Boot shows the value of a property that it is told to be wrong.
        throw new IllegalArgumentException(
            "rate-limiter.url (or spring.data.redis.url) must be like"
                + " redis://:password@host:6379/0, rediss://… or"
                + " redis-sentinel://host:26379/0#service, or the nodes of a cluster with commas");
      }
    }
    return uris;
  }

  /** What is empty was not given: a variable of the environment may have no value. */
  private @Nullable String text(String name) {
    String text = environment.getProperty(SPRING + name);
    return StringUtils.hasText(text) ? text : null;
  }

  private String text(String name, String otherwise) {
    return Objects.requireNonNullElse(text(name), otherwise);
  }

  private List<String> list(String name) {
    return Binder.get(environment)
        .bind(SPRING + name, Bindable.listOf(String.class))
        .orElse(List.of());
  }
}
