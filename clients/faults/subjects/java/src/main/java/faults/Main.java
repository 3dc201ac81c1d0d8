package faults;

import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import ch.qos.logback.classic.LoggerContext;
import ch.qos.logback.classic.spi.ILoggingEvent;
import ch.qos.logback.core.AppenderBase;
import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import com.fasterxml.jackson.databind.json.JsonMapper;
import io.lettuce.core.RedisURI;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.util.JedisURIHelper;
import redisrl.Decision;
import redisrl.DeniedException;
import redisrl.Held;
import redisrl.JedisTransport;
import redisrl.Keyed;
import redisrl.LettuceTransport;
import redisrl.Limiter;
import redisrl.Mode;
import redisrl.Reservation;
import redisrl.Rule;
import redisrl.ServerException;
import redisrl.Transport;
import redisrl.UnavailableException;

/**
 * The subject of the package for Java. It makes calls by "lettuce" or "jedis", or serves an
 * application: "mvc", "webflux", "gateway". The protocol is in ../../README.md.
 */
public final class Main {
  private static final String CAN =
      "hit peek all wait turn refund reset acquire release hold reserve lease-of-reserve settle"
          + " crowd each flood burn cancel within cluster sentinel modes hook threads close memory";

  /** A command of the harness. */
  record Request(
      int id,
      @JsonProperty("do") String what,
      String limiter,
      String name,
      Connect connect,
      String client,
      double timeout,
      String prefix,
      String mode,
      boolean hook,
      String key,
      Ruled rule,
      List<At> rules,
      Long cost,
      boolean force,
      Long atMs,
      String holder,
      double seconds,
      long units,
      String as,
      Double lease,
      int n,
      double pause,
      boolean each,
      double ahead,
      int pad,
      String call,
      long ms,
      int threads,
      double within,
      String policy,
      Integer processes,
      Object of) {}

  record Connect(String url, List<String> cluster, List<String> sentinel, String service) {}

  record At(String key, Ruled rule) {}

  record Ruled(
      String kind,
      String[] rates,
      String rate,
      Long burst,
      boolean anchored,
      Long cost,
      boolean force,
      long limit,
      double ttl) {
    Rule made(Long another, boolean forced) {
      Long weight = another != null ? another : cost;
      switch (kind) {
        case "sliding":
          Rule.Sliding sliding = Rule.sliding(rates);
          sliding = weight == null ? sliding : sliding.cost(weight);
          return force || forced ? sliding.force() : sliding;
        case "fixed":
          Rule.Fixed fixed = anchored ? Rule.fixed(rates).anchored() : Rule.fixed(rates);
          fixed = weight == null ? fixed : fixed.cost(weight);
          return force || forced ? fixed.force() : fixed;
        case "throttle":
          Rule.Throttle throttle = Rule.throttle(rate);
          throttle = burst == null ? throttle : throttle.burst(burst);
          return weight == null ? throttle : throttle.cost(weight);
        default:
          return Rule.lease(limit, length(ttl));
      }
    }
  }

  private record Lag(long at, long by) {}

  private interface Numbered {
    Map<String, Object> call(int number);
  }

