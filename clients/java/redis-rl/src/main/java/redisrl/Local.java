package redisrl;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Iterator;
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
  private final Map<String, Counter> counters = new LinkedHashMap<>();

  Local(int processes) {
    this.processes = processes;
  }

  /** Decides on a request, and counts it if it fits everywhere. */
  synchronized Decision decide(List<Command.Keyed> rules) {
    Instant now = Instant.now();
    List<Decision> results = looked(rules, now, false);
    int index = 0;
    boolean allowed = true;
    for (int i = 0; i < rules.size() && allowed; i++) {
      if (!results.get(i).allowed() && !rules.get(i).rule().isForced()) {
        allowed = false;
        index = i;
      }
    }
    if (allowed) {
      results = looked(rules, now, true);
    }
    return together(results, index, allowed);
  }

  /** What a request is told that nobody decides on. */
  static Decision open(List<Command.Keyed> rules) {
    Instant now = Instant.now();
    List<Decision> results = new ArrayList<>();
    for (Command.Keyed each : rules) {
      List<State> states =
          each.rule().policies().stream()
              .map(policy -> state(policy, policy.limit(), true, 0, null, Duration.ZERO, now))
              .toList();
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

  private List<Decision> looked(List<Command.Keyed> rules, Instant now, boolean counts) {
    List<Decision> results = new ArrayList<>();
    for (Command.Keyed each : rules) {
      Rule rule = each.rule();
      List<State> states = new ArrayList<>();
      for (Policy policy : rule.policies()) {
        long limit = Math.max(policy.limit() / processes, Math.min(policy.limit(), 1));
        Counter counter = counter(each, policy, now);
        boolean fits = counter.used + Math.max(rule.weight(), 1) <= limit;
        if (counts) {
          counter.used += rule.weight();
        }
        Duration reset =
            counter.used == 0
                ? Duration.ZERO
                : Duration.ofMillis(Duration.between(now, counter.ends).toMillis() + 1);
        Duration retry =
            fits || counts
                ? Duration.ZERO
                : rule.weight() > limit ? null : reset.plusMillis(reset.isZero() ? 1 : 0);
        states.add(state(policy, limit, fits || counts, counter.used, retry, reset, now));
      }
      results.add(Decision.of(rule, states));
    }
    return results;
  }

  private static State state(
      Policy policy,
      long limit,
      boolean allowed,
      long used,
      @Nullable Duration retry,
      Duration reset,
      Instant now) {
    return new State(
        allowed,
        limit,
        used,
        Math.max(limit - used, 0),
        allowed ? Duration.ZERO : retry,
        reset,
        reset,
        Duration.ofMillis(Math.max(policy.windowMs(), 0)),
        now,
        Duration.ZERO);
  }

  /** That of a window, as it is now. */
  private Counter counter(Command.Keyed each, Policy policy, Instant now) {
    Counter counter =
        counters.computeIfAbsent(each.key() + " " + policy.windowMs(), name -> new Counter());
    if (!now.isBefore(counter.ends)) {
      counter.used = 0;
      counter.ends =
          each.rule() instanceof Rule.Fixed fixed && fixed.calendar != null
              ? fixed.calendar.end(now)
              : now.plusMillis(policy.windowMs());
    }
    for (Iterator<Counter> oldest = counters.values().iterator(); counters.size() > MOST; ) {
      oldest.next();
      oldest.remove();
    }
    return counter;
  }
}
