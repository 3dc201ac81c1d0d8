package redisrl.integrations;

import java.time.Duration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redisrl.Guard.WhenUnavailable;
import redisrl.UnavailableException;

/** Logs that the server is unavailable, and that it is back: at most once a minute. */
final class Outage {
  private static final Logger LOG = LoggerFactory.getLogger(Outage.class);
  private static final long TOLD_AGAIN = Duration.ofMinutes(1).toNanos();

  private final String adapter;
  private final WhenUnavailable policy;
  private volatile boolean isTold;
  private long toldAt = System.nanoTime() - TOLD_AGAIN;

  Outage(String adapter, WhenUnavailable policy) {
    this.adapter = adapter;
    this.policy = policy;
  }

  synchronized void began(UnavailableException error) {
    long now = System.nanoTime();
    if (!isTold && now - toldAt >= TOLD_AGAIN) {
      isTold = true;
      toldAt = now;
      LOG.warn("{}: the server is unavailable ({}): {}", adapter, policy, error.getMessage());
    }
  }

  void ended() {
    if (isTold) {
      isTold = false;
      LOG.warn("{}: the server is available again", adapter);
    }
  }
}