  static final ObjectMapper JSON =
      JsonMapper.builder()
          .propertyNamingStrategy(PropertyNamingStrategies.SNAKE_CASE)
          .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES)
          .build();
  private static final PrintStream OUT = System.out;
  private static final ScheduledThreadPoolExecutor TIMER = new ScheduledThreadPoolExecutor(1);
  private static final Map<String, Transport> CLIENTS = new ConcurrentHashMap<>();
  private static final Map<String, Limiter> LIMITERS = new ConcurrentHashMap<>();
  private static final Map<String, Reservation> RESERVATIONS = new ConcurrentHashMap<>();
  private static final Map<Integer, Thread> UNDER_WAY = new ConcurrentHashMap<>();
  private static final ConcurrentLinkedDeque<Lag> LAGS = new ConcurrentLinkedDeque<>();
  private static String kind = "lettuce";

  static Duration length(double seconds) {
    return Duration.ofNanos((long) (seconds * 1e9));
  }

  static void tell(Map<String, Object> line) {
    try {
      String text = JSON.writeValueAsString(line);
      synchronized (OUT) {
        OUT.println(text);
        OUT.flush();
      }
    } catch (java.io.IOException error) {
      throw new IllegalStateException(error);
    }
  }

  static Map<String, Object> reply(Object... pairs) {
    Map<String, Object> reply = new HashMap<>();
    for (int i = 0; i < pairs.length; i += 2) {
      reply.put((String) pairs[i], pairs[i + 1]);
    }
    return reply;
  }

  static Map<String, Object> done(long count) {
    return reply("outcome", "done", "count", count);
  }

  private static Transport transport(Connect to) {
    if (kind.equals("jedis")) {
      return jedis(to);
    }
    if (to.cluster != null) {
      return LettuceTransport.cluster(
          to.cluster.stream().map(node -> RedisURI.create("redis://" + node)).toList());
    }
    if (to.sentinel == null) {
      return LettuceTransport.create(RedisURI.create(to.url));
    }
    RedisURI.Builder uri = RedisURI.builder().withSentinelMasterId(to.service);
    for (String sentinel : to.sentinel) {
      HostAndPort at = HostAndPort.from(sentinel);
      uri.withSentinel(at.getHost(), at.getPort());
    }
    return LettuceTransport.create(uri.build());
  }

  private static Transport jedis(Connect to) {
    JedisClientConfig config = DefaultJedisClientConfig.builder().build();
    if (to.cluster != null) {
      return JedisTransport.cluster(nodes(to.cluster), config);
    }
    if (to.sentinel != null) {
      return JedisTransport.sentinel(to.service, config, nodes(to.sentinel), config);
    }
    URI uri = URI.create(to.url);
    return JedisTransport.create(
        JedisURIHelper.getHostAndPort(uri),
        DefaultJedisClientConfig.builder()
            .user(JedisURIHelper.getUser(uri))
            .password(JedisURIHelper.getPassword(uri))
            .build());
  }

  private static Set<HostAndPort> nodes(List<String> nodes) {
    return nodes.stream().map(HostAndPort::from).collect(Collectors.toSet());
  }

  private static Map<String, Object> limiter(Request r) {
    Transport transport =
        r.client == null
            ? transport(r.connect)
            : CLIENTS.computeIfAbsent(r.client, client -> transport(r.connect));
    Limiter.Builder limiter = Limiter.builder(transport).name(r.name);
    if (r.timeout > 0) {
      limiter.timeout(length(r.timeout));
    }
    if (r.prefix != null) {
      limiter.prefix(r.prefix);
    }
    if (r.mode != null) {
      limiter.mode(Mode.valueOf(r.mode.toUpperCase(java.util.Locale.ROOT)));
    }
    if (r.hook) {
      limiter.listener(
          event ->
              event
                  .keys()
                  .forEach(key -> tell(reply("hook", reply("call", event.call(), "key", key)))));
    }
    LIMITERS.put(r.name, limiter.build());
    return done(0);
  }

  private static Map<String, Object> decided(Decision decision) {
    Map<String, Object> told =
        reply(
            "outcome", decision.allowed() ? "allowed" : "denied",
            "limit", decision.limit(),
            "used", decision.used(),
            "remaining", decision.remaining(),
            "retry_ms", decision.retryAfter() == null ? -1 : decision.retryAfter().toMillis(),
            "at_ms", decision.at().toEpochMilli(),
            "wait_ms", decision.waitFor().toMillis());
    if (decision.holder() != null) {
      told.put("holder", decision.holder());
    }
    return told;
  }

  /** Makes the call that is named, as the page shows it. */
  private static Map<String, Object> carriedOut(Limiter limiter, Request r, String what, String key)
      throws Exception {
    Rule rule = r.rule == null ? null : r.rule.made(r.cost, r.force);
    switch (what) {
      case "hit":
        return decided(limiter.hit(key, rule));
      case "peek":
        return decided(limiter.peek(key, rule));
      case "wait":
        return decided(limiter.await(key, rule, length(r.timeout)));
      case "turn":
        return decided(limiter.turn(key, (Rule.Queued) rule, length(r.ahead)));
      case "all":
        return decided(
            limiter.all(
                r.rules.stream()
                    .map(at -> Keyed.of(at.key, at.rule.made(null, false)))
                    .toArray(Keyed[]::new)));
      case "refund":
        return done(refunded(limiter, r, rule));
      case "reset":
        return done(limiter.reset(key, rule));
      case "acquire":
        Rule.Lease lease = (Rule.Lease) rule;
        return decided(limiter.acquire(key, r.holder == null ? lease : lease.holder(r.holder)));
      case "release":
        return done(limiter.release(key, r.holder));
      case "hold":
        return held(limiter, r, (Rule.Lease) rule);
      case "reserve":
        Reservation reservation =
            rule instanceof Rule.Fixed fixed
                ? limiter.reserve(key, fixed, r.units, length(r.lease == null ? 60 : r.lease))
                : limiter.reserve(
                    key, (Rule.Sliding) rule, r.units, length(r.lease == null ? 60 : r.lease));
        RESERVATIONS.put(r.as, reservation);
        return decided(reservation.decision());
      case "settle":
        return RESERVATIONS.get((String) r.of).settle(r.units)
            ? done(0)
            : reply("outcome", "unavailable", "error", "not settled");
      case "close":
        limiter.close();
        return done(0);
      default:
        throw new UnsupportedOperationException(what);
    }
  }

  private static long refunded(Limiter limiter, Request r, Rule rule) {
    Instant at = r.atMs == null ? null : Instant.ofEpochMilli(r.atMs);
    if (rule instanceof Rule.Throttle throttle) {
      return (at == null ? limiter.refund(r.key, throttle) : limiter.refund(r.key, throttle, at))
          .refunded();
    }
    if (rule instanceof Rule.Fixed fixed) {
      return (at == null ? limiter.refund(r.key, fixed) : limiter.refund(r.key, fixed, at))
          .refunded();
    }
    Rule.Sliding sliding = (Rule.Sliding) rule;
    return (at == null ? limiter.refund(r.key, sliding) : limiter.refund(r.key, sliding, at))
        .refunded();
  }

  private static Map<String, Object> held(Limiter limiter, Request r, Rule.Lease lease)
      throws Exception {
    try (Held held = limiter.hold(r.key, lease, length(r.timeout))) {
      tell(reply("id", r.id, "event", "held"));
      long began = System.nanoTime();
      Object lost = null;
      try {
        held.lost().get(length(r.seconds).toNanos(), TimeUnit.NANOSECONDS);
        lost = since(began);
        tell(reply("id", r.id, "event", "lost"));
        TimeUnit.NANOSECONDS.sleep(length(r.seconds).toNanos() - (System.nanoTime() - began));
      } catch (TimeoutException over) {
        // The work is done.
      }
      return reply("outcome", "allowed", "lost_after_ms", lost);
    }
  }

  private static double since(long began) {
    return (System.nanoTime() - began) / 1e6;
  }

  /** One command, given up by its caller after a time where it says so: an interruption. */
  private static Map<String, Object> answered(Limiter limiter, Request r, String what, String key) {
    long began = System.nanoTime();
    Thread caller = Thread.currentThread();
    var leaving =
        r.within == 0
            ? null
            : TIMER.schedule(caller::interrupt, length(r.within).toNanos(), TimeUnit.NANOSECONDS);
    Map<String, Object> told;
    try {
      told = carriedOut(limiter, r, what, key);
    } catch (DeniedException denied) {
      told = decided(denied.decision());
    } catch (Exception error) {
      told = failed(error);
    }
    if (leaving != null) {
      leaving.cancel(false);
    }
    told.put("ms", since(began));
    long most = 0;
    for (var lags = LAGS.descendingIterator(); lags.hasNext(); ) {
      Lag lag = lags.next();
      if (lag.at < began) {
        break;
      }
      most = Math.max(most, lag.by);
    }
    told.put("lag_ms", most / 1e6);
    return told;
  }

  private static boolean isClosed(Exception error) {
    return error instanceof IllegalStateException
        && String.valueOf(error.getMessage()).endsWith(" is closed");
  }

  static Map<String, Object> failed(Exception error) {
    String outcome =
        error instanceof CancellationException || error instanceof InterruptedException
            ? "gave_up"
            : error instanceof UnavailableException
                ? "unavailable"
                : error instanceof ServerException
                    ? "permanent"
                    : error instanceof IllegalArgumentException
                        ? "argument"
                        : isClosed(error) ? "closed" : "bug";
    String text = error.toString();
    for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
      text += outcome.equals("bug") ? " by " + cause : "";
    }
    return reply("outcome", outcome, "error", text);
  }

  /** Makes calls, some at a time and each when it is due, and puts their replies together. */
  private static Map<String, Object> many(int n, int atOnce, double pause, Numbered call)
      throws InterruptedException {
    Map<String, Integer> outcomes = new HashMap<>();
    Map<String, Integer> errors = new HashMap<>();
    double[] slowest = {0};
    Semaphore turns = new Semaphore(atOnce);
    CountDownLatch left = new CountDownLatch(n);
    long began = System.nanoTime();
    for (int i = 0; i < n; i++) {
      int number = i;
      TimeUnit.NANOSECONDS.sleep(began + (long) (number * pause * 1e9) - System.nanoTime());
      turns.acquire();
      thread(
          () -> {
            Map<String, Object> told = call.call(number);
            turns.release();
            synchronized (outcomes) {
              outcomes.merge((String) told.get("outcome"), 1, Integer::sum);
              if (told.get("error") != null) {
                errors.merge((String) told.get("error"), 1, Integer::sum);
              }
              slowest[0] = Math.max(slowest[0], (double) told.get("ms"));
            }
            left.countDown();
          });
    }
    left.await();
    return reply(
        "outcome", "done", "outcomes", outcomes, "errors", errors, "slowest_ms", slowest[0]);
  }

  private static Map<String, Object> crowd(Limiter limiter, Request r) throws Exception {
    String call = r.call == null ? "hit" : r.call;
    Object[] each = new Object[r.n];
    Map<String, Object> told =
        many(
            r.n,
            Math.max(r.n, 1),
            r.pause,
            number -> {
              double asked = unixMs();
              Map<String, Object> answer = answered(limiter, r, call, r.key);
              each[number] =
                  reply(
                      "outcome", answer.get("outcome"),
                      "at_ms", answer.get("at_ms"),
                      "wait_ms", answer.get("wait_ms"),
                      "asked_ms", asked,
                      "ended_ms", unixMs());
              return answer;
            });
    if (r.each) {
      told.put("each", each);
    }
    return told;
  }

  private static double unixMs() {
    Instant now = Instant.now();
    return now.getEpochSecond() * 1000.0 + now.getNano() / 1e6;
  }

  private static Map<String, Object> flood(Limiter limiter, Request r) throws Exception {
    return many(
        r.n,
        16,
        0,
        number -> {
          String key = r.key + number;
          String padded = key + "x".repeat(Math.max(r.pad - key.length(), 0));
          return answered(limiter, r, "hit", padded);
        });
  }

  private static Map<String, Object> burn(Request r) throws InterruptedException {
    long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(r.ms);
    int threads = Math.max(r.threads, 1);
    CountDownLatch left = new CountDownLatch(threads);
    for (int i = 0; i < threads; i++) {
      thread(
          () -> {
            while (System.nanoTime() < until) {
              Thread.onSpinWait();
            }
            left.countDown();
          });
    }
    tell(reply("id", r.id, "event", "burning"));
    left.await();
    return done(0);
  }

  private static Map<String, Object> handled(Request r) {
    Limiter limiter = r.limiter == null ? null : LIMITERS.get(r.limiter);
    try {
      switch (r.what) {
        case "limiter":
          return limiter(r);
        case "serve":
          return Apps.serve(kind, r);
        case "crowd":
          return crowd(limiter, r);
        case "flood":
          return flood(limiter, r);
        case "burn":
          return burn(r);
        case "memory":
          System.gc();
          System.gc();
          return done(ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed());
        case "cancel":
          Thread caller = UNDER_WAY.get(((Number) r.of).intValue());
          if (caller != null) {
            caller.interrupt();
          }
          return done(0);
        default:
          return answered(limiter, r, r.what, r.key);
      }
    } catch (Exception error) {
      return failed(error);
    }
  }

  private static Thread thread(Runnable work) {
    Thread thread = new Thread(work, "faults");
    thread.setDaemon(true);
    thread.start();
    return thread;
  }

  /** Each log line of the package. Those of others go nowhere. */
  private static void listen() {
    LoggerContext context = (LoggerContext) LoggerFactory.getILoggerFactory();
    context.getLogger(org.slf4j.Logger.ROOT_LOGGER_NAME).detachAndStopAllAppenders();
    AppenderBase<ILoggingEvent> told =
        new AppenderBase<>() {
          @Override
          protected void append(ILoggingEvent line) {
            String level = line.getLevel() == Level.WARN ? "warning" : line.getLevel().levelStr;
            String text = line.getFormattedMessage();
            if (line.getThrowableProxy() != null) {
              text += " " + line.getThrowableProxy().getMessage();
            }
            tell(reply("log", level.toLowerCase(java.util.Locale.ROOT), "text", text));
          }
        };
    told.setContext(context);
    told.start();
    Logger logger = context.getLogger("redisrl");
    logger.setLevel(Level.DEBUG);
    logger.addAppender(told);
  }

  /** How late this process' timers are. */
  private static void measure() {
    long step = TimeUnit.MILLISECONDS.toNanos(10);
    while (true) {
      long began = System.nanoTime();
      try {
        TimeUnit.NANOSECONDS.sleep(step);
      } catch (InterruptedException error) {
        return;
      }
      LAGS.add(new Lag(System.nanoTime(), System.nanoTime() - began - step));
      if (LAGS.size() > 20_000) {
        LAGS.removeFirst();
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    kind = arguments[0];
    System.setOut(System.err); // Nothing but replies.
    listen();
    thread(Main::measure);
    boolean calls = kind.equals("lettuce") || kind.equals("jedis");
    String can = calls ? kind.equals("jedis") ? CAN + " pool" : CAN : Apps.can(kind);
    tell(reply("can", Arrays.asList(can.split(" "))));
    var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      Request r = JSON.readValue(line, Request.class);
      Thread caller =
          new Thread(
              () -> {
                Map<String, Object> told = handled(r);
                UNDER_WAY.remove(r.id);
                told.put("id", r.id);
                tell(told);
              });
      UNDER_WAY.put(r.id, caller);
      caller.start();
    }
    System.exit(0);
  }
}
