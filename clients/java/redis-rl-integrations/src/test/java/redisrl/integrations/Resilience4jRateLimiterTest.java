package redisrl.integrations;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.resilience4j.core.exception.AcquirePermissionCancelledException;
import io.github.resilience4j.ratelimiter.RateLimiter;
import io.github.resilience4j.ratelimiter.RateLimiterConfig;
import io.github.resilience4j.ratelimiter.RateLimiterRegistry;
import io.github.resilience4j.ratelimiter.RequestNotPermitted;
import io.github.resilience4j.ratelimiter.event.RateLimiterEvent;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redisrl.Guard.WhenUnavailable;
import redisrl.LettuceTransport;
import redisrl.Limiter;
import redisrl.TestServer;
import redisrl.Transport;
import redisrl.UnavailableException;

class Resilience4jRateLimiterTest {
  private static RateLimiter plain(int limit, Duration period, Duration timeout) {
    RateLimiterConfig config =
        RateLimiterConfig.custom()
            .limitForPeriod(limit)
            .limitRefreshPeriod(period)
            .timeoutDuration(timeout)
            .drainPermissionsOnResult(result -> result.isRight() && "drain".equals(result.get()))
            .build();
    return RateLimiter.of("orders " + UUID.randomUUID(), config, Map.of("team", "shop"));
  }

  @ParameterizedTest
  @EnumSource
  void twoProcessesShareWhatOneMayTake(Servers on) throws Exception {
    RateLimiter plain = plain(3, Duration.ofMinutes(5), Duration.ZERO);
    RateLimiterRegistry registry = RateLimiterRegistry.ofDefaults();
    registry.rateLimiter(plain.getName());
    registry.replace(plain.getName(), new Resilience4jRateLimiter(on.limiter(), plain));
    RateLimiter one = registry.rateLimiter(plain.getName());
    RateLimiter other = new Resilience4jRateLimiter(on.limiter(), plain);
    assertThat(one).isInstanceOf(Resilience4jRateLimiter.class);
    assertThat(one.getTags()).containsEntry("team", "shop");
    assertThat(one.getMetrics().getAvailablePermissions()).isEqualTo(3);
    List<RateLimiterEvent.Type> events = new ArrayList<>();
    one.getEventPublisher().onEvent(event -> events.add(event.getEventType()));

    assertThat(one.executeSupplier(() -> "done")).isEqualTo("done");
    assertThat(other.acquirePermission(2)).isTrue();
    assertThat(one.getMetrics().getAvailablePermissions()).isZero();
    assertThatThrownBy(() -> one.executeSupplier(() -> "not done"))
        .isInstanceOf(RequestNotPermitted.class);
    assertThat(one.reservePermission()).isNegative();
    assertThat(events)
        .containsExactly(
            RateLimiterEvent.Type.SUCCESSFUL_ACQUIRE,
            RateLimiterEvent.Type.FAILED_ACQUIRE,
            RateLimiterEvent.Type.FAILED_ACQUIRE);

    // A limit that is raised counts on.
    one.changeLimitForPeriod(5);
    assertThat(one.getRateLimiterConfig().getLimitForPeriod()).isEqualTo(5);
    assertThat(one.getMetrics().getAvailablePermissions()).isEqualTo(2);
    // As one that is charged by a result.
    assertThat(one.executeSupplier(() -> "drain")).isEqualTo("drain");
    assertThat(one.getMetrics().getAvailablePermissions()).isZero();
    assertThat(events.get(events.size() - 1)).isEqualTo(RateLimiterEvent.Type.DRAINED);
  }

  @ParameterizedTest
  @EnumSource
  void whoWaitsHasATurn(Servers on) throws Exception {
    RateLimiter fast =
        new Resilience4jRateLimiter(
            on.limiter(), plain(1, Duration.ofMillis(200), Duration.ofHours(2)));
    long began = System.nanoTime();
    for (int i = 0; i < 3; i++) {
      assertThat(fast.acquirePermission()).isTrue();
    }
    assertThat(Duration.ofNanos(System.nanoTime() - began)).isGreaterThan(Duration.ofMillis(400));

    RateLimiter slow =
        new Resilience4jRateLimiter(
            on.limiter(), plain(1, Duration.ofMinutes(5), Duration.ofHours(2)));
    assertThat(slow.reservePermission()).isZero();
    for (int turn = 1; turn <= 2; turn++) {
      assertThat(Duration.ofNanos(slow.reservePermission()))
          .isBetween(Duration.ofMinutes(5L * turn - 1), Duration.ofMinutes(5L * turn));
    }
    slow.changeTimeoutDuration(Duration.ofMinutes(6));
    assertThat(slow.reservePermission()).isNegative();
    assertThat(slow.acquirePermission()).isFalse();
    // It never fits.
    assertThat(fast.acquirePermission(2)).isFalse();
  }

