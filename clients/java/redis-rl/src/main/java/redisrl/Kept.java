package redisrl;

import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What is held, a lease or the units of a reservation. It is renewed each third of its time until
 * it is closed. It is lost where it ends before that: others may hold it then.
 */
public abstract sealed class Kept implements AutoCloseable permits Held, Reservation {
  static final Logger LOG = LoggerFactory.getLogger(Limiter.class);

  /** How often in a lease what is held is renewed. */
  static final int RENEWALS = 3;

  final Limiter limiter;
  final List<Keyed> rules;
  final Duration lease;
  private final Decision decision;
  private final CompletableFuture<Void> lost = new CompletableFuture<>();
  private volatile long ends;
  private volatile boolean isOver;
  private @Nullable ScheduledFuture<?> renewal;
  private @Nullable ScheduledFuture<?> expiry;

  /** {@code began} is before the call was sent that took it. */
  Kept(Limiter limiter, List<Keyed> rules, Duration lease, Decision decision, long began) {
    this.limiter = limiter;
    this.decision = decision;
    this.rules = rules;
    this.lease = lease;
    extend(began);
    long third = lease.toNanos() / RENEWALS;
    renewal =
        Core.TIMER.scheduleWithFixedDelay(
            this::renew, third, Math.max(third, 1_000_000), NANOSECONDS);
  }

  /** The answer to the call that took it. */
  public Decision decision() {
    return decision;
  }

  private synchronized void extend(long from) {
    ends = from + lease.toNanos();
    if (expiry != null) {
      expiry.cancel(false);
    }
    expiry = Core.TIMER.schedule(this::isLost, ends - System.nanoTime(), NANOSECONDS);
  }

  /**
   * Whether it has ended before it was closed. That is counted by the clock of this process, since
   * its timers run late when it is busy, and from before the last renewal was sent, so that it is
   * never noticed too late, also while the server does not answer.
   */
  public boolean isLost() {
    if (!isOver && System.nanoTime() - ends >= 0) {
      end();
      lost.complete(null);
    }
    return lost.isDone();
  }

  /** Completes when it is lost. What follows runs in a thread of its own, and may block. */
  public CompletableFuture<Void> lost() {
    return lost.thenRunAsync(() -> {}, work -> Core.thread(work, "redis-rl-lost").start());
  }

  private void renew() {
    if (limiter.isClosed() || isLost()) {
      return;
    }
    long began = System.nanoTime();
    limiter
        .renew(decision.rule() == null ? "all" : "hit", rules, this::giveBackIfOver)
        .whenComplete(
            (decision, thrown) -> {
              if (thrown != null) {
                failed(Core.cause(thrown));
              } else if (decision.allowed() && !isLost() && !isOver) {
                extend(began);
              } else if (decision.allowed()) {
                giveBackIfOver(decision);
              } else {
                warn("has ended before it was renewed", null);
                end();
                lost.complete(null);
              }
            });
  }

  private void failed(Throwable error) {
    if (error instanceof ServerException line && (line.isSettled() || line.hasEnded())) {
      // A settlement whose reply was lost has arrived; or there is nothing left to give back.
      end();
    } else {
      warn("could not be renewed", error.toString());
    }
  }

  private void warn(String what, @Nullable String why) {
    LOG.warn(
        "limiter {}: what is held at {} {}{}",
        limiter.name,
        Keyed.keys(rules),
        what,
        why == null ? "" : ": " + why);
  }

  /** What was taken anew when it was over is nobody's. Reservations end by their settlement. */
  private void giveBackIfOver(Decision decision) {
    if (isOver && this instanceof Held) {
      limiter.giveBack(rules, decision);
    }
  }

  final synchronized void end() {
    isOver = true;
    if (renewal != null) {
      renewal.cancel(false);
    }
    if (expiry != null) {
      expiry.cancel(false);
    }
  }

  /** Ends it. An error is logged, and is no concern of the work's: it then ends by itself. */
  @Override
  public abstract void close();
}
