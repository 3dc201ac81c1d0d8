package redisrl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowable;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.SslOptions;

/** The limiter on live servers: with the module, with functions and with the script. */
class LiveTest {
  private static TestServer server;
  private static TestServer plain;

  @BeforeAll
  static void start() throws Exception {
    server = new TestServer(true);
    plain = new TestServer(false);
  }

  @AfterAll
  static void stop() throws Exception {
    server.close();
    plain.close();
  }

  private static Limiter.Builder on(Transport transport) {
    // Long enough for a machine that does other work.
    return Limiter.builder(transport).timeout(Duration.ofSeconds(10));
  }

  private static String key() {
    return "test:" + Keys.random();
  }

  static Stream<Arguments> waysAndModes() {
    return Stream.of(Way.values())
        .flatMap(way -> Stream.of(Mode.values()).map(mode -> Arguments.of(way, mode)));
  }

  @ParameterizedTest
  @MethodSource("waysAndModes")
  void everyCallInEveryMode(Way way, Mode mode) {
    TestServer on = mode == Mode.FUNCTIONS || mode == Mode.SCRIPT ? plain : server;
    try (Transport transport = way.to(on);
        Limiter limiter = on(transport).mode(mode).prefix("p:").build()) {
      String key = key();
      Rule.Sliding rule = Rule.sliding("3/minute");
      for (long used = 1; used <= 3; used++) {
        Decision decision = limiter.hit(key, rule);
        assertThat(decision.allowed()).isTrue();
        assertThat(decision.used()).isEqualTo(used);
      }
      Decision denied = limiter.hit(key, rule);
      assertThat(denied.allowed()).isFalse();
      assertThat(denied.retryAfter()).isBetween(Duration.ofSeconds(1), Duration.ofMinutes(1));
      assertThat(limiter.mode()).isEqualTo(mode == Mode.AUTO ? Mode.MODULE : mode);
      assertThat(limiter.peek(key, rule.cost(0)).used()).isEqualTo(3);
      assertThat(limiter.refund(key, rule.cost(2)).refunded()).isEqualTo(2);
      assertThat(limiter.hit(key, rule.cost(2)).allowed()).isTrue();
      assertThat(limiter.hit(key, rule.cost(4)).retryAfter()).isNull();
      assertThat(limiter.hit(key, rule.cost(4).force()).used()).isEqualTo(7);
      assertThat(limiter.reset(key, rule)).isEqualTo(1);
      assertThat(limiter.hit(key, Rule.sliding("3/second", "9/minute")).each()).hasSize(2);

      assertThat(limiter.hit(key(), Rule.fixed("1/hour").anchored()).allowed()).isTrue();
      assertThat(limiter.hit(key(), Rule.throttle("30/minute").burst(3)).limit()).isEqualTo(4);
      assertThat(limiter.hit(key(), Rule.calendar("5/month", ZoneOffset.UTC, 1)).remaining())
          .isEqualTo(4);

      String busy = key();
      Rule.Lease lease = Rule.lease(1, Duration.ofSeconds(30));
      Decision held = limiter.acquire(busy, lease);
      assertThat(held.holder()).isNotNull();
      assertThat(limiter.acquire(busy, lease).allowed()).isFalse();
      assertThat(limiter.release(busy, held.holder())).isEqualTo(1);
      try (Held block = limiter.hold(busy, lease, Duration.ZERO)) {
        assertThat(block.isLost()).isFalse();
        assertThatThrownBy(() -> limiter.hold(busy, lease, Duration.ZERO))
            .isInstanceOf(DeniedException.class);
      }

      String tokens = key();
      Rule.Sliding budget = Rule.sliding("100/minute");
      try (Reservation reservation = limiter.reserve(tokens, budget, 60)) {
        assertThat(limiter.peek(tokens, budget.cost(0)).used()).isEqualTo(60);
        assertThatThrownBy(() -> limiter.reserve(tokens, budget, 60))
            .isInstanceOf(DeniedException.class);
        assertThat(reservation.settle(25)).isTrue();
        assertThat(reservation.settle(25)).isTrue();
        assertThatThrownBy(() -> reservation.settle(26))
            .isInstanceOf(IllegalArgumentException.class);
      }
      assertThat(limiter.peek(tokens, budget.cost(0)).used()).isEqualTo(25);
      limiter.reserve(tokens, budget, 60).close();
      assertThat(limiter.peek(tokens, budget.cost(0)).used()).isEqualTo(25);

      String tag = "{" + key() + "}";
      Decision all =
          limiter.all(
              Keyed.of(tag + "a", Rule.sliding("5/s")),
              Keyed.of(tag + "b", Rule.fixed("2/minute")));
      assertThat(all.allowed()).isTrue();
      assertThat(all.index()).isEqualTo(1);
      try (Reservation reservation =
          limiter.reserveAll(
              Duration.ofSeconds(30),
              Keyed.of(tag + "a", Rule.sliding("5/s")),
              Keyed.reserved(tag + "c", budget, 10))) {
        assertThat(reservation.settle(4)).isTrue();
      }
      assertThat(limiter.peek(tag + "c", budget.cost(0)).used()).isEqualTo(4);
    }
  }

