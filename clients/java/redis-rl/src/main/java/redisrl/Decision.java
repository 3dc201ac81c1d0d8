package redisrl;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.jspecify.annotations.Nullable;
import redisrl.Rule.Policy;

/**
 * The answer to a call, or of one window or rule in it. Durations are exact to the millisecond.
 *
 * <p>The figures of a call are those of the window that binds: of those that deny, the one with the
 * longest wait, then the fewest free units, then the shortest; if none denies, the one with the
 * fewest free units, then the shortest. Of {@link Limiter#all} they are those of the rule that
 * binds, with allowed, remaining and retryAfter of the call.
 *
 * @param allowed whether the request fitted, and was counted
 * @param limit the window's limit, in units that the rule counts
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
 * @param waitFor how long to wait for the turn, from when the answer came; zero where none was
 *     asked for
 * @param each every window, shortest first; only the binding one if the rule is forced. Of {@link
 *     Limiter#all}, one a rule. Of a window, none
 * @param source who has decided
 * @param index the position of the rule that binds, of {@link Limiter#all}
 * @param rule the rule that was asked for; null of {@link Limiter#all}
 */
public record Decision(
    boolean allowed,
    long limit,
    long used,
    long remaining,
    @Nullable Duration retryAfter,
    @Nullable Duration nextAfter,
    @Nullable Duration resetAfter,
    Duration window,
    Instant at,
    Duration waitFor,
    List<Decision> each,
    Source source,
    int index,
    @Nullable Rule rule) {
  /** Who has decided. What the server has not decided it has not counted either. */
  public enum Source {
    SERVER,
    /** A denial that was remembered. */
    MEMORY,
    /** This process' own memory, while the server is unavailable. */
    LOCAL,
    /** Nobody: the request was let through while the server is unavailable. */
    OPEN
  }

  /** The problem document of a denial (RFC 9457, application/problem+json). */
  public record Problem(String type, String title, int status, List<String> violatedPolicies) {
    /** As JSON. */
    public String json() {
      List<String> quoted = violatedPolicies.stream().map(Decision::quoted).toList();
      return "{\"type\":"
          + quoted(type)
          + ",\"title\":"
          + quoted(title)
          + ",\"status\":"
          + status
          + (quoted.isEmpty() ? "}" : ",\"violated-policies\":[" + String.join(",", quoted) + "]}");
    }
  }

  static final String QUOTA_EXCEEDED =
      "https://iana.org/assignments/http-problem-types#quota-exceeded";
  static final String TITLE = "Request cannot be satisfied as assigned quota has been exceeded";
  private static final long MAX_INTEGER =
      999_999_999_999_999L; // The longest of a structured field.

  private record Item(Policy policy, @Nullable Decision known, boolean denied) {}

  /** The answer of a rule that has these windows. */
  static Decision of(List<Decision> windows) {
    Decision bound = binding(windows);
    return bound.with(bound.allowed, bound.remaining, bound.retryAfter, windows, 0, bound.rule);
  }

  /** The same with what a call has made of it. */
  Decision with(
      boolean allowed,
      long remaining,
      @Nullable Duration retryAfter,
      List<Decision> each,
      int index,
      @Nullable Rule rule) {
    return with(allowed, remaining, retryAfter, Duration.ZERO, each, source, index, rule);
  }

  /** The same answer some time later, if nothing else has happened, from memory. */
  Decision later(Duration passed) {
    List<Decision> later = each.stream().map(one -> one.later(passed)).toList();
    Duration retry = less(retryAfter, passed);
    return with(allowed, remaining, retry, passed, later, Source.MEMORY, index, rule);
  }

  private Decision with(
      boolean allowed,
      long remaining,
      @Nullable Duration retryAfter,
      Duration passed,
      List<Decision> each,
      Source source,
      int index,
      @Nullable Rule rule) {
    Duration next = less(nextAfter, passed);
    Duration reset = less(resetAfter, passed);
    Instant time = at.plus(passed);
    return new Decision(
        allowed,
        limit,
        used,
        remaining,
        retryAfter,
        next,
        reset,
        window,
        time,
        waitFor,
        each,
        source,
        index,
        rule);
  }

  private static @Nullable Duration less(@Nullable Duration wait, Duration passed) {
    return wait == null ? null : wait.compareTo(passed) <= 0 ? Duration.ZERO : wait.minus(passed);
  }

  /** As the server picks it for its short reply. */
  static Decision binding(List<Decision> windows) {
    Duration never = Duration.ofSeconds(Long.MAX_VALUE);
    return windows.stream()
        .min(
            Comparator.comparing(Decision::allowed)
                .thenComparing(
                    s -> s.retryAfter() == null ? never : s.retryAfter(), Comparator.reverseOrder())
                .thenComparingLong(s -> s.limit() - s.used())
                .thenComparing(Decision::window))
        .orElseThrow();
  }

  /** Who holds the lease, of one that was granted. */
  public @Nullable String holder() {
    return allowed && rule instanceof Rule.Lease lease ? lease.holder : null;
  }

  /** The rules as they were asked for: those of a calendar in the period of the call. */
  List<Keyed> asked(List<Keyed> rules) {
    List<Keyed> asked = new ArrayList<>();
    for (int i = 0; i < rules.size(); i++) {
      Rule one = rule == null ? each.get(i).rule : rule;
      asked.add(new Keyed(rules.get(i).key(), Objects.requireNonNull(one)));
    }
    return asked;
  }

  /**
   * The HTTP fields RateLimit-Policy, RateLimit and, with a denial that can fit, Retry-After, after
   * draft-ietf-httpapi-ratelimit-headers-11. A request that nobody has decided has no fields
   * ({@link Source#OPEN}).
   */
  public Map<String, String> headers() {
    Map<String, String> headers = new LinkedHashMap<>();
    if (source == Source.OPEN) {
      return headers;
    }
    List<String> policies = new ArrayList<>();
    List<String> limits = new ArrayList<>();
    for (Item item : items()) {
      Policy policy = item.policy();
      String unit =
          policy.unit() == null || policy.unit().equals("requests")
              ? ""
              : ";qu=" + quoted(policy.unit());
      String window =
          policy.windowMs() > 0 && policy.windowMs() % 1000 == 0
              ? ";w=" + policy.windowMs() / 1000
              : "";
      policies.add(
          quoted(policy.name()) + ";q=" + Math.min(policy.limit(), MAX_INTEGER) + unit + window);
      Decision known = item.known();
      if (known != null) {
        Duration after = known.nextAfter;
        String next = after != null && isTold(after) ? ";t=" + seconds(after) : "";
        limits.add(quoted(policy.name()) + ";r=" + Math.min(known.remaining, MAX_INTEGER) + next);
      }
    }
    headers.put("RateLimit-Policy", String.join(", ", policies));
    headers.put("RateLimit", String.join(", ", limits));
    if (!allowed && retryAfter != null) {
      headers.put("Retry-After", Long.toString(seconds(retryAfter)));
    }
    return headers;
  }

  /** The problem document of a denial; null if the request was allowed. */
  public @Nullable Problem problem() {
    List<String> violated =
        items().stream().filter(Item::denied).map(item -> item.policy().name()).toList();
    return allowed ? null : new Problem(QUOTA_EXCEEDED, TITLE, 429, violated);
  }

  /** The policies of the answer, with names that differ. */
  private List<Item> items() {
    List<Item> items = new ArrayList<>();
    Set<String> taken = new HashSet<>();
    for (Decision one : rule == null ? each : List.of(this)) {
      Rule asked = Objects.requireNonNull(one.rule);
      // A rule of all that is forced never denies.
      boolean denies = rule != null || !asked.options.force();
      List<Decision> windows = one.each.isEmpty() ? List.of(one) : one.each;
      List<Policy> policies = asked.policies();
      for (Policy policy : policies) {
        Decision known =
            windows.stream()
                .filter(s -> policies.size() == 1 || s.window.toMillis() == policy.windowMs())
                .findFirst()
                .orElse(null);
        String name = policy.name();
        for (int times = 2; !taken.add(name); times++) {
          name = policy.name() + "-" + times;
        }
        items.add(new Item(policy.named(name), known, known != null && !known.allowed && denies));
      }
    }
    return items;
  }

  /**
   * Not told is that nothing is used, that no more ever comes, and what is later than Retry-After.
   */
  private boolean isTold(Duration next) {
    return !next.isZero()
        && (allowed || retryAfter == null || seconds(next) <= seconds(retryAfter));
  }

  /** Whole seconds, rounded up, so that a client that waits as long is let in. */
  static long seconds(Duration wait) {
    return wait.getNano() == 0 ? wait.toSeconds() : wait.toSeconds() + 1;
  }

  private static String quoted(String text) {
    return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
  }

  @Override
  public String toString() {
    String left = remaining + " of " + limit + " remaining";
    if (allowed) {
      return "allowed, " + left;
    }
    return "denied, "
        + left
        + (retryAfter == null ? ", never fits" : ", again in " + retryAfter.toMillis() + " ms");
  }
}
