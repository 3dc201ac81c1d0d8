package redisrl;

import static java.time.Duration.ZERO;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import redisrl.Rule.Policy;

/**
 * Decides on requests as long as the server cannot: by a counter for each key and window, which
 * begins with its first request, divided by the number of processes. A throttle is a window in
 * which its empty bucket fills.
 */
final class Local {
  /** Beyond that the oldest are forgotten, so that a flood of identities takes no memory. */
  private static final int MOST = 20_000;

  private static final class Counter {
    long used;
    Instant ends = Instant.MIN;
  }

  private final int processes;
  private final Map<String, Counter> counters =
      new LinkedHashMap<>() {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Counter> eldest) {
          return size() > MOST;
        }
      };

  Local(int processes) {
    this.processes = processes;
  }

  /** Decides on a request, and counts it if it fits everywhere. */
  synchronized Decision decide(List<Keyed> rules) {
    Instant now = Instant.now();
    List<Decision> results = new ArrayList<>();
    rules.forEach(each -> results.add(told(each, now, false)));
    int index = 0;
    while (index < rules.size()
        && (results.get(index).allowed() || rules.get(index).rule().options.force())) {
      index++;
    }
    boolean allowed = index == rules.size();
    if (allowed) {
      results.clear();
      rules.forEach(each -> results.add(told(each, now, true)));
    }
    return together(results, allowed ? 0 : index, allowed);
  }

  /** What a request is told that nobody decides on. */
  static Decision open(List<Keyed> rules) {
    Instant now = Instant.now();
    List<Decision> results = new ArrayList<>();
    for (Keyed each : rules) {
      List<State> states = new ArrayList<>();
      for (Policy policy : each.rule().policies()) {
        states.add(state(policy, policy.limit(), 0, ZERO, ZERO, now));
      }
      results.add(Decision.of(each.rule(), states));
    }
    return together(results, 0, true);
  }

  private static Decision together(List<Decision> results, int index, boolean allowed) {
    Decision bound = results.get(index);
    return results.size() == 1
        ? bound
        : Decision.of(results, index, allowed, bound.remaining(), bound.retryAfter());
  }

  /** What a rule says to a request, which counts if it fits into all. */
  private Decision told(Keyed each, Instant now, boolean counts) {
    long weight = each.rule().weight();
    List<State> states = new ArrayList<>();
    for (Policy policy : each.rule().policies()) {
      long limit = Math.max(policy.limit() / processes, Math.min(policy.limit(), 1));
      Counter counter = counter(each, policy, now);
      boolean fits = counts || counter.used + Math.max(weight, 1) <= limit;
      counter.used += counts ? weight : 0;
      Duration reset = ZERO;
      if (counter.used > 0) {
        reset = Duration.ofMillis(Duration.between(now, counter.ends).toMillis() + 1);
      }
      Duration retry = weight > limit ? null : reset.isZero() ? Duration.ofMillis(1) : reset;
      states.add(state(policy, limit, counter.used, fits ? ZERO : retry, reset, now));
    }
    return Decision.of(each.rule(), states);
  }

  private static State state(
      Policy policy, long limit, long used, @Nullable Duration retry, Duration reset, Instant now) {
    boolean allowed = retry != null && retry.isZero();
    Duration window = Duration.ofMillis(Math.max(policy.windowMs(), 0));
    long left = Math.max(limit - used, 0);
    return new State(allowed, limit, used, left, retry, reset, reset, window, now, ZERO);
  }

  /** That of a window, as it is now. */
  private Counter counter(Keyed each, Policy policy, Instant now) {
    Counter counter =
        counters.computeIfAbsent(each.key() + " " + policy.windowMs(), name -> new Counter());
    if (!now.isBefore(counter.ends)) {
      counter.used = 0;
      counter.ends =
          each.rule() instanceof Rule.Fixed fixed && fixed.calendar != null
              ? fixed.calendar.end(now)
              : now.plusMillis(policy.windowMs());
    }
    return counter;
  }
}
