package redisrl;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.BooleanSupplier;
import org.jspecify.annotations.Nullable;

/**
 * The way to a server or a cluster: {@link LettuceTransport} or {@link JedisTransport}. One can
 * serve several limiters.
 *
 * <p>A reply is a Long, a String, a List or null, and a map of RESP3 is a List of its keys and
 * values in turn. A future fails with {@link ServerException} for an error line, and with anything
 * else where the connection broke or was not made. A command is never sent twice. The texts of keys
 * and words are sent as UTF-8.
 */
public interface Transport extends AutoCloseable {
  /**
   * Sends a command to the server that has this key, which is among its words unless the command
   * takes no keys.
   *
   * @param isGivenUp whether nobody waits for it any more. A command for which that is true by the
   *     time that it can be sent is not: its future fails with {@link UnavailableException}
   */
  CompletableFuture<@Nullable Object> send(
      String key, List<String> words, BooleanSupplier isGivenUp);

  /** The name of the server that has this key; empty where there is only one. */
  String server(String key);

  /** Whether it leads to a cluster. */
  boolean isCluster();

  /**
   * How often it has connected so far, or connected again. After that the server may be another, or
   * have the module by now.
   */
  default long connections() {
    return 0;
  }

  /** Called after a failure of a server: what is connected may be connected anew. */
  void renew(String server);

  @Override
  void close();
}
