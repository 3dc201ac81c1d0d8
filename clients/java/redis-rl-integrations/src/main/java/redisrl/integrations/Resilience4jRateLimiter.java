package redisrl.integrations;

import io.github.resilience4j.ratelimiter.RateLimiter;
import io.github.resilience4j.ratelimiter.RateLimiterConfig;
import io.github.resilience4j.ratelimiter.event.RateLimiterOnDrainedEvent;
import io.github.resilience4j.ratelimiter.event.RateLimiterOnFailureEvent;
import io.github.resilience4j.ratelimiter.event.RateLimiterOnSuccessEvent;
import io.github.resilience4j.ratelimiter.internal.RateLimiterEventProcessor;
import java.time.Duration;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.CancellationException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redisrl.Decision;
import redisrl.Guard.WhenUnavailable;
import redisrl.Keys;
import redisrl.Limiter;
import redisrl.Rule;
import redisrl.UnavailableException;

/**
 * A rate limiter of Resilience4j whose permissions all processes share, for {@code
 * registry.replace}.
 *
 * <p>It grants {@code limitForPeriod} permissions in any stretch of time as long as {@code
 * limitRefreshPeriod}, which is whole milliseconds. Who has to wait gets a turn by one call, in the
 * order in which all processes have asked. Who would have to wait longer than {@code
 * timeoutDuration}, or than an hour, is told so at once.
 *
 * <p>Each of its methods blocks for a call to the server, {@code reservePermission} too. A thread
 * that is interrupted gets no permission, and gives back its turn.
 */
public final class Resilience4jRateLimiter implements RateLimiter {
  private static final Logger LOG = LoggerFactory.getLogger(Resilience4jRateLimiter.class);
  private static final Duration LONGEST_TURN = Duration.ofHours(1);

  /**
   * @param nanos how long to wait for it; negative where it was not granted
   * @param decision that of the server
   */
  private record Turn(long nanos, Rule.Sliding rule, @Nullable Decision decision) {}

  private final Limiter limiter;
  private final RateLimiter replaced;
  private final WhenUnavailable policy;
  private final int processes;
  private final String key;
  private final Outage outage;
  private final RateLimiterEventProcessor events = new RateLimiterEventProcessor();
  private final AtomicInteger waiting = new AtomicInteger();

  /** One that grants permissions while the server is unavailable. */
  public Resilience4jRateLimiter(Limiter limiter, RateLimiter replaced) {
    this(limiter, replaced, WhenUnavailable.OPEN, 1);
  }

  /**
   * A rate limiter in place of another, with that one's name, configuration and tags.
   *
   * @param limiter after its time-out the server counts as unavailable
   * @param policy what happens then: OPEN grants permissions, CLOSED throws {@link
   *     UnavailableException}, and LOCAL asks the one that was replaced
   * @param processes among how many processes that one's limit is divided
   */
  public Resilience4jRateLimiter(
      Limiter limiter, RateLimiter replaced, WhenUnavailable policy, int processes) {
    if (processes < 1) {
      throw new IllegalArgumentException("there must be at least 1 process, not " + processes);
    }
    this.limiter = Objects.requireNonNull(limiter, "the limiter");
    this.replaced = replaced;
    this.policy = Objects.requireNonNull(policy, "the policy");
    this.processes = processes;
    // Without the figures, so that a limit that is changed goes on.
    this.key = Keys.keyFor("rl:", rule().name("resilience4j"), replaced.getName());
    this.outage = new Outage("rate limiter " + replaced.getName(), policy);
  }

  private Rule.Sliding rule() {
    RateLimiterConfig config = getRateLimiterConfig();
    return Rule.sliding(config.getLimitForPeriod(), config.getLimitRefreshPeriod());
  }

  @Override
  public boolean acquirePermission(int permits) {
    Turn turn = turn(permits);
    return told(turn.nanos >= 0 && hasCome(turn), permits);
  }

  @Override
  public long reservePermission(int permits) {
    Turn turn = turn(permits);
    told(turn.nanos >= 0, permits);
    return turn.nanos;
  }

