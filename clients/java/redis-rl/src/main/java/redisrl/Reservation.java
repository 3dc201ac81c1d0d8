package redisrl;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Units that are held until it is known what was used. See {@link Limiter#reserve}. */
public final class Reservation implements AutoCloseable {
  private static final Logger LOG = LoggerFactory.getLogger(Limiter.class);

  /** For how long a server remembers a settlement at least. */
  static final Duration REMEMBERED = Duration.ofMinutes(1);

  /** A key of which units are reserved, and its settlement: one call at a time. */
  private final class Part {
    private final Keyed held;
    private long units;
    private @Nullable CompletableFuture<Long> call;
    private @Nullable Long unansweredSince;

    Part(Keyed held) {
      this.held = held;
    }

    synchronized boolean isSettled() {
      return call != null && call.isDone() && !call.isCompletedExceptionally();
    }

    synchronized CompletableFuture<Long> settle(long actual) {
      if (call != null && !call.isCompletedExceptionally()) {
        // Not sent again: a server that remembers no longer would charge once more.
        return actual == units
            ? call
            : CompletableFuture.failedFuture(
                new IllegalArgumentException(
                    "the reservation was settled before, with another figure"));
      }
      long began = System.nanoTime();
      Duration memory =
          (lease.compareTo(REMEMBERED) > 0 ? lease : REMEMBERED).minus(limiter.timeout());
      if (unansweredSince != null && began - unansweredSince >= memory.toNanos()) {
        return CompletableFuture.failedFuture(
            new IllegalStateException(
                "the outcome of the settlement is unknown: the first one had no answer"));
      }
      units = actual;
      call = limiter.settle(held, actual).whenComplete((settled, error) -> answered(began, error));
      return call;
    }

    private synchronized void answered(long began, @Nullable Throwable error) {
      if (error != null
          && Core.cause(error) instanceof UnavailableException unavailable
          && unavailable.sent
          && unansweredSince == null) {
        unansweredSince = began;
      }
    }
  }

  private final Limiter limiter;
  private final Duration lease;
  private final Decision decision;
  private final List<Part> parts;
  private final Keeper keeper;
  private volatile long[] figures = {0};

  Reservation(
      Limiter limiter,
      String call,
      List<Keyed> rules,
      Duration lease,
      Decision decision,
      long began) {
    this.limiter = limiter;
    this.lease = lease;
    this.decision = decision;
    this.parts = rules.stream().filter(Keyed::isHeld).map(Part::new).toList();
    this.keeper = new Keeper(limiter, call, rules, lease, began);
  }

  /** The answer to the reservation. */
  public Decision decision() {
    return decision;
  }

  /** Whether the reservation has lapsed: its units are free for others. It can still be settled. */
  public boolean isLost() {
    return keeper.isLost();
  }

  /** Completes when the reservation has lapsed. */
  public CompletableFuture<Void> lost() {
    return keeper.lost();
  }

  /**
   * Charges what the work has really cost in place of what was reserved, also over the limit: one
   * figure for all keys, or one for each that was reserved. It may be called again after any error,
   * with the same figures, and charges once. Returns whether it was charged: false where the server
   * is unavailable, so that the result of the work is not lost; a warning is logged.
   *
   * @throws IllegalArgumentException for a figure other than what was settled
   * @throws IllegalStateException if the server remembers no longer whether it was settled: the
   *     outcome is unknown
   */
  public boolean settle(long... actual) {
    if (actual.length != 1 && actual.length != parts.size()) {
      throw new IllegalArgumentException(
          "settle takes the actual units, one figure for all or "
              + parts.size()
              + ", not "
              + actual.length);
    }
    for (long units : actual) {
      if (units < 0 || units > Rates.MAX_UNITS) {
        throw new IllegalArgumentException(
            "the actual units must be from 0 to " + Rates.MAX_UNITS + ", not " + units);
      }
    }
    figures = actual.clone();
    List<CompletableFuture<Long>> calls = new ArrayList<>();
    for (int i = 0; i < parts.size(); i++) {
      calls.add(parts.get(i).settle(actual[actual.length == 1 ? 0 : i]));
    }
    // Also where the caller leaves before that.
    CompletableFuture.allOf(calls.toArray(CompletableFuture[]::new)).thenRun(keeper::end);
    UnavailableException unavailable = null;
    for (CompletableFuture<Long> call : calls) {
      try {
        Limiter.joined(call.copy());
      } catch (UnavailableException error) {
        unavailable = error;
      }
    }
    if (unavailable != null) {
      LOG.warn(
          "limiter {}: a reservation could not be settled: {}",
          limiter.name(),
          unavailable.getMessage());
    }
    return unavailable == null;
  }

  /** Gives everything back: it settles 0. */
  public boolean cancel() {
    return settle(0);
  }

  /**
   * Ends the reservation. It cancels what was not settled, so that work which has failed costs
   * nothing, and sends a settlement that has failed once more. An error of that is logged, and the
   * reservation then lapses.
   */
  @Override
  public void close() {
    if (!parts.stream().allMatch(Part::isSettled)) {
      try {
        settle(figures);
      } catch (RuntimeException error) {
        LOG.warn("limiter {}: a reservation could not be settled", limiter.name(), error);
      }
    }
    keeper.end();
  }
}
