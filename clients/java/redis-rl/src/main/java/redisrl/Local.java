package redisrl;

import static java.time.Duration.ZERO;
import static redisrl.Decision.binding;

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
  /** Beyond that those asked for least recently are forgotten: a flood takes no memory. */
  static final int MOST = 50_000;

  private static final class Counter {
    long used;
    Instant ends = Instant.MIN;
  }

  private final int processes;
  private final Map<String, Counter> counters =
      new LinkedHashMap<>(16, 0.75f, true) {
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
    List<Decision> results = rules.stream().map(each -> told(each, now, false)).toList();
    if (binding(judged(rules, results)).allowed()) {
      results = rules.stream().map(each -> told(each, now, true)).toList();
    }
    return together(rules, results);
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
    return together(rules, results);
  }

  private static Decision together(List<Keyed> rules, List<Decision> results) {
    List<State> judged = judged(rules, results);
    State bound = binding(judged);
    return results.size() == 1
        ? results.get(0)
        : Decision.of(
            results, judged.indexOf(bound), bound.allowed(), bound.remaining(), bound.retryAfter());
  }

  /** The states by which a request is decided: a rule that is forced never denies. */
  private static List<State> judged(List<Keyed> rules, List<Decision> results) {
    List<State> judged = new ArrayList<>();
    for (int i = 0; i < rules.size(); i++) {
      State state = results.get(i).state();
      boolean force = rules.get(i).rule().options.force();
      judged.add(force ? state.of(true, state.remaining(), ZERO) : state);
    }
    return judged;
  }

  /** What a rule says to a request, which counts if it fits into all. */
  private Decision told(Keyed each, Instant now, boolean counts) {
    // Leases are let in.
    long weight = each.rule() instanceof Rule.Lease ? 0 : each.rule().weight();
    List<State> states = new ArrayList<>();
    for (Policy policy : each.rule().policies()) {
      long limit = Math.max(policy.limit() / processes, Math.min(policy.limit(), 1));
      Counter counter = counter(each, policy, now);
      boolean fits = counter.used + Math.max(weight, 1) <= limit;
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