  /** They came with Java 21, and the package is compiled for 17. */
  @ParameterizedTest
  @EnumSource
  void aThousandVirtualThreadsLetTheLimitThrough(Way way) throws Exception {
    assumeTrue(Runtime.version().feature() >= 21, "this Java has no virtual threads");
    ExecutorService threads =
        (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
    try (Transport transport = way.to(server);
        Limiter limiter = on(transport).build()) {
      String key = key();
      Rule rule = Rule.sliding("100/hour");
      List<Future<Boolean>> calls = new ArrayList<>();
      for (int i = 0; i < 1000; i++) {
        calls.add(threads.submit(() -> limiter.hit(key, rule).allowed()));
      }
      int allowed = 0;
      for (Future<Boolean> call : calls) {
        allowed += call.get(30, TimeUnit.SECONDS) ? 1 : 0;
      }
      assertThat(allowed).isEqualTo(100);
    } finally {
      threads.shutdown();
    }
  }

  @ParameterizedTest
  @EnumSource(names = {"MODULE", "FUNCTIONS", "SCRIPT"})
  void turnsComeInOrder(Mode mode) throws Exception {
    try (Transport transport =
            LettuceTransport.create((mode == Mode.MODULE ? server : plain).uri());
        Limiter limiter = on(transport).mode(mode).build()) {
      String key = key();
      Rule.Sliding rule = Rule.sliding("5/second");
      List<CompletableFuture<Decision>> waiters = new ArrayList<>();
      ConcurrentLinkedQueue<Integer> order = new ConcurrentLinkedQueue<>();
      for (int i = 0; i < 15; i++) {
        int number = i;
        waiters.add(
            limiter
                .awaitAsync(key, rule, Duration.ofSeconds(30))
                .whenComplete((decision, error) -> order.add(number)));
      }
      for (CompletableFuture<Decision> waiter : waiters) {
        assertThat(waiter.get(60, TimeUnit.SECONDS).allowed()).isTrue();
      }
      List<java.time.Instant> turns =
          waiters.stream().map(waiter -> waiter.join().at()).sorted().toList();
      for (int i = 5; i < turns.size(); i++) {
        assertThat(Duration.between(turns.get(i - 5), turns.get(i)))
            .isGreaterThanOrEqualTo(Duration.ofSeconds(1));
      }
      assertThat(order).hasSize(15);

      // A turn that is left is given back.
      String other = key();
      Rule.Sliding slow = Rule.sliding("1/minute");
      assertThat(limiter.hit(other, slow).allowed()).isTrue();
      assertThat(limiter.await(other, slow, Duration.ofMillis(200)).allowed()).isFalse();
      CompletableFuture<Decision> left = limiter.awaitAsync(other, slow, Duration.ofMinutes(30));
      eventually(
          () ->
              limiter
                      .turn(other, slow, Duration.ofMinutes(30))
                      .waitFor()
                      .compareTo(Duration.ofSeconds(61))
                  > 0);
      left.cancel(false);
      assertThat(limiter.turn(other, slow, Duration.ZERO).allowed()).isFalse();
    }
  }

  private static void eventually(java.util.function.BooleanSupplier condition) throws Exception {
    for (long until = System.nanoTime() + 30_000_000_000L;
        !condition.getAsBoolean();
        Thread.sleep(20)) {
      assertThat(System.nanoTime()).isLessThan(until);
    }
  }

  @Test
  void aPlaceIsWaitedFor() throws Exception {
    try (Transport transport = LettuceTransport.create(server.uri());
        Limiter limiter = on(transport).build()) {
      String key = key();
      Rule.Lease lease = Rule.lease(1, Duration.ofSeconds(30));
      Held first = limiter.hold(key, lease, Duration.ZERO);
      List<CompletableFuture<Decision>> waiters = new ArrayList<>();
      for (int i = 0; i < 3; i++) {
        waiters.add(limiter.awaitAsync(key, lease.holder("w" + i), Duration.ofSeconds(60)));
      }
      first.close();
      for (int i = 0; i < 3; i++) {
        assertThat(waiters.get(i).get(60, TimeUnit.SECONDS).allowed()).isTrue();
        limiter.release(key, "w" + i);
      }
    }
  }

  /** How often a server was asked for a place. */
  private static int acquired(TestServer server) {
    String stats = server.run("INFO", "commandstats").toLowerCase(java.util.Locale.ROOT);
    Matcher calls = Pattern.compile("cmdstat_rl\\.acquire:calls=(\\d+)").matcher(stats);
    return calls.find() ? Integer.parseInt(calls.group(1)) : 0;
  }

  /** The first reply about a place comes when the test lets it come. */
  private static final class LateReply extends Between {
    final CompletableFuture<Void> comes = new CompletableFuture<>();
    final AtomicInteger released = new AtomicInteger();
    private final AtomicBoolean isFirst = new AtomicBoolean(true);

    LateReply(Transport to) {
      super(to);
    }

    @Override
    public CompletableFuture<Object> send(
        String key, List<String> words, BooleanSupplier isGivenUp) {
      if (words.get(0).equals("RL.RELEASE")) {
        released.incrementAndGet();
      }
      CompletableFuture<Object> reply = super.send(key, words, isGivenUp);
      return words.get(0).equals("RL.ACQUIRE") && isFirst.getAndSet(false)
          ? comes.thenCompose(now -> reply)
          : reply;
    }
  }

  @Test
  void aLateReplyGivesNoPlaceBackThatIsHeld() throws Exception {
    try (LateReply transport = new LateReply(LettuceTransport.create(server.uri()));
        Limiter limiter =
            Limiter.builder(transport).mode(Mode.MODULE).timeout(Duration.ofMillis(300)).build()) {
      String key = key();
      Rule.Lease lease = Rule.lease(1, Duration.ofMinutes(5)).holder("one");
      assertThat(limiter.await(key, lease, Duration.ofSeconds(60)).allowed()).isTrue();
      transport.comes.complete(null);
      assertThat(limiter.peek(key, lease).used()).isEqualTo(1);
      assertThat(transport.released).hasValue(0);
    }
  }

  @Test
  void aDenialFromBeforeAnOutageIsNoAnswerAtItsEnd() throws Exception {
    try (TestServer gone = new TestServer(true);
        Transport transport = LettuceTransport.create(gone.uri());
        Limiter limiter = on(transport).build()) {
      Rule.Lease lease = Rule.lease(1, Duration.ofMinutes(5));
      assertThat(limiter.hit("k", lease.holder("first")).allowed()).isTrue();
      CompletableFuture<Decision> waiter =
          limiter.awaitAsync("k", lease.holder("second"), Duration.ofSeconds(5));
      // It has been denied, and asks again at least twice a second.
      eventually(() -> acquired(gone) >= 2);
      gone.kill();
      assertThatThrownBy(() -> waiter.get(60, TimeUnit.SECONDS))
          .hasCauseInstanceOf(UnavailableException.class);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aHungServerIsLeftAndFoundAgain(Way way) throws Exception {
    try (TestServer hung = new TestServer(true);
        Transport transport = way.to(hung);
        Limiter limiter = Limiter.builder(transport).timeout(Duration.ofMillis(300)).build()) {
      eventually(() -> catchThrowable(() -> limiter.hit("k", Rule.sliding("1000/minute"))) == null);
      long used = limiter.hit("k", Rule.sliding("1000/minute")).used();
      hung.signal("STOP");
      assertThatThrownBy(() -> limiter.hit("k", Rule.sliding("1000/minute")))
          .isInstanceOf(UnavailableException.class);
      // The breaker is open: at once, and without being sent.
      UnavailableException refused =
          (UnavailableException)
              catchThrowable(() -> limiter.hit("k", Rule.sliding("1000/minute")));
      assertThat(refused.sent).isFalse();
      hung.signal("CONT");
      eventually(() -> catchThrowable(() -> limiter.hit("k", Rule.sliding("1000/minute"))) == null);
      // What was sent to the server that hung counts at most once each.
      assertThat(limiter.peek("k", Rule.sliding("1000/minute").cost(0)).used())
          .isBetween(used + 1, used + 5);

      hung.kill();
      assertThat(catchThrowable(() -> limiter.hit("k", Rule.sliding("1000/minute"))))
          .isInstanceOf(UnavailableException.class);
      hung.start(true);
      eventually(() -> catchThrowable(() -> limiter.hit("k", Rule.sliding("1000/minute"))) == null);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aModuleThatIsLoadedLaterIsUsedAfterAReconnection(Way way) throws Exception {
    reconnects(way, false);
  }

  @ParameterizedTest
  @EnumSource
  void aModuleThatIsLoadedLaterIsUsedWhereTheBrokenConnectionCarriedNoCall(Way way)
      throws Exception {
    reconnects(way, true);
  }

  private static void reconnects(Way way, boolean isFoundBeside) throws Exception {
    try (TestServer later = new TestServer(false, "--enable-module-command", "yes");
        Transport transport = way.to(later);
        Limiter limiter = on(transport).build()) {
      limiter.hit("k", Rule.sliding("100/s"));
      assertThat(limiter.mode()).isEqualTo(Mode.FUNCTIONS);
      later.load();
      later.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
      // No call is under way that could fail.
      Thread.sleep(200);
      if (isFoundBeside) {
        catchThrowable(() -> transport.send("k", List.of("PING"), () -> false).join());
      }
      eventually(
          () ->
              catchThrowable(() -> limiter.hit("k", Rule.sliding("100/s"))) == null
                  && limiter.mode() == Mode.MODULE);
    }
  }

  @Test
  void aCertificateThatFailsIsAConnectionThatWasNotMade(@TempDir Path folder) throws Exception {
    String store = folder.resolve("store").toString();
    String keytool = Path.of(System.getProperty("java.home"), "bin", "keytool").toString();
    String made = "-genkeypair -keyalg EC -alias a -dname CN=localhost -storepass secret -keystore";
    List<String> words = new ArrayList<>(List.of(made.split(" ")));
    words.add(0, keytool);
    words.add(store);
    assertThat(new ProcessBuilder(words).redirectErrorStream(true).start().waitFor()).isZero();
    KeyStore keys = KeyStore.getInstance(Path.of(store).toFile(), "secret".toCharArray());
    KeyManagerFactory factory = KeyManagerFactory.getInstance("PKIX");
    factory.init(keys, "secret".toCharArray());
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(factory.getKeyManagers(), null, null);
    try (ServerSocket server = context.getServerSocketFactory().createServerSocket(0)) {
      Core.thread(
              () -> {
                while (!server.isClosed()) {
                  catchThrowable(() -> server.accept().getInputStream().read());
                }
              },
              "tls")
          .start();
      int port = server.getLocalPort();
      RedisURI uri = RedisURI.create("rediss://localhost:" + port);
      JedisClientConfig config =
          DefaultJedisClientConfig.builder().sslOptions(SslOptions.builder().build()).build();
      for (Transport transport :
          List.of(
              LettuceTransport.create(uri),
              JedisTransport.create(new HostAndPort("localhost", port), config))) {
        try (transport) {
          assertThatThrownBy(() -> on(transport).build().hit("k", Rule.sliding("5/hour")))
              .isInstanceOf(UnavailableException.class)
              .hasMessageContaining("certification path");
        }
      }
    }
  }

  @Test
  void aLibraryThatIsOlderIsReplaced() throws Exception {
    try (TestServer fresh = new TestServer(false);
        Transport transport = LettuceTransport.create(fresh.uri())) {
      String older =
          Command.LIBRARY
              .replaceFirst("-- Version \\d+", "-- Version 1")
              .replaceFirst("VERSION = \\d+", "VERSION = 1");
      transport.send("k", List.of("FUNCTION", "LOAD", older), () -> false).get();
      try (Limiter limiter = on(transport).build()) {
        limiter.hit("k", Rule.sliding("5/s"));
        assertThat(limiter.mode()).isEqualTo(Mode.FUNCTIONS);
        eventually(
            () ->
                !transport
                    .send("k", List.of("FCALL", "rl_version", "0"), () -> false)
                    .join()
                    .equals(1L));
      }
    }
  }

  @ParameterizedTest
  @EnumSource
  void errorsOfTheServerAreToldAndOpenNoBreaker(Way way) throws Exception {
    try (Transport transport = way.to(server);
        Limiter limiter = on(transport).build()) {
      transport.send("wrong", List.of("SET", "wrong", "x"), () -> false).get();
      assertThatThrownBy(
              () -> limiter.hit("wrong", Rule.lease(1, Duration.ofSeconds(1)).holder("h")))
          .isInstanceOf(ServerException.class)
          .hasMessageStartingWith("WRONGTYPE");
      assertThat(limiter.hit(key(), Rule.sliding("1/s")).allowed()).isTrue();
    }
  }

  @Test
  void theSecondQuestionOfAPeriodThatIsOverHasTheRestOfTheTime() {
    AtomicInteger asked = new AtomicInteger();
    Between transport =
        new Between(null) {
          @Override
          public CompletableFuture<Object> send(
              String key, List<String> words, BooleanSupplier isGivenUp) {
            CompletableFuture<Object> reply = new CompletableFuture<>();
            if (words.get(0).equals("RL.FIXED") && asked.getAndIncrement() == 0) {
              Core.after(
                  TimeUnit.MILLISECONDS.toNanos(500),
                  () ->
                      reply.completeExceptionally(new ServerException("ERR the window has ended")));
            }
            return reply;
          }
        };
    Limiter limiter =
        Limiter.builder(transport).mode(Mode.MODULE).timeout(Duration.ofSeconds(2)).build();
    Throwable error =
        catchThrowable(() -> limiter.hit("k", Rule.calendar("5/day", ZoneOffset.UTC, 1)));
    assertThat(asked).hasValue(2);
    Matcher told = Pattern.compile("no answer within (\\d+) ms").matcher(error.getMessage());
    assertThat(told.matches()).isTrue();
    assertThat(Integer.parseInt(told.group(1))).isBetween(1, 1500);
  }

  @ParameterizedTest
  @EnumSource
  void aUserWhoMayNotUseTheCommandOfTheProbeFindsTheServerAgain(Way way) throws Exception {
    try (TestServer hung =
            new TestServer(
                true, "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-rl.peek");
        Transport transport = way.to(hung);
        Limiter limiter = Limiter.builder(transport).timeout(Duration.ofMillis(300)).build()) {
      Rule rule = Rule.sliding("1000/minute");
      assertThatThrownBy(() -> on(transport).build().peek("k", rule))
          .isInstanceOf(ServerException.class);
      eventually(() -> catchThrowable(() -> limiter.hit("k", rule)) == null);
      hung.signal("STOP");
      assertThatThrownBy(() -> limiter.hit("k", rule)).isInstanceOf(UnavailableException.class);
      hung.signal("CONT");
      eventually(() -> catchThrowable(() -> limiter.hit("k", rule)) == null);
      assertThat(limiter.mode()).isEqualTo(Mode.MODULE);
    }
  }

  @Test
  void nothingIsLoggedWhenATransportIsClosed() {
    ByteArrayOutputStream logged = new ByteArrayOutputStream();
    PrintStream before = System.err;
    System.setErr(new PrintStream(logged, true, StandardCharsets.UTF_8));
    try (Transport transport = LettuceTransport.create(server.uri());
        Limiter limiter = on(transport).name("closed").build()) {
      limiter.hit(key(), Rule.sliding("5/s"));
    } finally {
      System.setErr(before);
    }
    assertThat(logged.toString(StandardCharsets.UTF_8))
        .contains("limiter closed: the server")
        .doesNotContain("already closed");
  }

  @Test
  void badInputIsRefusedWhereItIsMade() throws Exception {
    RedisClient client = RedisClient.create(server.uri());
    try (Transport transport = LettuceTransport.of(client)) {
      List<Event> events = new ArrayList<>();
      Limiter limiter = on(transport).prefix("p:").name("n").listener(events::add).build();
      Rule.Sliding rule = Rule.sliding("5/minute");
      assertThatThrownBy(() -> limiter.hit(null, rule))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("key");
      assertThatThrownBy(() -> limiter.hit("k", null))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("rule");
      assertThatThrownBy(() -> limiter.hit("k\ud800", rule))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("surrogate");
      assertThatThrownBy(() -> limiter.hit("k", rule.cost(1L << 53)))
          .isInstanceOf(IllegalArgumentException.class);
      assertThatThrownBy(() -> Limiter.builder(transport).timeout(Duration.ofNanos(1)))
          .isInstanceOf(IllegalArgumentException.class);
      Duration longest = Duration.ofSeconds(Long.MAX_VALUE);
      assertThat(on(transport).timeout(longest).build().hit("patient", rule).allowed()).isTrue();
      String key = "k".repeat(60_000);
      assertThat(limiter.hit(key, rule).allowed()).isTrue();
      assertThat(limiter.hit("", rule).allowed()).isTrue();
      assertThat(events.get(events.size() - 1).keys()).containsExactly("");
      assertThat(events.get(events.size() - 1).limiter()).isEqualTo("n");

      Thread.currentThread().interrupt();
      assertThatThrownBy(() -> limiter.hit("k", rule))
          .isInstanceOf(java.util.concurrent.CancellationException.class);
      assertThat(Thread.interrupted()).isTrue();

      limiter.close();
      assertThatThrownBy(() -> limiter.hit("k", rule)).isInstanceOf(IllegalStateException.class);
    } finally {
      client.shutdown(0, 0, TimeUnit.SECONDS);
    }
  }

  @ParameterizedTest
  @EnumSource
  void aPasswordThatIsWrongIsNoOutage(Way way) throws Exception {
    try (TestServer closed = new TestServer(true, "--requirepass", "s3cret");
        Transport transport = way.to(closed);
        Limiter limiter = on(transport).build()) {
      assertThatThrownBy(() -> limiter.hit("k", Rule.sliding("5/s")))
          .isInstanceOf(ServerException.class)
          .hasMessageStartingWith("NOAUTH");
    }
  }

  @ParameterizedTest
  @EnumSource
  void aPasswordOfAClusterThatIsWrongIsNoOutage(Way way) throws Exception {
    try (TestServer closed =
            new TestServer(true, "--cluster-enabled", "yes", "--requirepass", "s3cret");
        Transport transport =
            way == Way.LETTUCE
                ? LettuceTransport.cluster(List.of(closed.uri()))
                : way.toCluster(closed);
        Limiter limiter = on(transport).build()) {
      assertThatThrownBy(() -> limiter.hit("k", Rule.sliding("5/s")))
          .isInstanceOf(ServerException.class)
          .hasMessageStartingWith("NOAUTH");
    }
  }

  @Test
  void aPasswordThatIsWrongIsNoOutageForAnyOfManyCalls() throws Exception {
    try (TestServer closed = new TestServer(true, "--requirepass", "s3cret");
        Transport transport =
            LettuceTransport.create(
                RedisURI.builder(closed.uri()).withPassword("wrong".toCharArray()).build());
        Limiter limiter = on(transport).build()) {
      // Of the first, Lettuce may not know.
      eventually(
          () ->
              catchThrowable(() -> limiter.hit("k", Rule.sliding("5/s")))
                  instanceof ServerException);
      for (int i = 0; i < 400; i++) {
        assertThatThrownBy(() -> limiter.hit("k", Rule.sliding("5/s")))
            .isInstanceOf(ServerException.class)
            .hasMessageStartingWith("WRONGPASS");
      }
    }
  }
}
