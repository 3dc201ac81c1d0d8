package redisrl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowable;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Callers that leave, and limiters that are closed, in the middle of something. */
class LeavingTest {
  private static TestServer server;
  private static Transport to;

  @BeforeAll
  static void start() throws Exception {
    server = new TestServer(true);
    to = LettuceTransport.create(server.uri());
  }

  @AfterAll
  static void stop() throws Exception {
    to.close();
    server.close();
  }

  private static Limiter on(Transport transport, Duration timeout) {
    return Limiter.builder(transport).mode(Mode.MODULE).timeout(timeout).build();
  }

  private static void eventually(BooleanSupplier condition) throws Exception {
    for (long until = System.nanoTime() + 30_000_000_000L;
        !condition.getAsBoolean();
        Thread.sleep(20)) {
      assertThat(System.nanoTime()).isLessThan(until);
    }
  }

  @ParameterizedTest
  @EnumSource(Way.class)
  void aCallThatIsGivenUpBeforeItCouldBeSentIsNot(Way way) throws Exception {
    Rule.Sliding rule = Rule.sliding("1000/hour");
    try (TestServer own = new TestServer(true);
        Transport transport = way.to(own)) {
      Limiter patient = on(transport, Duration.ofSeconds(10));
      assertThat(patient.hit("warm", rule).allowed()).isTrue();
      // Lettuce sends all, or has no connection; Jedis sends sixteen.
      int most = way == Way.JEDIS ? 16 : 0;
      if (way == Way.LETTUCE) {
        own.run("CLIENT", "KILL", "TYPE", "normal");
      }
      own.signal("STOP");
      Limiter limiter = on(transport, Duration.ofMillis(100));
      List<CompletableFuture<Decision>> calls =
          Stream.generate(() -> limiter.hitAsync("k", rule)).limit(50).toList();
      calls.forEach(call -> assertThat(catchThrowable(call::join)).isNotNull());
      own.signal("CONT");
      eventually(() -> catchThrowable(() -> patient.hit("warm", rule)) == null);
      assertThat(patient.peek("k", rule.cost(0)).used()).isLessThanOrEqualTo(most);
    }
  }

  /** The answers to settlements come when the test lets them come. */
  private static final class Unsettled extends Between {
    final CountDownLatch asked = new CountDownLatch(1);
    final AtomicInteger sent = new AtomicInteger();
    final CompletableFuture<Void> comes = new CompletableFuture<>();

    Unsettled() {
      super(to);
    }

    @Override
    public CompletableFuture<Object> send(
        String key, List<String> words, BooleanSupplier isGivenUp) {
      if (!words.get(0).equals("RL.SETTLE")) {
        return super.send(key, words, isGivenUp);
      }
      sent.incrementAndGet();
      asked.countDown();
      return comes.thenCompose(now -> super.send(key, words, isGivenUp));
    }
  }

  @Test
  void aThreadThatWaitsForASettlementOfAnotherCanLeave() throws Exception {
    Unsettled transport = new Unsettled();
    Limiter limiter = on(transport, Duration.ofSeconds(50));
    Reservation reservation = limiter.reserve("apart", Rule.sliding("9/hour"), 5);
    Thread first = new Thread(() -> catchThrowable(() -> reservation.settle(1)));
    first.start();
    transport.asked.await();
    AtomicReference<Throwable> thrown = new AtomicReference<>();
    Thread second = new Thread(() -> thrown.set(catchThrowable(() -> reservation.settle(1))));
    second.start();
    second.interrupt();
    second.join(20_000);
    first.interrupt();
    assertThat(second.isAlive()).isFalse();
    assertThat(thrown.get()).isInstanceOf(CancellationException.class);
  }

  @Test
  void aSettlementThatWasLeftIsWaitedForAndNotSentAgain() throws Exception {
    Unsettled transport = new Unsettled();
    Limiter limiter = on(transport, Duration.ofSeconds(50));
    Rule.Sliding rule = Rule.sliding("9/hour");
    Reservation reservation = limiter.reserve("left", rule, 5);
    Thread.currentThread().interrupt();
    assertThatThrownBy(() -> reservation.settle(1)).isInstanceOf(CancellationException.class);
    assertThatThrownBy(() -> reservation.settle(1)).isInstanceOf(CancellationException.class);
    assertThat(Thread.interrupted()).isTrue();
    assertThatThrownBy(() -> reservation.settle(2)).isInstanceOf(IllegalArgumentException.class);
    transport.comes.complete(null);
    assertThat(reservation.settle(1)).isTrue();
    reservation.close();
    assertThat(transport.sent).hasValue(1);
    assertThat(limiter.peek("left", rule.cost(0)).used()).isEqualTo(1);
  }

  @Test
  void whatIsHeldIsLostWhenItsLimiterIsClosed() throws Exception {
    Limiter limiter = on(to, Duration.ofSeconds(10));
    Held held = limiter.hold("closed", Rule.lease(1, Duration.ofMillis(600)), Duration.ZERO);
    Reservation reservation =
        limiter.reserve("closed too", Rule.sliding("9/hour"), 5, Duration.ofMillis(600));
    limiter.close();
    held.lost().get(20, TimeUnit.SECONDS);
    reservation.lost().get(20, TimeUnit.SECONDS);
    assertThat(held.isLost()).isTrue();
    assertThat(reservation.isLost()).isTrue();
  }

