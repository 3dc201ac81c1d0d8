package redisrl;

import java.time.Duration;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import redisrl.Rule.Policy;

/** The denials of a guard's last second, by key. A key belongs to one rule. */
final class Denials {
  /** For how long a denial is believed at most. */
  static final Duration LONGEST = Duration.ofSeconds(1);

  static final int MOST = 10_000;
  static final int MOST_BYTES = 4 << 20;

  // What is counted of a denial, of a rule in it, and of a window of that.
  private static final int BYTES = 256;
  private static final int BYTES_OF_RULE = 256;
  private static final int BYTES_OF_WINDOW = 128;

  private record Denial(List<Keyed> rules, Decision decision, long since, long until, int bytes) {
    /** Whether a request is as heavy as the one that was denied. */
    boolean covers(List<Keyed> asked) {
      if (asked.size() != rules.size()) {
        return false;
      }
      for (int i = 0; i < asked.size(); i++) {
        Rule rule = asked.get(i).rule();
        Rule denied = rules.get(i).rule();
        if (rule.options.force()
            || !asked.get(i).key().equals(rules.get(i).key())
            || !rule.described().equals(denied.described())) {
          return false;
        }
        // One that never fits is not told to wait.
        boolean isHeavier = rule.weight() > denied.weight() && rule.weight() <= leastLimit(rule);
        if (i == decision.index() && rule.weight() != denied.weight() && !isHeavier) {
          return false;
        }
      }
      return true;
    }

    private static long leastLimit(Rule rule) {
      return rule.policies().stream().mapToLong(Policy::limit).min().orElse(0);
    }
  }

  private final Map<String, Denial> known = new LinkedHashMap<>();
  private int bytes;

  /** The denial of the same or a heavier request, as it would be answered now. */
  synchronized @Nullable Decision find(List<Keyed> rules) {
    long now = System.nanoTime();
    for (Keyed each : rules) {
      Denial found = known.get(each.key());
      if (found == null) {
        continue;
      }
      if (now - found.until >= 0) {
        forget(each.key());
      } else if (found.covers(rules)) {
        return found.decision.later(Duration.ofNanos(now - found.since));
      }
    }
    return null;
  }

  /**
   * Keeps a denial. It ends by when it was asked for, which is not later than it was decided. The
   * waits that are told of it count from now, which is not earlier, so that none of them is too
   * short.
   */
  synchronized void remember(List<Keyed> rules, Decision decision, long askedAt) {
    if (rules.stream().anyMatch(each -> each.rule().options.force())) {
      return;
    }
    Duration wait = decision.retryAfter();
    Duration believed = wait == null || wait.compareTo(LONGEST) > 0 ? LONGEST : wait;
    int size = BYTES;
    for (Keyed each : rules) {
      size += BYTES_OF_RULE + each.key().length() + BYTES_OF_WINDOW * each.rule().policies().size();
    }
    String key = rules.get(decision.index()).key();
    forget(key);
    known.put(
        key, new Denial(rules, decision, System.nanoTime(), askedAt + believed.toNanos(), size));
    bytes += size;
    Iterator<Denial> oldest = known.values().iterator();
    while (known.size() > MOST || bytes > MOST_BYTES) {
      bytes -= oldest.next().bytes;
      oldest.remove();
    }
  }

  /** For a key of which something was given back. */
  synchronized void forget(String key) {
    Denial denial = known.remove(key);
    if (denial != null) {
      bytes -= denial.bytes;
    }
  }
}