  @Test
  void aThreadThatIsInterruptedGivesItsTurnBack() throws Exception {
    RateLimiter plain = plain(1, Duration.ofMinutes(5), Duration.ofMinutes(10));
    RateLimiter limiter = new Resilience4jRateLimiter(Servers.MODULE.limiter(), plain);
    assertThat(limiter.acquirePermission()).isTrue();
    AtomicReference<Throwable> thrown = new AtomicReference<>();
    Thread waiter =
        new Thread(
            () -> {
              try {
                limiter.executeRunnable(() -> {});
              } catch (RuntimeException error) {
                thrown.set(error);
              }
            });
    waiter.start();
    Servers.eventually(() -> limiter.getMetrics().getNumberOfWaitingThreads() == 1);
    assertThat(limiter.getMetrics().getAvailablePermissions()).isNegative();
    waiter.interrupt();
    waiter.join(30_000);
    assertThat(thrown.get()).isInstanceOf(AcquirePermissionCancelledException.class);
    Servers.eventually(() -> limiter.getMetrics().getAvailablePermissions() == 0);
    assertThat(limiter.getMetrics().getNumberOfWaitingThreads()).isZero();

    Thread.currentThread().interrupt();
    assertThat(limiter.acquirePermission()).isFalse();
    assertThat(Thread.interrupted()).isTrue();
    Servers.eventually(() -> limiter.getMetrics().getAvailablePermissions() == 0);
  }

  @Test
  void whileTheServerIsAway() {
    Limiter away = Servers.away();
    RateLimiter plain = plain(4, Duration.ofMinutes(5), Duration.ZERO);
    RateLimiter open = new Resilience4jRateLimiter(away, plain);
    for (int i = 0; i < 9; i++) {
      assertThat(open.acquirePermission()).isTrue();
    }
    // What follows a call changes nothing of its outcome.
    assertThat(open.executeSupplier(() -> "drain")).isEqualTo("drain");
    assertThat(open.getMetrics().getAvailablePermissions()).isEqualTo(4);

    RateLimiter closed = new Resilience4jRateLimiter(away, plain, WhenUnavailable.CLOSED, 1);
    assertThatThrownBy(closed::acquirePermission).isInstanceOf(UnavailableException.class);

    RateLimiter local = new Resilience4jRateLimiter(away, plain, WhenUnavailable.LOCAL, 2);
    assertThat(local.acquirePermission()).isTrue();
    assertThat(local.reservePermission()).isZero();
    assertThat(local.acquirePermission()).isFalse();
  }

  @Test
  void theServerDecidesAgainWhenItIsBack() throws Exception {
    try (TestServer server = new TestServer(true);
        Transport transport = LettuceTransport.create(server.uri())) {
      RateLimiter shared =
          new Resilience4jRateLimiter(
              Limiter.builder(transport).build(),
              plain(2, Duration.ofMinutes(5), Duration.ZERO),
              WhenUnavailable.LOCAL,
              2);
      Servers.eventually(() -> shared.getMetrics().getAvailablePermissions() == 2);
      assertThat(shared.acquirePermission(2)).isTrue();
      server.kill();
      // Its share in memory.
      assertThat(shared.acquirePermission()).isTrue();
      assertThat(shared.acquirePermission()).isFalse();
      server.start(true);
      Servers.eventually(shared::acquirePermission);
      Servers.eventually(() -> shared.getMetrics().getAvailablePermissions() == 1);
    }
  }

  @Test
  void wrongArgumentsAreRefused() throws Exception {
    Limiter limiter = Servers.MODULE.limiter();
    assertThatThrownBy(
            () -> new Resilience4jRateLimiter(limiter, RateLimiter.ofDefaults("default")))
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining("milliseconds");
    RateLimiter plain = plain(1, Duration.ofMinutes(5), Duration.ZERO);
    assertThatThrownBy(() -> new Resilience4jRateLimiter(limiter, plain, WhenUnavailable.LOCAL, 0))
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining("process");
    RateLimiter shared = new Resilience4jRateLimiter(limiter, plain);
    assertThat(shared.acquirePermission(0)).isTrue();
    assertThatThrownBy(() -> shared.acquirePermission(-1))
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining("cost");
  }
}
