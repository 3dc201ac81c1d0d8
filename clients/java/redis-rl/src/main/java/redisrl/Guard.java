package redisrl;

import static redisrl.Rates.check;
import static redisrl.Rates.given;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Decides on the requests of an application by a limiter, also while the server is unavailable. It
 * is what the filters of redis-rl-spring-boot-starter are made of, and what one for another
 * framework takes.
 *
 * <p>It remembers denials: for its wait, at most a second, the same or a heavier request at the
 * same key is denied without asking the server. A refund or a reset by the limiter forgets that.
 */
public final class Guard {
  /** What happens to requests while the server is unavailable. */
  public enum WhenUnavailable {
    /** They are let through. */
    OPEN("let through"),
    /** {@link Guard#decide} throws {@link UnavailableException}, for a response with status 503. */
    CLOSED("refused"),
    /**
     * They are limited in this process' memory, by windows that begin with their first request.
     * That is rougher than the server: up to twice the limit can pass around a boundary, and a
     * throttle has no steady rate.
     */
    LOCAL("limited in memory");

    private final String told;

    WhenUnavailable(String told) {
      this.told = told;
    }
  }

  /**
   * A rule for an identity: the client's address, a user, an organisation.
   *
   * @param route the template of the route that the limit was declared on, such as /item/{id}, with
   *     the prefix under which it is mounted. A rule without a name is then a limit of that route
   *     alone
   */
  public record Limit(String identity, Rule rule, @Nullable String route) {
    public Limit {
      check(
          !given(identity, "an identity").isEmpty(),
          "a request without an identity must not share a limit with others of its kind");
      boolean isLease = given(rule, "a rule") instanceof Rule.Lease;
      check(!isLease, "a guard holds no leases: use Limiter.hold");
    }
  }

  static final String PREFIX = "rl:";
  static final Duration TIMEOUT = Duration.ofMillis(250);

  private static final Logger LOG = LoggerFactory.getLogger(Limiter.class);
  private static final long TOLD_AGAIN = Duration.ofMinutes(1).toNanos();

  private final Limiter limiter;
  private final WhenUnavailable policy;
  private final Local local;
  private boolean isAway;
  private long toldAt = System.nanoTime() - TOLD_AGAIN;

  /** One that counts the server as unavailable after 250 ms, and then lets requests through. */
  public Guard(Limiter limiter) {
    this(limiter, TIMEOUT, WhenUnavailable.OPEN, 1);
  }

  /**
   * A guard that decides by a limiter, with that one's prefix, name and listener.
   *
   * @param timeout after what time the server counts as unavailable
   * @param processes among how many processes limits are divided with LOCAL
   */
  public Guard(Limiter limiter, Duration timeout, WhenUnavailable policy, int processes) {
    check(processes >= 1, "there must be at least 1 process, not %s", processes);
    this.limiter = given(limiter, "the limiter").within(timeout);
    this.policy = given(policy, "what happens when the server is unavailable");
    this.local = new Local(processes);
  }

  /** The key at which a limit is counted, for {@link Limiter#reset} and so on. */
  public String key(Limit limit) {
    return Keys.keyFor(PREFIX, limit.rule(), limit.identity(), limit.route());
  }

  /**
   * Decides on a request by one limit or several: all have room, or nothing is counted anywhere. It
   * fails with {@link UnavailableException} only by the policy CLOSED. All other errors do not pass
   * by themselves, and no policy turns them into "allowed".
   */
  public Decision decide(List<Limit> limits) {
    return Limiter.joined(decideAsync(limits));
  }

  /** See {@link #decide}. */
  public CompletableFuture<Decision> decideAsync(List<Limit> limits) {
    check(!given(limits, "the limits").isEmpty(), "a request without a limit needs no decision");
    // Limits with one name are one limit, by which a request weighs what the heaviest of them says.
    Map<List<String>, Keyed> distinct = new LinkedHashMap<>();
    for (Limit limit : limits) {
      Rule rule = limit.rule();
      distinct.merge(
          List.of(key(limit), rule.described()),
          new Keyed(key(limit), rule),
          (one, other) -> one.rule().weight() < other.rule().weight() ? other : one);
    }
    List<Keyed> rules = List.copyOf(distinct.values());
    // What weighs nothing is checked by RL.ALL alone.
    String call = rules.size() == 1 && rules.get(0).rule().weight() > 0 ? "hit" : "all";
    long began = System.nanoTime();
    Decision known = limiter.denials.find(rules);
    if (known != null) {
      return CompletableFuture.completedFuture(told(call, rules, began, known));
    }
    return Limiter.left(
        limiter
            .decided(call, rules)
            .handle(
                (decision, error) ->
                    error == null
                        ? answered(rules, began, decision)
                        : failed(call, rules, began, Core.cause(error))));
  }

  private Decision told(String call, List<Keyed> rules, long began, Decision decision) {
    limiter.tell(call, Keyed.keys(rules), began, decision, null);
    return decision;
  }

  private Decision answered(List<Keyed> rules, long began, Decision decision) {
    if (!decision.allowed()) {
      limiter.denials.remember(rules, decision, began);
    }
    synchronized (this) {
      // In a cluster all of its nodes have to answer.
      if (isAway && limiter.isAvailable()) {
        isAway = false;
        LOG.warn("limiter {}: the server is available again", limiter.name);
      }
    }
    return decision;
  }

  private Decision failed(String call, List<Keyed> rules, long began, Throwable error) {
    if (!(error instanceof UnavailableException unavailable)) {
      throw error instanceof RuntimeException known ? known : new IllegalStateException(error);
    }
    // Of a crowd that is too large, a denial may be known by now.
    Decision known = limiter.denials.find(rules);
    if (known == null) {
      tell(unavailable);
      known =
          switch (policy) {
            case CLOSED -> throw unavailable;
            case LOCAL -> local.decide(rules);
            case OPEN -> Local.open(rules);
          };
    }
    return told(call, rules, began, known);
  }

  private synchronized void tell(UnavailableException error) {
    // Or some of them alone: of a crowd that is too large, or of a slot on the move.
    boolean isAll = !limiter.isAvailable();
    long now = System.nanoTime();
    if (isAll ? isAway : now - toldAt < TOLD_AGAIN) {
      return;
    }
    isAway |= isAll;
    toldAt = isAll ? toldAt : now;
    String which =
        isAll ? "the server is unavailable, requests" : "requests that are not answered in time";
    LOG.warn(
        "limiter {}: {} are {}: {}",
        limiter.name,
        which,
        policy.told,
        String.valueOf(error.getMessage()));
  }
}
