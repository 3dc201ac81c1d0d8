package redisrl.integrations;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.bucket4j.Bucket;
import io.github.bucket4j.BucketConfiguration;
import io.github.bucket4j.ConsumptionProbe;
import io.github.bucket4j.EstimationProbe;
import io.github.bucket4j.SimpleBucketListener;
import io.github.bucket4j.TokensInheritanceStrategy;
import io.github.bucket4j.distributed.AsyncBucketProxy;
import io.github.bucket4j.distributed.BucketProxy;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redisrl.Guard.WhenUnavailable;
import redisrl.UnavailableException;

class Bucket4jProxyManagerTest {
  private static final BucketConfiguration GREEDY =
      BucketConfiguration.builder()
          .addLimit(limit -> limit.capacity(10).refillGreedy(10, Duration.ofMinutes(10)))
          .build();
  private static final BucketConfiguration TWO =
      BucketConfiguration.builder()
          .addLimit(limit -> limit.capacity(9).refillGreedy(9, Duration.ofHours(1)))
          .addLimit(limit -> limit.capacity(5).refillIntervally(5, Duration.ofMinutes(10)))
          .build();

  private static Bucket4jProxyManager manager(Servers on) throws Exception {
    return new Bucket4jProxyManager(
        on.limiter(), Duration.ofSeconds(10), WhenUnavailable.CLOSED, 1);
  }

  private static String key() {
    return "user:" + UUID.randomUUID();
  }

  private static <T> T now(CompletableFuture<T> call) throws Exception {
    return call.get(30, TimeUnit.SECONDS);
  }

  @ParameterizedTest
  @EnumSource
  void probesOfAThrottle(Servers on) throws Exception {
    AsyncBucketProxy bucket =
        manager(on).asAsync().getProxy(key(), () -> CompletableFuture.completedFuture(GREEDY));
    assertThat(now(bucket.getAvailableTokens())).isEqualTo(10);
    assertThat(now(bucket.tryConsume(4))).isTrue();
    ConsumptionProbe probe = now(bucket.tryConsumeAndReturnRemaining(4));
    assertThat(probe.isConsumed()).isTrue();
    assertThat(probe.getRemainingTokens()).isEqualTo(2);
    assertThat(probe.getNanosToWaitForReset())
        .isBetween(Duration.ofMinutes(7).toNanos(), Duration.ofMinutes(8).toNanos());
    ConsumptionProbe rejected = now(bucket.tryConsumeAndReturnRemaining(3));
    assertThat(rejected.isConsumed()).isFalse();
    assertThat(rejected.getRemainingTokens()).isEqualTo(2);
    assertThat(rejected.getNanosToWaitForRefill())
        .isBetween(Duration.ofSeconds(30).toNanos(), Duration.ofMinutes(1).toNanos());
    EstimationProbe fits = now(bucket.estimateAbilityToConsume(2));
    assertThat(fits.canBeConsumed()).isTrue();
    EstimationProbe never = now(bucket.estimateAbilityToConsume(11));
    assertThat(never.canBeConsumed()).isFalse();
    assertThat(never.getNanosToWaitForRefill()).isEqualTo(Long.MAX_VALUE);
    now(bucket.addTokens(3));
    assertThat(now(bucket.getAvailableTokens())).isEqualTo(5);
    now(bucket.addTokens(100));
    assertThat(now(bucket.getAvailableTokens())).isEqualTo(10);
    assertThat(now(bucket.tryConsume(9))).isTrue();
    now(bucket.reset());
    assertThat(now(bucket.getAvailableTokens())).isEqualTo(10);
  }

  @ParameterizedTest
  @EnumSource
  void severalBandwidthsAreOneDecision(Servers on) throws Exception {
    Bucket4jProxyManager manager = manager(on);
    String key = key();
    SimpleBucketListener told = new SimpleBucketListener();
    Bucket bucket = manager.builder().withListener(told).build(key, () -> TWO);
    assertThat(bucket.tryConsume(5)).isTrue();
    // The second bandwidth denies, and nothing is taken from the first.
    ConsumptionProbe rejected = bucket.tryConsumeAndReturnRemaining(1);
    assertThat(rejected.isConsumed()).isFalse();
    assertThat(rejected.getNanosToWaitForRefill())
        .isBetween(Duration.ofMinutes(9).toNanos(), Duration.ofMinutes(10).toNanos());
    assertThat(rejected.getNanosToWaitForReset())
        .isBetween(Duration.ofMinutes(30).toNanos(), Duration.ofMinutes(34).toNanos());
    assertThat(bucket.getAvailableTokens()).isZero();
    bucket.addTokens(2);
    assertThat(bucket.getAvailableTokens()).isEqualTo(2);
    assertThat(bucket.estimateAbilityToConsume(3).canBeConsumed()).isFalse();
    assertThat(told.getConsumed()).isEqualTo(5);
    assertThat(told.getRejected()).isEqualTo(1);
    // The same bucket in another process, and another one of the same key.
    assertThat(manager(on).getProxy(key, () -> TWO).getAvailableTokens()).isEqualTo(2);
    assertThat(manager(on).getProxy(key, () -> GREEDY).getAvailableTokens()).isEqualTo(10);
    bucket.reset();
    assertThat(bucket.getAvailableTokens()).isEqualTo(5);
  }

