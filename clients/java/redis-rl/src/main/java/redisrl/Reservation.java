package redisrl;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/**
 * Units that are held until it is known what was used. See {@link Limiter#reserve}. One that is
 * lost can still be settled, and its units are free for others.
 */
public final class Reservation extends Kept {
  /** For how long a server remembers a settlement at least. */
  static final Duration REMEMBERED = Duration.ofMinutes(1);

  static final String OTHER_FIGURE = "the reservation was settled before, with another figure";

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
            : CompletableFuture.failedFuture(new IllegalArgumentException(OTHER_FIGURE));
      }
      long began = System.nanoTime();
      Duration memory =
          (lease.compareTo(REMEMBERED) > 0 ? lease : REMEMBERED).minus(limiter.timeout);
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

  private final List<Part> parts;
  private volatile long[] figures = {0};

  Reservation(Limiter limiter, List<Keyed> rules, Duration lease, Decision decision, long began) {
    super(limiter, rules, lease, decision, began);
    this.parts = rules.stream().filter(Keyed::isHeld).map(Part::new).toList();
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
    Rates.check(
        actual.length == 1 || actual.length == parts.size(),
        "settle takes the actual units, one figure for all or %s, not %s",
        parts.size(),
        actual.length);
    for (long units : actual) {
      Rates.within(0, Rates.MAX_UNITS, units, "the actual units must be");
    }
    figures = actual.clone();
    List<CompletableFuture<Long>> calls = new ArrayList<>();
    for (int i = 0; i < parts.size(); i++) {
      calls.add(parts.get(i).settle(actual[actual.length == 1 ? 0 : i]));
    }
    // Also where the caller leaves before that.
    CompletableFuture.allOf(calls.toArray(CompletableFuture[]::new)).thenRun(this::end);
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
          limiter.name,
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
        LOG.warn("limiter {}: a reservation could not be settled", limiter.name, error);
      }
    }
    end();
  }
}
