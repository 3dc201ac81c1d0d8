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
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;
import redisrl.Rule.Policy;

/**
 * The answer to a call. Its figures are those of the window that binds: of those that deny, the one
 * with the longest wait, then the fewest free units, then the shortest; if none denies, the one
 * with the fewest free units, then the shortest. Of {@link Limiter#all} they are those of the rule
 * that binds, with allowed, remaining and retryAfter of the call.
 *
 * @param state the window that binds
 * @param each every window, shortest first; only the binding one if the rule is forced. Of {@link
 *     Limiter#all}, one a rule
 * @param source who has decided
 * @param index the position of the rule that binds, of {@link Limiter#all}
 * @param results one a rule, of {@link Limiter#all}; empty otherwise
 * @param rule the rule that was asked for; null of {@link Limiter#all}
 */
public record Decision(
    State state,
    List<State> each,
    Source source,
    int index,
    List<Decision> results,
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

  private record Item(Policy policy, @Nullable State state, boolean denied) {}

  static Decision of(Rule rule, List<State> states) {
    return new Decision(binding(states), states, Source.SERVER, 0, List.of(), rule);
  }

  static Decision of(
      List<Decision> results,
      int index,
      boolean allowed,
      long remaining,
      @Nullable Duration retryAfter) {
    return new Decision(
        results.get(index).state.of(allowed, remaining, retryAfter),
        results.stream().map(Decision::state).toList(),
        Source.SERVER,
        index,
        results,
        null);
  }

  /** As the server picks it for its short reply. */
  static State binding(List<State> states) {
    Duration never = Duration.ofSeconds(Long.MAX_VALUE);
    return states.stream()
        .min(
            Comparator.comparing(State::allowed)
                .thenComparing(
                    s -> s.retryAfter() == null ? never : s.retryAfter(), Comparator.reverseOrder())
                .thenComparingLong(s -> s.limit() - s.used())
                .thenComparing(State::window))
        .orElseThrow();
  }

  /** Whether the request fitted, and was counted. */
  public boolean allowed() {
    return state.allowed();
  }

  public long limit() {
    return state.limit();
  }

  public long used() {
    return state.used();
  }

  public long remaining() {
    return state.remaining();
  }

  /** See {@link State}; null: never. */
  public @Nullable Duration retryAfter() {
    return state.retryAfter();
  }

  public @Nullable Duration nextAfter() {
    return state.nextAfter();
  }

  public @Nullable Duration resetAfter() {
    return state.resetAfter();
  }

  public Duration window() {
    return state.window();
  }

  public Instant at() {
    return state.at();
  }

  /** How long to wait for the turn, from when the answer came; zero where none was asked for. */
  public Duration waitFor() {
    return state.waitFor();
  }

  /** Who holds the lease, of one that was granted. */
  public @Nullable String holder() {
    return allowed() && rule instanceof Rule.Lease lease ? lease.holder : null;
  }

  /** The rules as they were asked for: those of a calendar in the period of the call. */
  List<Keyed> asked(List<Keyed> rules) {
    List<Keyed> asked = new ArrayList<>();
    for (int i = 0; i < rules.size(); i++) {
      Rule one = rule == null ? results.get(i).rule : rule;
      asked.add(new Keyed(rules.get(i).key(), Objects.requireNonNull(one)));
    }
    return asked;
  }

  Decision from(Source source) {
    return changed(UnaryOperator.identity(), source);
  }

  /** The same answer some time later, if nothing else has happened. */
  Decision later(Duration passed) {
    return changed(known -> known.later(passed), source);
  }

  private Decision changed(UnaryOperator<State> change, Source source) {
    return new Decision(
        change.apply(state),
        each.stream().map(change).toList(),
        source,
        index,
        results.stream().map(result -> result.changed(change, source)).toList(),
        rule);
  }

  /** The names of the policies that the request did not fit into. */
  public List<String> violated() {
    return items().stream().filter(Item::denied).map(item -> item.policy().name()).toList();
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
      State known = item.state();
      if (known != null) {
        Duration after = known.nextAfter();
        String next = after != null && isTold(after) ? ";t=" + seconds(after) : "";
        limits.add(quoted(policy.name()) + ";r=" + Math.min(known.remaining(), MAX_INTEGER) + next);
      }
    }
    headers.put("RateLimit-Policy", String.join(", ", policies));
    headers.put("RateLimit", String.join(", ", limits));
    if (!allowed() && retryAfter() != null) {
      headers.put("Retry-After", Long.toString(seconds(retryAfter())));
    }
    return headers;
  }

  /** The problem document of a denial; null if the request was allowed. */
  public @Nullable Problem problem() {
    return allowed() ? null : new Problem(QUOTA_EXCEEDED, TITLE, 429, violated());
  }

  /** The policies of the answer, with names that differ. */
  private List<Item> items() {
    List<Item> items = new ArrayList<>();
    Set<String> taken = new HashSet<>();
    for (Decision one : results.isEmpty() ? List.of(this) : results) {
      Rule asked = Objects.requireNonNull(one.rule);
      // A rule of all that is forced never denies.
      boolean denies = results.isEmpty() || !asked.options.force();
      List<Policy> policies = asked.policies();
      for (Policy policy : policies) {
        State known =
            one.each.stream()
                .filter(s -> policies.size() == 1 || s.window().toMillis() == policy.windowMs())
                .findFirst()
                .orElse(null);
        String name = policy.name();
        for (int times = 2; !taken.add(name); times++) {
          name = policy.name() + "-" + times;
        }
        items.add(new Item(policy.named(name), known, known != null && !known.allowed() && denies));
      }
    }
    return items;
  }

  /**
   * Not told is that nothing is used, that no more ever comes, and what is later than Retry-After.
   */
  private boolean isTold(Duration next) {
    if (next.isZero()) {
      return false;
    }
    return allowed() || retryAfter() == null || seconds(next) <= seconds(retryAfter());
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
    if (allowed()) {
      return "allowed, " + remaining() + " of " + limit() + " remaining";
    }
    String when =
        retryAfter() == null ? "never fits" : "again in " + retryAfter().toMillis() + " ms";
    return "denied, " + remaining() + " of " + limit() + " remaining, " + when;
  }
}