  private Turn turn(int permits) {
    Rule.Sliding rule = rule().cost(permits);
    if (permits == 0) {
      return new Turn(0, rule, null); // Nothing is asked for.
    }
    Duration timeout = getRateLimiterConfig().getTimeoutDuration();
    try {
      Decision decision =
          limiter.turn(key, rule, timeout.compareTo(LONGEST_TURN) < 0 ? timeout : LONGEST_TURN);
      outage.ended();
      return new Turn(decision.allowed() ? decision.waitFor().toNanos() : -1, rule, decision);
    } catch (UnavailableException error) {
      outage.began(error);
      long nanos =
          switch (policy) {
            case CLOSED -> throw error;
            case LOCAL -> replaced.reservePermission(share(permits));
            case OPEN -> 0;
          };
      return new Turn(nanos, rule, null);
    } catch (CancellationException error) {
      // The thread is interrupted, and stays so. What the call takes is given back.
      return new Turn(-1, rule, null);
    }
  }

  /** A limit that is divided is one of which each permission weighs more. */
  private int share(int permits) {
    return (int) Math.min((long) permits * processes, getRateLimiterConfig().getLimitForPeriod());
  }

  /** Sleeps until the turn comes. */
  private boolean hasCome(Turn turn) {
    waiting.incrementAndGet();
    try {
      TimeUnit.NANOSECONDS.sleep(turn.nanos);
      return true;
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      giveBack(turn);
      return false;
    } finally {
      waiting.decrementAndGet();
    }
  }

  private void giveBack(Turn turn) {
    try {
      if (turn.decision != null) {
        limiter.refund(key, turn.rule, turn.decision.at());
      }
    } catch (CancellationException error) {
      // It is sent, and a thread that is interrupted does not wait for the answer.
      LOG.debug("rate limiter {}: a turn is given back", getName());
    }
  }

  private boolean told(boolean isGranted, int permits) {
    if (events.hasConsumers()) {
      events.consumeEvent(
          isGranted
              ? new RateLimiterOnSuccessEvent(getName(), permits)
              : new RateLimiterOnFailureEvent(getName(), permits));
    }
    return isGranted;
  }

  /** Takes all that is left. It follows calls: an error is logged, and replaces no outcome. */
  @Override
  public void drainPermissions() {
    try {
      int left = available();
      if (left > 0) {
        // By force: what another process takes meanwhile does not prevent it.
        limiter.hit(key, rule().cost(left).force());
      }
      if (events.hasConsumers()) {
        events.consumeEvent(new RateLimiterOnDrainedEvent(getName(), Math.max(left, 0)));
      }
    } catch (RuntimeException error) {
      LOG.warn("rate limiter {}: its permissions are not drained: {}", getName(), error.toString());
    }
  }

  private int available() {
    Decision now = limiter.peek(key, rule().cost(0));
    return (int) Math.max(now.limit() - now.used(), Integer.MIN_VALUE);
  }

  /** The available permissions are asked for at the server. */
  @Override
  public Metrics getMetrics() {
    return new Metrics() {
      @Override
      public int getNumberOfWaitingThreads() {
        return waiting.get();
      }

      @Override
      public int getAvailablePermissions() {
        try {
          return available();
        } catch (UnavailableException error) {
          return replaced.getMetrics().getAvailablePermissions();
        }
      }
    };
  }

  /** Of this process, at once. Others go by their limits, over what all have taken. */
  @Override
  public void changeLimitForPeriod(int limitForPeriod) {
    replaced.changeLimitForPeriod(limitForPeriod);
  }

  @Override
  public void changeTimeoutDuration(Duration timeoutDuration) {
    replaced.changeTimeoutDuration(timeoutDuration);
  }

  @Override
  public String getName() {
    return replaced.getName();
  }

  @Override
  public RateLimiterConfig getRateLimiterConfig() {
    return replaced.getRateLimiterConfig();
  }

  @Override
  public Map<String, String> getTags() {
    return replaced.getTags();
  }

  @Override
  public EventPublisher getEventPublisher() {
    return events;
  }
}
