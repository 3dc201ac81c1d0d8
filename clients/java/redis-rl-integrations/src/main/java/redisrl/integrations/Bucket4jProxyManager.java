package redisrl.integrations;

import static io.github.bucket4j.LimitChecker.INFINITY_DURATION;

import io.github.bucket4j.Bandwidth;
import io.github.bucket4j.ConsumptionProbe;
import io.github.bucket4j.EstimationProbe;
import io.github.bucket4j.Nothing;
import io.github.bucket4j.distributed.proxy.AbstractProxyManager;
import io.github.bucket4j.distributed.proxy.ClientSideConfig;
import io.github.bucket4j.distributed.remote.CommandResult;
import io.github.bucket4j.distributed.remote.RemoteCommand;
import io.github.bucket4j.distributed.remote.Request;
import io.github.bucket4j.distributed.remote.commands.AddTokensCommand;
import io.github.bucket4j.distributed.remote.commands.CheckConfigurationVersionAndExecuteCommand;
import io.github.bucket4j.distributed.remote.commands.CreateInitialStateAndExecuteCommand;
import io.github.bucket4j.distributed.remote.commands.EstimateAbilityToConsumeCommand;
import io.github.bucket4j.distributed.remote.commands.GetAvailableTokensCommand;
import io.github.bucket4j.distributed.remote.commands.GetConfigurationCommand;
import io.github.bucket4j.distributed.remote.commands.ReserveAndCalculateTimeToSleepCommand;
import io.github.bucket4j.distributed.remote.commands.ResetCommand;
import io.github.bucket4j.distributed.remote.commands.TryConsumeAndReturnRemainingTokensCommand;
import io.github.bucket4j.distributed.remote.commands.TryConsumeCommand;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Function;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import redisrl.Decision;
import redisrl.Guard;
import redisrl.Guard.WhenUnavailable;
import redisrl.Limiter;
import redisrl.Refund;
import redisrl.Rule;

/**
 * Buckets of Bucket4j that the server decides on, by one call each, and without tokens that are
 * compared and swapped.
 *
 * <p>A bandwidth that is refilled greedily is a throttle, and one that is refilled as a whole at
 * intervals a fixed window that begins with its first request. Several are one decision. Periods
 * are whole milliseconds, and buckets begin full. The server keeps no configuration: the supplier
 * is asked in each call, and other figures are another bucket.
 *
 * <p>It serves {@code tryConsume}, the probes, {@code getAvailableTokens}, {@code addTokens},
 * {@code reset} and, for a single greedy bandwidth, {@code asBlocking} and {@code asScheduler}, by
 * turns. All else throws {@link UnsupportedOperationException}.
 */
public final class Bucket4jProxyManager extends AbstractProxyManager<String> {
  private static final Duration LONGEST_TURN = Duration.ofHours(1);
  private static final int NEVER_SERIALIZED = 0;

  private final Limiter limiter;
  private final Guard guard;

  /** One that fails where the server does not answer within 250 ms. */
  public Bucket4jProxyManager(Limiter limiter) {
    this(limiter, Duration.ofMillis(250), WhenUnavailable.CLOSED, 1);
  }

  /**
   * A proxy manager.
   *
   * @param timeout after what time the server counts as unavailable for {@code tryConsume} and its
   *     probe; for all else that is the limiter's
   * @param policy what those two do then; all else fails with {@link redisrl.UnavailableException}
   * @param processes among how many processes limits are divided with LOCAL
   */
  public Bucket4jProxyManager(
      Limiter limiter, Duration timeout, WhenUnavailable policy, int processes) {
    super(ClientSideConfig.getDefault());
    this.limiter = limiter;
    this.guard = new Guard(limiter, timeout, policy, processes);
  }

  @Override
  public boolean isAsyncModeSupported() {
    return true;
  }

  @Override
  public void removeProxy(String key) {
    removeAsync(key);
  }

  @Override
  protected CompletableFuture<Void> removeAsync(String key) {
    throw unsupported("removeProxy: a key alone does not say what is counted at it. Use reset");
  }

  private static UnsupportedOperationException unsupported(String what) {
    return new UnsupportedOperationException("redis-rl has no " + what);
  }

  @Override
  protected <T> CommandResult<T> execute(String key, Request<T> request) {
    CompletableFuture<CommandResult<T>> call = executeAsync(key, request);
    try {
      return call.get();
    } catch (InterruptedException error) {
      call.cancel(false);
      Thread.currentThread().interrupt();
      throw new CancellationException("interrupted");
    } catch (ExecutionException error) {
      throw error.getCause() instanceof RuntimeException known
          ? known
          : new IllegalStateException(error.getCause());
    }
  }

  /** Bucket4j sends a configuration with a command where there is no bucket. */
  @Override
  @SuppressWarnings("unchecked")
  protected <T> CompletableFuture<CommandResult<T>> executeAsync(String key, Request<T> request) {
    RemoteCommand<T> command = request.getCommand();
    if (command instanceof CreateInitialStateAndExecuteCommand<T> created) {
      List<Rule> rules =
          Stream.of(created.getConfiguration().getBandwidths())
              .map(Bucket4jProxyManager::rule)
              .toList();
      return answer(key, rules, created.getTargetCommand())
          .thenApply(data -> CommandResult.success((T) data, NEVER_SERIALIZED));
    }
    if (command instanceof GetConfigurationCommand
        || command instanceof CheckConfigurationVersionAndExecuteCommand) {
      throw unsupported("configuration of a bucket on the server");
    }
    return CompletableFuture.completedFuture(CommandResult.bucketNotFound());
  }

