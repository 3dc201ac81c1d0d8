package redisrl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.assertj.core.api.ThrowingConsumer;
import org.junit.jupiter.api.Test;
import redisrl.Decision.Source;
import redisrl.Guard.Limit;
import redisrl.Guard.WhenUnavailable;

/** What a guard adds to a limiter. */
class GuardTest {
  private static final Rule.Sliding RULE = Rule.sliding("2/hour");

  /** A transport that counts what is sent, or has no server. */
  private static final class Counting extends Between {
    final AtomicInteger sent = new AtomicInteger();

    Counting(Transport to) {
      super(to);
    }

    @Override
    public CompletableFuture<Object> send(
        String key, List<String> words, BooleanSupplier isGivenUp) {
      words.forEach(Keys::encoded);
      sent.incrementAndGet();
      return super.send(key, words, isGivenUp);
    }
  }

  private static List<Limit> one(String identity, Rule rule) {
    return List.of(new Limit(identity, rule, null));
  }

  /** On a server with the module, by a guard that remembers denials. */
  private static void guarded(ThrowingConsumer<Guard> test) throws Exception {
    try (TestServer server = new TestServer(true);
        Transport to = LettuceTransport.create(server.uri())) {
      Limiter limiter = Limiter.builder(to).mode(Mode.MODULE).build();
      Guard guard = new Guard(limiter, Duration.ofSeconds(10), WhenUnavailable.OPEN, 1);
      test.accept(guard);
    }
  }

  @Test
  void aDenialIsRememberedUntilTheLimiterGivesSomethingBack() throws Exception {
    try (TestServer server = new TestServer(true);
        Transport to = LettuceTransport.create(server.uri())) {
      Counting transport = new Counting(to);
      List<Event> events = new ArrayList<>();
      Limiter limiter = Limiter.builder(transport).mode(Mode.MODULE).listener(events::add).build();
      Guard guard = new Guard(limiter, Duration.ofSeconds(10), WhenUnavailable.OPEN, 1);
      assertThat(guard.decide(one("a", RULE)).allowed()).isTrue();
      assertThat(guard.decide(one("a", RULE)).allowed()).isTrue();
      Decision denied = guard.decide(one("a", RULE));
      assertThat(denied.allowed()).isFalse();
      assertThat(denied.source()).isEqualTo(Source.SERVER);
      int sent = transport.sent.get();
      Decision again = guard.decide(one("a", RULE.cost(2)));
      // On a machine that took a second for that, it was asked again.
      if (transport.sent.get() == sent) {
        assertThat(again.source()).isEqualTo(Source.MEMORY);
        assertThat(again.retryAfter()).isLessThanOrEqualTo(denied.retryAfter());
        assertThat(events.get(events.size() - 1).decision()).isSameAs(again);
      }
      assertThat(guard.decide(one("b", RULE)).source()).isEqualTo(Source.SERVER);
      assertThat(limiter.reset(guard.key(one("a", RULE).get(0)), RULE)).isEqualTo(1);
      assertThat(guard.decide(one("a", RULE)).allowed()).isTrue();
      // Of several limits none is counted where one denies.
      List<Limit> both =
          List.of(new Limit("a", RULE, null), new Limit("a", Rule.sliding("9/hour"), "/x"));
      assertThat(guard.decide(both).allowed()).isTrue();
      assertThat(guard.decide(both).allowed()).isFalse();
      assertThat(guard.decide(one("a", Rule.sliding("9/hour").name("all"))).remaining())
          .isEqualTo(8);
      assertThat(limiter.peek("rl:/x sliding-9/3600s:{a}", Rule.sliding("9/hour").cost(0)).used())
          .isEqualTo(1);
    }
  }

  @Test
  void aLimitThatARequestHasTwiceCountsOnce() throws Exception {
    guarded(
        guard -> {
          Limit named = new Limit("t", RULE.name("api"), "/a");
          assertThat(
                  guard.decide(List.of(named, new Limit("t", RULE.name("api"), "/b"))).remaining())
              .isEqualTo(1);
          Limit heavy = new Limit("u", RULE.name("api").cost(2), "/b");
          Limit light = new Limit("u", RULE.name("api"), "/a");
          assertThat(guard.decide(List.of(light, heavy, light)).remaining()).isZero();
        });
  }

  @Test
  void whatIsNoTextIsAnIdentityOfItsOwn() throws Exception {
    guarded(
        guard -> {
          for (String identity : List.of("\ud800", "\udfff", "a".repeat(600) + "\ud800")) {
            assertThat(guard.decide(one(identity, RULE)).remaining()).isEqualTo(1);
            assertThat(guard.decide(one(identity, RULE)).remaining()).isZero();
          }
        });
  }

  @Test
  void aRequestThatWeighsNothingIsChecked() throws Exception {
    guarded(
        guard -> {
          for (int i = 0; i < 3; i++) {
            assertThat(guard.decide(one("w", RULE.cost(0))).allowed()).isTrue();
          }
          assertThat(guard.decide(one("w", RULE.cost(2))).allowed()).isTrue();
          assertThat(guard.decide(one("w", RULE.cost(0))).allowed()).isFalse();
        });
  }

