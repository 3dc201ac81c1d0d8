package redisrl;

import java.time.Duration;
import java.time.Instant;
import org.jspecify.annotations.Nullable;

/**
 * One window after a call. Units are what the rule counts; durations are exact to the millisecond.
 *
 * @param allowed whether the request fitted into this window
 * @param limit the window's limit
 * @param used how much is in use
 * @param remaining how much is free: limit - used, at least 0
 * @param retryAfter the time until the same call fits: zero if it was allowed, null if it never
 *     will
 * @param nextAfter the time until more is free than now: zero if nothing is used, null if that
 *     never comes
 * @param resetAfter the time until everything is free: zero if nothing is used, null if that never
 *     comes
 * @param window the window's length, a lease's time, or the time in which an empty bucket fills;
 *     zero for a window of the calendar
 * @param at the server's time of the decision; of a turn, the time of the turn
 * @param waitFor how long to wait for the turn; zero where none was asked for
 */
public record State(
    boolean allowed,
    long limit,
    long used,
    long remaining,
    @Nullable Duration retryAfter,
    @Nullable Duration nextAfter,
    @Nullable Duration resetAfter,
    Duration window,
    Instant at,
    Duration waitFor) {

  /** The same with what a call over several keys has made of it. */
  State of(boolean allowed, long remaining, @Nullable Duration retryAfter) {
    return new State(
        allowed, limit, used, remaining, retryAfter, nextAfter, resetAfter, window, at, waitFor);
  }

  /** The same some time later, if nothing else has happened. */
  State later(Duration passed) {
    return new State(
        allowed,
        limit,
        used,
        remaining,
        less(retryAfter, passed),
        less(nextAfter, passed),
        less(resetAfter, passed),
        window,
        at.plus(passed),
        waitFor);
  }

  private static @Nullable Duration less(@Nullable Duration wait, Duration passed) {
    return wait == null ? null : wait.compareTo(passed) <= 0 ? Duration.ZERO : wait.minus(passed);
  }
}
