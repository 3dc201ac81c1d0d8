package redisrl;

import static java.util.Objects.requireNonNull;
import static redisrl.Rates.check;
import static redisrl.Rates.given;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * Calls that wait: for their turn, for the wait of a denial to be over, or for a place. Of those
 * that wait for places at one key in this process the first asks, and the others wait for theirs.
 */
final class Waiting {
  static final Duration FIRST_POLL = Duration.ofMillis(20);
  static final Duration LONGEST_POLL = Duration.ofMillis(500);

  /** The last call of a wait has at least this part of the limiter's time-out. */
  static final int LAST_CALL = 10;

  private final Limiter limiter;
  private final Map<String, Deque<Waiter>> lines = new HashMap<>();

  Waiting(Limiter limiter) {
    this.limiter = limiter;
  }

  Waiter begin(String key, Rule rule, Duration longest) {
    check(
        !given(longest, "the time to wait").isNegative(),
        "the time to wait must not be negative, and is %s",
        longest);
    check(
        !given(rule, "a rule").options.force(),
        "a request that is forced is not waited for: it would be counted each time");
    Rule asked = rule instanceof Rule.Lease lease ? lease.held() : rule;
    Waiter waiter = new Waiter(new Keyed(key, asked), longest);
    if (asked instanceof Rule.Lease) {
      enter(waiter);
    } else {
      waiter.ask();
    }
    return waiter;
  }

  private void enter(Waiter waiter) {
    boolean isFirst;
    synchronized (lines) {
      Deque<Waiter> line = lines.computeIfAbsent(waiter.at.key(), key -> new ArrayDeque<>());
      line.add(waiter);
      isFirst = line.size() == 1;
    }
    waiter.result.whenComplete((decision, error) -> leave(waiter));
    if (isFirst) {
      waiter.ask();
    } else {
      // Its last call, if its turn has not come by then.
      waiter.later(waiter.left());
    }
  }

  private void leave(Waiter waiter) {
    String key = waiter.at.key();
    synchronized (lines) {
      Deque<Waiter> line = lines.getOrDefault(key, new ArrayDeque<>());
      boolean wasFirst = line.peek() == waiter;
      line.remove(waiter);
      if (line.isEmpty()) {
        lines.remove(key);
      } else if (wasFirst) {
        wake(key);
      }
    }
  }

  /** A place may be free: the first in the line asks. */
  void wake(String key) {
    synchronized (lines) {
      Waiter first = lines.getOrDefault(key, new ArrayDeque<>()).peek();
      if (first != null) {
        first.pause = FIRST_POLL.toNanos();
        first.later(0);
      }
    }
  }

  final class Waiter {
    final CompletableFuture<Decision> result = new CompletableFuture<>();
    final Keyed at;
    volatile long asked = System.nanoTime();
    private final long until;
    private final long patience;
    private volatile long pause = FIRST_POLL.toNanos();
    private @Nullable Decision denial;
    private @Nullable ScheduledFuture<?> next;
    private boolean isAsking;

    Waiter(Keyed at, Duration longest) {
      this.at = at;
      this.until = System.nanoTime() + Limiter.atMostACentury(longest).toNanos();
      // A wait that takes no time at all is a call as any other.
      long whole = limiter.timeout.toNanos();
      this.patience = longest.isZero() ? whole : whole / LAST_CALL;
    }

    private long left() {
      return Math.max(0, until - System.nanoTime());
    }

    /** Asks in this number of nanoseconds, and not before. */
    private synchronized void later(long nanos) {
      if (next != null) {
        next.cancel(false);
      }
      next = Core.TIMER.schedule(this::ask, nanos, TimeUnit.NANOSECONDS);
    }

    private void ask() {
      synchronized (this) {
        if (isAsking || result.isDone()) {
          return;
        }
        isAsking = true;
        asked = System.nanoTime();
      }
      long left = left();
      // The last call has some time for its answer, too.
      Duration timeout =
          Duration.ofNanos(Math.max(Math.min(limiter.timeout.toNanos(), left), patience));
      Duration turn = Duration.ofNanos(Math.min(left, Command.LONGEST_TURN.toNanos()));
      try {
        CompletableFuture<Decision> call =
            at.rule() instanceof Rule.Queued
                ? limiter.turned(at, turn, timeout, this::late)
                : limiter.decided("hit", List.of(at), timeout, this::late);
        call.whenComplete(this::answered);
      } catch (RuntimeException error) {
        result.completeExceptionally(error);
      }
    }

    private void answered(@Nullable Decision decision, @Nullable Throwable thrown) {
      synchronized (this) {
        isAsking = false;
      }
      if (decision == null) {
        failed(Core.cause(requireNonNull(thrown)));
      } else if (decision.allowed()) {
        sleep(decision);
      } else {
        denied(decision);
      }
    }

    private void failed(Throwable error) {
      long left = left();
      if (!(error instanceof UnavailableException)) {
        result.completeExceptionally(error);
      } else if (left > 0) {
        // A denial from before an outage is no answer at its end.
        denial = null;
        later(Math.min(left, Core.PAUSE.toNanos()));
      } else if (denial != null) {
        result.complete(denial);
      } else {
        result.completeExceptionally(error);
      }
    }

    private void sleep(Decision decision) {
      if (result.isDone() || decision.waitFor().isZero()) {
        finish(decision);
        return;
      }
      var timer =
          Core.TIMER.schedule(
              () -> finish(decision), decision.waitFor().toNanos(), TimeUnit.NANOSECONDS);
      result.whenComplete(
          (done, error) -> {
            if (error != null && timer.cancel(false)) {
              late(decision);
            }
          });
    }

    private void finish(Decision decision) {
      if (!result.complete(decision)) {
        late(decision);
      }
    }

    private void denied(Decision decision) {
      denial = decision;
      long left = left();
      Duration wait = decision.retryAfter();
      boolean isLease = at.rule() instanceof Rule.Lease;
      if (wait == null || left == 0 || !isLease && wait.compareTo(Duration.ofNanos(left)) > 0) {
        result.complete(decision);
      } else if (isLease) {
        // A place can be given back before its lease ends.
        long poll = ThreadLocalRandom.current().nextLong(pause / 2, pause);
        later(Math.min(left, Math.min(poll, Math.max(wait.toNanos(), 1_000_000))));
        pause = Math.min(2 * pause, LONGEST_POLL.toNanos());
      } else {
        later(wait.toNanos());
      }
    }

    /** A decision that the result is not. */
    private void late(Decision decision) {
      if (at.rule() instanceof Rule.Lease) {
        // A later call by the same holder may get the place, or have it.
        var ignored =
            result.whenComplete(
                (last, error) -> {
                  if (last == null || !last.allowed()) {
                    limiter.giveBack(List.of(at), decision);
                  }
                });
      } else {
        limiter.giveBack(List.of(at), decision);
      }
    }
  }
}