  private static Rule rule(Bandwidth bandwidth) {
    long capacity = bandwidth.getCapacity();
    long tokens = bandwidth.getRefillTokens();
    Duration period = Duration.ofNanos(bandwidth.getRefillPeriodNanos());
    if (bandwidth.getInitialTokens() != capacity || bandwidth.isIntervallyAligned()) {
      throw unsupported("bucket that begins other than full: " + bandwidth);
    }
    if (period.toNanosPart() % 1_000_000 != 0) {
      throw unsupported("period but of whole milliseconds: " + bandwidth);
    }
    if (!bandwidth.isRefillIntervally()) {
      return Rule.throttle(tokens + "/" + period.toMillis() + "ms").burst(capacity - 1);
    }
    if (tokens != capacity) {
      throw unsupported("interval that refills a part of a bucket: " + bandwidth);
    }
    return Rule.fixed(capacity, period).anchored();
  }

  private CompletableFuture<?> answer(String key, List<Rule> rules, RemoteCommand<?> command) {
    if (command instanceof TryConsumeCommand asked) {
      return consume(key, rules, asked.getTokensToConsume()).thenApply(Decision::allowed);
    }
    if (command instanceof TryConsumeAndReturnRemainingTokensCommand asked) {
      return consume(key, rules, asked.getTokensToConsume()).thenApply(Bucket4jProxyManager::probe);
    }
    if (command instanceof EstimateAbilityToConsumeCommand asked) {
      return peek(key, rules, asked.getTokensToConsume())
          .thenApply(
              decisions ->
                  decisions.stream().allMatch(Decision::allowed)
                      ? EstimationProbe.canBeConsumed(least(decisions))
                      : EstimationProbe.canNotBeConsumed(
                          least(decisions), longest(decisions.stream().map(Decision::retryAfter))));
    }
    if (command instanceof GetAvailableTokensCommand) {
      return peek(key, rules, 0).thenApply(Bucket4jProxyManager::least);
    }
    if (command instanceof AddTokensCommand asked) {
      return each(rules, rule -> refund(key, rule, asked.getTokensToAdd()))
          .thenApply(refunds -> Nothing.INSTANCE);
    }
    if (command instanceof ResetCommand) {
      return each(rules, rule -> limiter.resetAsync(at(key, rule), rule))
          .thenApply(counts -> Nothing.INSTANCE);
    }
    if (command instanceof ReserveAndCalculateTimeToSleepCommand asked
        && rules.size() == 1
        && rules.get(0) instanceof Rule.Throttle throttle) {
      Duration longest = Duration.ofNanos(asked.getWaitIfBusyNanosLimit());
      return limiter
          .turnAsync(
              at(key, throttle),
              throttle.cost(asked.getTokensToConsume()),
              longest.compareTo(LONGEST_TURN) < 0 ? longest : LONGEST_TURN)
          .thenApply(turn -> turn.allowed() ? turn.waitFor().toNanos() : INFINITY_DURATION);
    }
    throw unsupported(command.getClass().getSimpleName() + " for " + rules);
  }

  private CompletableFuture<Decision> consume(String key, List<Rule> rules, long tokens) {
    return guard.decideAsync(
        rules.stream().map(rule -> new Guard.Limit(key, cost(rule, tokens), null)).toList());
  }

  private CompletableFuture<List<Decision>> peek(String key, List<Rule> rules, long tokens) {
    return each(rules, rule -> limiter.peekAsync(at(key, rule), cost(rule, tokens)));
  }

  private CompletableFuture<Refund> refund(String key, Rule rule, long tokens) {
    return limiter.refundAsync(at(key, rule), cost(rule, tokens));
  }

  /** One call for each bandwidth. */
  private static <T> CompletableFuture<List<T>> each(
      List<Rule> rules, Function<Rule, CompletableFuture<T>> call) {
    List<CompletableFuture<T>> calls = rules.stream().map(call).toList();
    return CompletableFuture.allOf(calls.toArray(CompletableFuture[]::new))
        .thenApply(all -> calls.stream().map(CompletableFuture::join).toList());
  }

  private String at(String key, Rule rule) {
    return guard.key(new Guard.Limit(key, rule, null));
  }

  private static Rule.Counted<?> cost(Rule rule, long tokens) {
    return ((Rule.Counted<?>) rule).cost(tokens);
  }

  private static ConsumptionProbe probe(Decision decision) {
    long full = longest(decision.each().stream().map(Decision::resetAfter));
    return decision.allowed()
        ? ConsumptionProbe.consumed(decision.remaining(), full)
        : ConsumptionProbe.rejected(
            decision.remaining(), longest(Stream.of(decision).map(Decision::retryAfter)), full);
  }

  private static long least(List<Decision> decisions) {
    return decisions.stream().mapToLong(Decision::remaining).min().orElseThrow();
  }

  private static long longest(Stream<@Nullable Duration> waits) {
    return waits
        .mapToLong(wait -> wait == null ? INFINITY_DURATION : wait.toNanos())
        .max()
        .orElseThrow();
  }
}