  @ParameterizedTest
  @EnumSource
  void whoWaitsHasATurn(Servers on) throws Exception {
    BucketConfiguration fast =
        BucketConfiguration.builder()
            .addLimit(limit -> limit.capacity(1).refillGreedy(1, Duration.ofMillis(200)))
            .build();
    BucketProxy bucket = manager(on).getProxy(key(), () -> fast);
    long began = System.nanoTime();
    for (int i = 0; i < 3; i++) {
      assertThat(bucket.asBlocking().tryConsume(1, Duration.ofSeconds(30))).isTrue();
    }
    assertThat(Duration.ofNanos(System.nanoTime() - began)).isGreaterThan(Duration.ofMillis(390));
    BucketProxy slow = manager(on).getProxy(key(), () -> GREEDY);
    assertThat(slow.asBlocking().tryConsume(10, Duration.ofSeconds(1))).isTrue();
    assertThat(slow.asBlocking().tryConsume(1, Duration.ofSeconds(1))).isFalse();
    ScheduledExecutorService scheduler = Executors.newSingleThreadScheduledExecutor();
    try {
      now(bucket.asScheduler().consume(1, scheduler));
    } finally {
      scheduler.shutdown();
    }
    assertThatThrownBy(
            () ->
                manager(on)
                    .getProxy(key(), () -> TWO)
                    .asBlocking()
                    .tryConsume(1, Duration.ofDays(1)))
        .isInstanceOf(UnsupportedOperationException.class);
  }

  @Test
  void whileTheServerIsAway() throws Exception {
    AsyncBucketProxy bucket =
        new Bucket4jProxyManager(Servers.away())
            .asAsync()
            .getProxy(key(), () -> CompletableFuture.completedFuture(GREEDY));
    assertThatThrownBy(() -> now(bucket.tryConsume(1)))
        .hasCauseInstanceOf(UnavailableException.class);
    Bucket local =
        new Bucket4jProxyManager(Servers.away(), Duration.ofMillis(250), WhenUnavailable.LOCAL, 5)
            .getProxy(key(), () -> GREEDY);
    assertThat(local.tryConsume(2)).isTrue();
    assertThat(local.tryConsume(1)).isFalse();
    assertThatThrownBy(local::getAvailableTokens).isInstanceOf(UnavailableException.class);
  }

  @Test
  void aCallerThatLeavesLeavesTheCall() throws Exception {
    Bucket4jProxyManager manager = manager(Servers.MODULE);
    String key = key();
    Bucket bucket = manager.getProxy(key, () -> GREEDY);
    Thread.currentThread().interrupt();
    assertThatThrownBy(() -> bucket.tryConsume(1)).isInstanceOf(CancellationException.class);
    assertThat(Thread.interrupted()).isTrue();
    manager
        .asAsync()
        .getProxy(key, () -> CompletableFuture.completedFuture(GREEDY))
        .tryConsume(1)
        .cancel(true);
    Servers.eventually(() -> bucket.getAvailableTokens() == 8);
  }

  @Test
  void whatIsNotServedSaysSo() throws Exception {
    Bucket4jProxyManager manager = manager(Servers.MODULE);
    BucketProxy bucket = manager.getProxy(key(), () -> GREEDY);
    for (Runnable call :
        List.<Runnable>of(
            () -> bucket.consumeIgnoringRateLimits(1),
            () -> bucket.tryConsumeAsMuchAsPossible(),
            () -> bucket.forceAddTokens(1),
            () -> bucket.replaceConfiguration(TWO, TokensInheritanceStrategy.AS_IS),
            () -> bucket.asVerbose().tryConsume(1),
            () -> manager.removeProxy("key"),
            () -> manager.asAsync().removeProxy("key"),
            () -> manager.getProxyConfiguration("key"),
            () ->
                manager
                    .builder()
                    .withImplicitConfigurationReplacement(2, TokensInheritanceStrategy.AS_IS)
                    .build("key", () -> TWO)
                    .tryConsume(1))) {
      assertThatThrownBy(call::run)
          .isInstanceOf(UnsupportedOperationException.class)
          .hasMessageStartingWith("redis-rl has no ");
    }
    for (BucketConfiguration other :
        List.of(
            BucketConfiguration.builder()
                .addLimit(l -> l.capacity(5).refillIntervally(1, Duration.ofMinutes(1)))
                .build(),
            BucketConfiguration.builder()
                .addLimit(
                    l -> l.capacity(5).refillGreedy(5, Duration.ofMinutes(1)).initialTokens(0))
                .build(),
            BucketConfiguration.builder()
                .addLimit(l -> l.capacity(5).refillGreedy(5, Duration.ofNanos(1_500_000)))
                .build())) {
      assertThatThrownBy(() -> manager.getProxy(key(), () -> other).tryConsume(1))
          .isInstanceOf(UnsupportedOperationException.class)
          .hasMessageStartingWith("redis-rl has no ");
    }
  }
}
