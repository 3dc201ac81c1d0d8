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

  /** A key of which units are reserved. */
  private static final class Part {
    final Command.Keyed held;
    @Nullable Long settled;

    Part(Command.Keyed held) {
      this.held = held;
    }
  }

  private final Limiter limiter;
  private final Duration lease;
  private final Decision decision;
  private final List<Part> parts;
  private final Keeper keeper;
  private long @Nullable [] failed;
  private @Nullable Long unansweredSince;

  Reservation(
      Limiter limiter,
      String call,
      List<Command.Keyed> rules,
      Duration lease,
      Decision decision,
      long began) {
    this.limiter = limiter;
    this.lease = lease;
    this.decision = decision;
    this.parts = rules.stream().filter(each -> each.rule().hold() != null).map(Part::new).toList();
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
  public synchronized boolean settle(long... actual) {
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
    failed = actual.clone();
    List<RuntimeException> errors = new ArrayList<>();
    for (int i = 0; i < parts.size(); i++) {
      try {
        settle(parts.get(i), actual[actual.length == 1 ? 0 : i]);
      } catch (RuntimeException error) {
        errors.add(error); // The other keys are charged all the more.
      }
    }
    for (RuntimeException error : errors) {
      if (!(error instanceof UnavailableException)) {
        throw error;
      }
      LOG.warn(
          "limiter {}: a reservation could not be settled: {}", limiter.name(), error.getMessage());
    }
    if (!errors.isEmpty()) {
      return false;
    }
    failed = null;
    keeper.end();
    return true;
  }

  private void settle(Part part, long units) {
    Long settled = part.settled;
    if (settled != null) {
      // Not sent again: a server that remembers no longer would charge once more.
      if (settled != units) {
        throw new IllegalArgumentException(
            "the reservation was settled before, with another figure");
      }
      return;
    }
    long began = System.nanoTime();
    Duration memory =
        (lease.compareTo(REMEMBERED) > 0 ? lease : REMEMBERED).minus(limiter.timeout());
    if (unansweredSince != null && began - unansweredSince >= memory.toNanos()) {
      throw new IllegalStateException(
          "the outcome of the settlement is unknown: the first one had no answer");
    }
    try {
      Limiter.joined(limiter.settle(part.held, units));
      part.settled = units;
    } catch (UnavailableException error) {
      if (error.sent && unansweredSince == null) {
        unansweredSince = began;
      }
      throw error;
    }
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
    boolean isSettled;
    long[] figures;
    synchronized (this) {
      isSettled = parts.stream().allMatch(part -> part.settled != null);
      figures = failed == null ? new long[] {0} : failed;
    }
    if (!isSettled) {
      try {
        settle(figures);
      } catch (RuntimeException error) {
        LOG.warn("limiter {}: a reservation could not be settled", limiter.name(), error);
      }
    }
    keeper.end();
  }
}