  @Test
  void aDenialCoversTheSameAndHeavierRequests() {
    Denials denials = new Denials();
    Decision denial = new Local(1).decide(List.of(new Keyed("k", Rule.sliding("0/hour").cost(3))));
    List<Keyed> asked = List.of(new Keyed("k", Rule.sliding("9/hour").cost(3)));
    denials.remember(asked, denial, System.nanoTime() + Duration.ofHours(1).toNanos());
    assertThat(denials.find(asked)).isNotNull();
    assertThat(denials.find(List.of(new Keyed("k", Rule.sliding("9/hour").cost(4))))).isNotNull();
    // This one never fits: the server says so.
    assertThat(denials.find(List.of(new Keyed("k", Rule.sliding("9/hour").cost(10))))).isNull();
    assertThat(denials.find(List.of(new Keyed("k", Rule.sliding("9/hour").cost(2))))).isNull();
    assertThat(denials.find(List.of(new Keyed("k", Rule.sliding("9/hour").cost(3).force()))))
        .isNull();
    assertThat(denials.find(List.of(new Keyed("k", Rule.sliding("8/hour").cost(3))))).isNull();
    assertThatThrownBy(() -> new Limit("a", Rule.lease(1, Duration.ofSeconds(1)), null))
        .isInstanceOf(IllegalArgumentException.class);
    assertThatThrownBy(() -> new Limit("", RULE, null))
        .isInstanceOf(IllegalArgumentException.class);
  }

  @Test
  void denialsAreBounded() {
    Denials denials = new Denials();
    Rule.Sliding none = Rule.sliding("0/hour");
    Decision denial = new Local(1).decide(List.of(new Keyed("k", none)));
    long later = System.nanoTime() + Duration.ofHours(1).toNanos();
    for (int i = 0; i <= Denials.MOST; i++) {
      denials.remember(List.of(new Keyed("k" + i, none)), denial, later);
    }
    assertThat(denials.find(List.of(new Keyed("k0", none)))).isNull();
    assertThat(denials.find(List.of(new Keyed("k" + Denials.MOST, none)))).isNotNull();
    for (int i = 0; i < 5; i++) {
      String key = i + "k".repeat(Denials.MOST_BYTES / 4);
      denials.remember(List.of(new Keyed(key, none)), denial, later);
    }
    assertThat(denials.find(List.of(new Keyed("k" + Denials.MOST, none)))).isNull();
  }

  @Test
  void countersInMemoryAreBounded() {
    Local local = new Local(1);
    Rule.Sliding one = Rule.sliding("1/hour");
    for (int i = 0; i <= Local.MOST; i++) {
      local.decide(List.of(new Keyed("k" + i, one)));
    }
    assertThat(local.decide(List.of(new Keyed("k" + Local.MOST, one))).allowed()).isFalse();
    // The one that was asked for first has made room.
    assertThat(local.decide(List.of(new Keyed("k0", one))).allowed()).isTrue();
  }

  @Test
  void whereNoServerIsThePolicyDecides() {
    Limiter limiter = Limiter.builder(new Counting(null)).mode(Mode.MODULE).build();
    Guard open = new Guard(limiter);
    for (int i = 0; i < 5; i++) {
      Decision decision = open.decide(one("a", RULE));
      assertThat(decision.source()).isEqualTo(Source.OPEN);
      assertThat(decision.headers()).isEmpty();
    }
    Guard closed = new Guard(limiter, Guard.TIMEOUT, WhenUnavailable.CLOSED, 1);
    assertThatThrownBy(() -> closed.decide(one("a", RULE)))
        .isInstanceOf(UnavailableException.class);
    Guard local = new Guard(limiter, Guard.TIMEOUT, WhenUnavailable.LOCAL, 1);
    assertThat(local.decide(one("a", RULE)).remaining()).isEqualTo(1);
    assertThat(local.decide(one("b", RULE.cost(3))).retryAfter()).isNull();
    assertThat(local.decide(one("a", RULE)).allowed()).isTrue();
    Decision denied = local.decide(one("a", RULE));
    assertThat(denied.allowed()).isFalse();
    assertThat(denied.source()).isEqualTo(Source.LOCAL);
    assertThat(denied.retryAfter())
        .isBetween(Duration.ofSeconds(1), Duration.ofHours(1).plusMillis(1));
    assertThat(denied.headers()).containsKeys("RateLimit", "RateLimit-Policy", "Retry-After");
    // What one limit denies is counted in none.
    List<Limit> both =
        List.of(new Limit("c", Rule.sliding("9/hour"), null), new Limit("a", RULE, null));
    assertThat(local.decide(both).allowed()).isFalse();
    assertThat(local.decide(one("c", Rule.sliding("9/hour"))).remaining()).isEqualTo(8);
    Guard shared = new Guard(limiter, Guard.TIMEOUT, WhenUnavailable.LOCAL, 4);
    assertThat(shared.decide(one("a", Rule.sliding("8/s, 20/hour"))).each())
        .extracting(Decision::limit)
        .containsExactly(2L, 5L);
    assertThat(shared.decide(one("z", RULE)).limit()).isEqualTo(1);
  }

  @Test
  void aProbeThatCannotBeSentIsFollowedByAnother() throws Exception {
    Counting transport = new Counting(null);
    Limiter limiter = Limiter.builder(transport).mode(Mode.MODULE).build();
    assertThatThrownBy(() -> limiter.hit("a", RULE)).isInstanceOf(UnavailableException.class);
    Thread.sleep(Core.PAUSE.toMillis() + 50);
    assertThatThrownBy(() -> limiter.hit("\ud800", RULE))
        .isInstanceOf(IllegalArgumentException.class);
    int sent = transport.sent.get();
    assertThatThrownBy(() -> limiter.hit("a", RULE)).isInstanceOf(UnavailableException.class);
    assertThat(transport.sent.get()).isEqualTo(sent + 1);
  }
}
