package redisrl;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Renews what is held, a lease or the units of a reservation, each third of its time until it ends.
 */
final class Keeper {
  private static final Logger LOG = LoggerFactory.getLogger(Limiter.class);

  /** How often in a lease what is held is renewed. */
  static final int RENEWALS = 3;

  private final Limiter limiter;
  private final String call;
  private final List<Keyed> rules;
  private final long lease;
  private final CompletableFuture<Void> lost = new CompletableFuture<>();
  private long ends;
  private boolean isOver;
  private @Nullable ScheduledFuture<?> renewal;
  private @Nullable ScheduledFuture<?> expiry;

  /** {@code began} is before the call was sent that took it. */
  Keeper(Limiter limiter, String call, List<Keyed> rules, Duration lease, long began) {
    this.limiter = limiter;
    this.call = call;
    this.rules = rules;
    this.lease = lease.toNanos();
    extend(began);
    renewal =
        Core.TIMER.scheduleWithFixedDelay(
            this::renew,
            this.lease / RENEWALS,
            Math.max(this.lease / RENEWALS, 1_000_000),
            TimeUnit.NANOSECONDS);
  }

  private synchronized void extend(long from) {
    ends = from + lease;
    if (expiry != null) {
      expiry.cancel(false);
    }
    expiry = Core.TIMER.schedule(this::isLost, ends - System.nanoTime(), TimeUnit.NANOSECONDS);
  }

  /**
   * By the clock of this process, since timers of a busy process run late. What is lost stays lost.
   */
  boolean isLost() {
    boolean isLate;
    synchronized (this) {
      isLate = !isOver && System.nanoTime() - ends >= 0;
    }
    if (isLate) {
      end();
      lost.complete(null);
    }
    return lost.isDone();
  }

  /** What follows it may block, and the timer must not. */
  CompletableFuture<Void> lost() {
    return lost.thenRunAsync(() -> {});
  }

  private void renew() {
    if (limiter.isClosed() || isLost()) {
      stop();
      return;
    }
    long began = System.nanoTime();
    limiter
        .renew(call, rules, late -> giveBackIfOver(late))
        .whenComplete(
            (decision, thrown) -> {
              Throwable error = thrown == null ? null : Core.cause(thrown);
              if (error instanceof ServerException line && (line.isSettled() || line.hasEnded())) {
                end(); // A settlement whose reply was lost has arrived; or there is nothing that
                // could be given back.
              } else if (error != null) {
                LOG.warn(
                    "limiter {}: what is held at {} could not be renewed: {}",
                    limiter.name(),
                    Keyed.keys(rules),
                    error.toString());
              } else if (decision.allowed() && !isLost() && !over()) {
                extend(began);
              } else if (decision.allowed()) {
                giveBackIfOver(decision);
              } else {
                LOG.warn(
                    "limiter {}: what is held at {} has ended before it was renewed",
                    limiter.name(),
                    Keyed.keys(rules));
                end();
                lost.complete(null);
              }
            });
  }

  /** What was taken anew when it was over is nobody's. Reservations end by their settlement. */
  private void giveBackIfOver(Decision decision) {
    if (decision.allowed() && over() && rules.get(0).rule() instanceof Rule.Lease) {
      limiter.giveBack(rules);
    }
  }

  private synchronized boolean over() {
    return isOver;
  }

  /** Renews no more: what is held ends by itself, and is lost then. */
  private synchronized void stop() {
    if (renewal != null) {
      renewal.cancel(false);
    }
  }

  synchronized void end() {
    isOver = true;
    stop();
    if (expiry != null) {
      expiry.cancel(false);
    }
  }
}
