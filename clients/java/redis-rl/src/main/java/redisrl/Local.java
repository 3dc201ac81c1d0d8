package redisrl;

import static java.time.Duration.ZERO;
import static java.util.Objects.requireNonNull;
import static redisrl.Decision.binding;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import redisrl.Decision.Source;
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
    List<Decision> results = told(rules, now, false, Source.LOCAL);
    return together(
        binding(judged(results)).allowed() ? told(rules, now, true, Source.LOCAL) : results);
  }

  /** What a request is told that nobody decides on. */
  static Decision open(List<Keyed> rules) {
    return together(new Local(1).told(rules, Instant.now(), false, Source.OPEN));
  }

  private static Decision together(List<Decision> results) {
    List<Decision> judged = judged(results);
    Decision bound = binding(judged);
    return results.size() == 1
        ? results.get(0)
        : bound.with(
            bound.allowed(),
            bound.remaining(),
            bound.retryAfter(),
            results,
            judged.indexOf(bound),
            null);
  }

  /** The answers by which a request is decided: a rule that is forced never denies. */
  private static List<Decision> judged(List<Decision> results) {
    return results.stream()
        .map(
            one ->
                requireNonNull(one.rule()).options.force()
                    ? one.with(true, one.remaining(), ZERO, one.each(), 0, one.rule())
                    : one)
        .toList();
  }

  private List<Decision> told(List<Keyed> rules, Instant now, boolean counts, Source by) {
    return rules.stream().map(each -> told(each, now, counts, by)).toList();
  }

  /** What a rule says to a request, which counts if it fits into all. */
  private Decision told(Keyed each, Instant now, boolean counts, Source by) {
    Rule rule = each.rule();
    // Leases are let in.
    long weight = rule instanceof Rule.Lease || by == Source.OPEN ? 0 : rule.weight();
    List<Decision> windows = new ArrayList<>();
    for (Policy policy : rule.policies()) {
      long limit = Math.max(policy.limit() / processes, Math.min(policy.limit(), 1));
      Counter counter = counter(each, policy, now);
      boolean fits = by == Source.OPEN || counter.used + Math.max(weight, 1) <= limit;
      counter.used += counts ? weight : 0;
      Duration reset = ZERO;
      if (counter.used > 0) {
        reset = Duration.ofMillis(Duration.between(now, counter.ends).toMillis() + 1);
      }
      Duration wait = weight > limit ? null : reset.isZero() ? Duration.ofMillis(1) : reset;
      windows.add(
          new Decision(
              fits,
              limit,
              counter.used,
              Math.max(limit - counter.used, 0),
              fits ? ZERO : wait,
              reset,
              reset,
              Duration.ofMillis(Math.max(policy.windowMs(), 0)),
              now,
              ZERO,
              List.of(),
              by,
              0,
              rule));
    }
    return Decision.of(windows);
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