  @Test
  void whatFollowsALossHoldsUpNoOtherLoss() throws Exception {
    Limiter limiter = on(to, Duration.ofSeconds(10));
    Rule.Lease lease = Rule.lease(1, Duration.ofMillis(600));
    CountDownLatch ends = new CountDownLatch(1);
    Held first = limiter.hold("blocks", lease, Duration.ZERO);
    first.lost().thenRun(() -> catchThrowable(ends::await));
    Held second = limiter.hold("beside", lease, Duration.ZERO);
    limiter.close();
    try {
      second.lost().get(20, TimeUnit.SECONDS);
    } finally {
      ends.countDown();
    }
  }

  /** A reply is there as soon as a call is sent. */
  private static final class AtOnce extends Between {
    AtOnce() {
      super(to);
    }

    @Override
    public CompletableFuture<Object> send(
        String key, List<String> words, BooleanSupplier isGivenUp) {
      CompletableFuture<Object> reply = super.send(key, words, isGivenUp);
      catchThrowable(reply::join);
      return reply;
    }
  }

  @Test
  void whatAnInterruptedThreadHasGotIsGivenBack() throws Exception {
    Limiter limiter = on(new AtOnce(), Duration.ofSeconds(10));
    Rule.Lease lease = Rule.lease(1, Duration.ofMinutes(5)).holder("one");
    Rule.Sliding rule = Rule.sliding("1/hour");
    for (Runnable call :
        List.<Runnable>of(
            () -> limiter.hold("place", lease, Duration.ZERO),
            () -> limiter.await("place", lease, Duration.ZERO),
            () -> limiter.await("turn", rule, Duration.ZERO))) {
      Thread.currentThread().interrupt();
      assertThatThrownBy(call::run).isInstanceOf(CancellationException.class);
      assertThat(Thread.interrupted()).isTrue();
      eventually(() -> limiter.peek("place", lease.holder("two")).allowed());
    }
    eventually(() -> limiter.peek("turn", rule.cost(0)).used() == 0);
  }

  @Test
  void aDenialIsRememberedWhoseCallerHasLeft() throws Exception {
    CompletableFuture<Void> comes = new CompletableFuture<>();
    Between transport =
        new Between(to) {
          @Override
          public CompletableFuture<Object> send(
              String key, List<String> words, BooleanSupplier isGivenUp) {
            return comes.thenCompose(now -> super.send(key, words, isGivenUp));
          }
        };
    Limiter limiter = on(transport, Duration.ofSeconds(10));
    Guard guard = new Guard(limiter, Duration.ofSeconds(10), Guard.WhenUnavailable.OPEN, 1);
    List<Guard.Limit> asked = List.of(new Guard.Limit("a", Rule.sliding("0/hour"), null));
    guard.decideAsync(asked).cancel(false);
    comes.complete(null);
    List<Keyed> rules = List.of(new Keyed(guard.key(asked.get(0)), asked.get(0).rule()));
    eventually(() -> limiter.denials.find(rules) != null);
  }

  @Test
  void aListenerThatFailsChangesNoDecision() {
    Limiter limiter =
        Limiter.builder(to)
            .mode(Mode.MODULE)
            .timeout(Duration.ofSeconds(10))
            .listener(
                event -> {
                  throw new IllegalStateException("on purpose");
                })
            .build();
    assertThat(limiter.hit("told", Rule.sliding("1/hour")).allowed()).isTrue();
    limiter.hold("told too", Rule.lease(1, Duration.ofMinutes(5)), Duration.ZERO).close();
  }

  @Test
  void nothingIsNoArgument() {
    Limiter limiter = on(to, Duration.ofSeconds(10));
    Rule.Sliding rule = Rule.sliding("5/minute");
    for (Runnable call :
        List.<Runnable>of(
            () -> limiter.all((Keyed) null),
            () -> limiter.all((Keyed[]) null),
            () -> limiter.reserveAll(Duration.ofMinutes(1), (Keyed) null),
            () -> limiter.reserveAll(null, Keyed.reserved("k", rule, 1)),
            () -> limiter.reserve("k", null, 1),
            () -> limiter.reset("k", (Rule) null),
            () -> limiter.release("k", (String) null),
            () -> limiter.await("k", rule, null),
            () -> limiter.turn("k", rule, null),
            () -> limiter.refund("k", rule, null),
            () -> limiter.hold("k", null, Duration.ZERO),
            () -> new Guard(limiter).decide(null),
            () -> Keys.keyFor(null, rule, "a"),
            () -> Keys.keyFor("rl:", rule, null),
            () -> Rule.sliding((String[]) null),
            () -> Rule.fixed((String[]) null),
            () -> Rule.sliding((String) null))) {
      assertThatThrownBy(call::run)
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("must not be null");
    }
    for (Rule forced : List.of(Rule.sliding("5/s").force(), Rule.fixed("5/s").force())) {
      assertThatThrownBy(() -> limiter.await("k", forced, Duration.ZERO))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("would be counted each time");
    }
    for (long cost : new long[] {-1, 1L << 53, Long.MAX_VALUE, Long.MIN_VALUE}) {
      assertThatThrownBy(() -> rule.cost(cost)).isInstanceOf(IllegalArgumentException.class);
      assertThatThrownBy(() -> Rule.throttle("5/s").cost(cost))
          .isInstanceOf(IllegalArgumentException.class);
    }
    for (java.time.Instant at : List.of(java.time.Instant.MIN, java.time.Instant.MAX)) {
      assertThatThrownBy(() -> limiter.refund("k", rule, at))
          .isInstanceOf(IllegalArgumentException.class);
    }
  }
}
