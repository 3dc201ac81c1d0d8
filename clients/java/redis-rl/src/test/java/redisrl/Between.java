package redisrl;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.function.BooleanSupplier;

/** A transport that does what another does, or has no server, but for what a test changes. */
class Between implements Transport {
  private final Transport to;

  Between(Transport to) {
    this.to = to;
  }

  @Override
  public CompletableFuture<Object> send(String key, List<String> words, BooleanSupplier isGivenUp) {
    return to == null
        ? CompletableFuture.failedFuture(new IOException("there is no server"))
        : to.send(key, words, isGivenUp);
  }

  @Override
  public String server(String key) {
    return to == null ? "" : to.server(key);
  }

  @Override
  public boolean isCluster() {
    return to != null && to.isCluster();
  }

  @Override
  public void renew(String server) {
    if (to != null) {
      to.renew(server);
    }
  }

  @Override
  public void close() {
    if (to != null) {
      to.close();
    }
  }
}
