package redisrl;

import static redisrl.Rates.check;
import static redisrl.Rates.given;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.function.Consumer;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Decides on requests, by a server or a cluster. It is for use by many threads.
 *
 * <p>No call takes longer than the limiter's time-out. After a failure that means that the server
 * is unavailable, calls fail at once for a second; then one of them probes the server. A call whose
 * reply was lost is not sent again. A denial is no exception. Calls throw {@link
 * UnavailableException}, {@link IllegalArgumentException} for what cannot be asked, and {@link
 * ServerException} for what the server has said against a call.
 *
 * <p>Each call has a form that returns a future. Cancelling that leaves the call, which goes on; a
 * turn or a place that it takes is given back. What follows such a future runs in a thread of the
 * connection, and must not block.
 */
public final class Limiter implements AutoCloseable {
  private static final Logger LOG = LoggerFactory.getLogger(Limiter.class);

  /** For how long units are reserved unless told otherwise. */
  static final Duration LEASE = Duration.ofMinutes(1);

  private final Core core;
  private final @Nullable Limiter whole;
  private final Transport transport;
  private final Mode chosen;
  final Denials denials;
  final String prefix;
  final Duration timeout;
  final String name;
  private final Consumer<Event> listener;
  private final Waiting waiting = new Waiting(this);
  private volatile boolean isClosed;

  private Limiter(Builder builder, @Nullable Limiter whole) {
    this.core = new Core(builder.transport, builder.mode, builder.name);
    this.whole = whole;
    this.transport = builder.transport;
    this.chosen = builder.mode;
    this.denials = whole == null ? new Denials() : whole.denials;
    this.prefix = builder.prefix;
    this.timeout = builder.timeout;
    this.name = builder.name;
    this.listener = builder.listener;
  }

  /** A part of the limiter with a time-out and a breaker of its own, for a guard. */
  Limiter within(Duration timeout) {
    Builder part = new Builder(transport).prefix(prefix).mode(chosen).timeout(timeout);
    return new Limiter(part.name(name).listener(listener), this);
  }

  /** A limiter on a transport, which stays yours. */
  public static Builder builder(Transport transport) {
    return new Builder(given(transport, "the transport"));
  }

  /** Options of a limiter. */
  public static final class Builder {
    private final Transport transport;
    private String prefix = "";
    private Mode mode = Mode.AUTO;
    private Duration timeout = Duration.ofSeconds(1);
    private String name = "redis-rl";
    private Consumer<Event> listener = event -> {};

    private Builder(Transport transport) {
      this.transport = transport;
    }

    /** Put before every key; nothing unless given. */
    public Builder prefix(String prefix) {
      this.prefix = given(prefix, "the prefix");
      return this;
    }

    /** How the server is called: AUTO unless given. */
    public Builder mode(Mode mode) {
      this.mode = given(mode, "the mode");
      return this;
    }

    /** The longest that a call may take: a second unless given. */
    public Builder timeout(Duration timeout) {
      check(
          given(timeout, "the time-out").compareTo(Duration.ofMillis(1)) >= 0,
          "the time-out must be at least a millisecond, not %s",
          timeout);
      this.timeout = atMostACentury(timeout);
      return this;
    }

    /** What the limiter is called in log lines and events. */
    public Builder name(String name) {
      this.name = given(name, "the name");
      return this;
    }

    /** Called after every call. It must not block; what it throws is logged. */
    public Builder listener(Consumer<Event> listener) {
      this.listener = given(listener, "the listener");
      return this;
    }

    public Limiter build() {
      Limiter limiter = new Limiter(this, null);
      limiter.core.warm();
      return limiter;
    }
  }

  /**
   * How the server is called; AUTO as long as that is not known. In a cluster it is that of the
   * node which has the least.
   */
  public Mode mode() {
    return core.mode();
  }

  /** Decides on a request, and counts it if it fits. */
  public Decision hit(String key, Rule rule) {
    return joined(hitAsync(key, rule));
  }

  /** See {@link #hit}. */
  public CompletableFuture<Decision> hitAsync(String key, Rule rule) {
    return left(decided("hit", List.of(new Keyed(key, rule))));
  }

  /** What hit would answer; changes nothing. With a cost of 0 it shows the state as it is. */
  public Decision peek(String key, Rule rule) {
    return joined(peekAsync(key, rule));
  }

  /** See {@link #peek}. */
  public CompletableFuture<Decision> peekAsync(String key, Rule rule) {
    return left(decided("peek", List.of(new Keyed(key, rule))));
  }

  /**
   * One decision over 1 to 64 keys: each rule has room, or nothing is counted anywhere. A rule with
   * a cost of 0 is checked, and counts nothing. In a cluster the keys have to lie in one slot, by a
   * hash tag such as {org7}.
   */
  public Decision all(Keyed... rules) {
    return joined(allAsync(rules));
  }

  /** See {@link #all}. */
  public CompletableFuture<Decision> allAsync(Keyed... rules) {
    List<Keyed> asked = list(rules, "a rule at a key");
    check(asked.stream().noneMatch(Keyed::isHeld), "units are reserved by reserveAll");
    return left(decided("all", asked));
  }

  /**
   * Asks for a turn: a request that does not fit now but will within a time, an hour at most, is
   * counted at that time. The decision says how long to wait ({@link Decision#waitFor}) and when
   * the turn is ({@link Decision#at}), with which {@link #refund(String, Rule.Counted, Instant)}
   * gives it back.
   */
  public Decision turn(String key, Rule.Queued rule, Duration within) {
    Keyed at = new Keyed(key, (Rule) rule);
    Consumer<Decision> back = decision -> giveBack(List.of(at), decision);
    return joined(turned(at, within, timeout, back), back);
  }

  /** See {@link #turn}. */
  public CompletableFuture<Decision> turnAsync(String key, Rule.Queued rule, Duration within) {
    return left(turned(new Keyed(key, (Rule) rule), within, timeout, decision -> {}));
  }

  /**
   * Waits until the request is allowed, at most for a time. By a sliding rule or a throttle it asks
   * for a turn, sleeps until then, and returns: one call each, in order. It returns the denial at
   * once where the wait is longer. While the server is unavailable it tries again each second. (The
   * other packages call this wait, which every object of Java has already.)
   */
  public Decision await(String key, Rule rule, Duration longest) {
    return joined(waiting.begin(key, rule, longest));
  }

  /** See {@link #await}. A future that is cancelled gives back its turn or its place. */
  public CompletableFuture<Decision> awaitAsync(String key, Rule rule, Duration longest) {
    return waiting.begin(key, rule, longest).result;
  }

  /** Gives back what the same rule has taken: its cost, of the newest units. */
  public Refund refund(String key, Rule.Counted<?> rule) {
    return joined(refundAsync(key, rule, null));
  }

  /** See {@link #refund(String, Rule.Counted)}. */
  public CompletableFuture<Refund> refundAsync(String key, Rule.Counted<?> rule) {
    return refundAsync(key, rule, null);
  }

  /**
   * Gives back what the same rule has taken at a time, that of the decision: of a sliding rule
   * units of that moment, of a fixed one nothing where that window has ended since, of a throttle
   * the turn that was given last.
   */
  public Refund refund(String key, Rule.Counted<?> rule, Instant at) {
    return joined(refundAsync(key, rule, given(at, "the time of a refund")));
  }

  CompletableFuture<Refund> refundAsync(String key, Rule rule, @Nullable Instant at) {
    Rule now = given(rule, "a rule").at(Instant.now());
    return change("refund", key, whole -> Command.refund(whole, now, at))
        .thenApply(Replies::refund);
  }

  /**
   * Gives the key its whole quota back, and with fixed rules their counters and reservations.
   * Returns how many keys went.
   */
  public long reset(String key, Rule... rules) {
    return joined(resetAsync(key, rules));
  }

  /** See {@link #reset}. */
  public CompletableFuture<Long> resetAsync(String key, Rule... rules) {
    Instant now = Instant.now();
    List<Rule> all = list(rules, "a rule").stream().map(rule -> rule.at(now)).toList();
    return change("reset", key, whole -> Command.reset(whole, all)).thenApply(Replies::number);
  }

  /**
   * Takes or renews a lease. The decision's holder is who holds it: the rule's, or a random name.
   */
  public Decision acquire(String key, Rule.Lease lease) {
    List<Keyed> rules = List.of(new Keyed(key, given(lease, "a lease").held()));
    // Who has named the holder can release it.
    Consumer<Decision> back =
        decision -> {
          if (lease.holder == null) {
            giveBack(rules, decision);
          }
        };
    return joined(decided("hit", rules, timeout, back), back);
  }

  /** Ends leases, and returns how many were still held. Releasing twice is no error. */
  public long release(String key, String... holders) {
    return joined(releaseAsync(key, holders));
  }

  CompletableFuture<Long> releaseAsync(String key, String... holders) {
    list(holders, "a holder");
    return change("release", key, whole -> Command.release(whole, holders))
        .thenApply(Replies::number)
        .whenComplete((count, error) -> waiting.wake(key));
  }

  /**
   * Takes a lease for a block of work, which renews itself and ends with {@link Held#close}. It
   * waits so long for a place; zero does not wait.
   *
   * @throws DeniedException if no place was free
   */
  public Held hold(String key, Rule.Lease lease, Duration longest) {
    Waiting.Waiter waiter = waiting.begin(key, given(lease, "a lease"), longest);
    return new Held(this, waiter, granted(joined(waiter)));
  }

  /**
   * Reserves units for work whose cost is known when it is over, for a lease; the reservation
   * renews itself until it is settled.
   *
   * @throws DeniedException if they do not fit
   */
  public Reservation reserve(String key, Rule.Windowed<?> rule, long units, Duration lease) {
    return reserved("hit", lease, List.of(Keyed.reserved(key, rule, units)));
  }

  /** {@link #reserve} for a minute. */
  public Reservation reserve(String key, Rule.Windowed<?> rule, long units) {
    return reserve(key, rule, units, LEASE);
  }

  /** One decision over several keys, of which some are {@link Keyed#reserved}. */
  public Reservation reserveAll(Duration lease, Keyed... rules) {
    return reserved("all", lease, list(rules, "a rule at a key"));
  }

  private Reservation reserved(String call, Duration lease, List<Keyed> rules) {
    List<Keyed> held = Keyed.held(rules, lease);
    long began = System.nanoTime();
    Consumer<Decision> back = decision -> giveBack(held, decision);
    Decision decision = granted(joined(decided(call, held, timeout, back), back));
    return new Reservation(this, decision.asked(held), lease, decision, began);
  }

  private static Decision granted(Decision decision) {
    if (!decision.allowed()) {
      throw new DeniedException(decision);
    }
    return decision;
  }

  private static <T> List<T> list(T[] values, String what) {
    for (T value : given(values, what)) {
      given(value, what);
    }
    return List.of(values);
  }

  /**
   * Ends the limiter: calls fail from now on, and nothing is renewed any more. The transport stays
   * open.
   */
  @Override
  public void close() {
    isClosed = true;
  }

  boolean isClosed() {
    return isClosed || whole != null && whole.isClosed();
  }

  boolean isAvailable() {
    return core.isAvailable();
  }

  /** Asks for a turn. {@code late} gets a decision that comes when the call was given up. */
  CompletableFuture<Decision> turned(
      Keyed at, Duration within, Duration timeout, Consumer<Decision> late) {
    Rule.Queued queued = (Rule.Queued) at.rule();
    Command command = Command.turn(prefix + at.key(), queued, given(within, "within"));
    var turn = asked(command, timeout, reply -> Replies.rule(at.rule(), reply, true), late);
    return told("turn", List.of(at.key()), turn);
  }

  /**
   * A decision, of a hit, a peek or an all. {@code late} gets one that comes when the call was
   * given up.
   */
  CompletableFuture<Decision> decided(
      String call, List<Keyed> given, Duration timeout, Consumer<Decision> late) {
    List<Keyed> rules = Keyed.at(given, Instant.now());
    long began = System.nanoTime();
    CompletableFuture<Decision> decided = once(call, rules, timeout, late);
    Instant end = Keyed.earliestEnd(rules);
    if (!end.equals(Instant.MAX)) {
      // On the server's clock, which is ahead, the window may be over.
      decided =
          Core.orElse(
              decided,
              line ->
                  line.hasEnded()
                      ? once(
                          call,
                          Keyed.at(rules, end),
                          timeout.minusNanos(System.nanoTime() - began),
                          late)
                      : null);
    }
    return told(call, Keyed.keys(rules), decided);
  }

  CompletableFuture<Decision> decided(String call, List<Keyed> rules) {
    return decided(call, rules, timeout, decision -> {});
  }

  private CompletableFuture<Decision> once(
      String call, List<Keyed> rules, Duration timeout, Consumer<Decision> late) {
    if (call.equals("all")) {
      return asked(Command.all(prefix, rules), timeout, reply -> Replies.all(rules, reply), late);
    }
    Rule rule = rules.get(0).rule();
    String key = prefix + rules.get(0).key();
    Command command = call.equals("peek") ? Command.peek(key, rule) : Command.hit(key, rule);
    return asked(command, timeout, reply -> Replies.rule(rule, reply, false), late);
  }

  private CompletableFuture<Decision> asked(
      Command command,
      Duration timeout,
      Function<@Nullable Object, Decision> read,
      Consumer<Decision> late) {
    return sent(command, timeout, reply -> late.accept(read.apply(reply))).thenApply(read);
  }

  /** What gives back goes on when the limiter is closed. */
  private CompletableFuture<@Nullable Object> sent(
      Command command, Duration timeout, Consumer<@Nullable Object> late) {
    return isClosed() && !command.givesBack()
        ? CompletableFuture.failedFuture(new IllegalStateException("the limiter is closed"))
        : core.ask(command, timeout, late);
  }

  private CompletableFuture<@Nullable Object> change(
      String call, String key, Function<String, Command> command) {
    Command asked = command.apply(prefix + given(key, "a key"));
    denials.forget(key);
    var changed =
        sent(asked, timeout, reply -> {}).whenComplete((reply, error) -> denials.forget(key));
    return told(call, List.of(key), changed);
  }

  private <T extends @Nullable Object> CompletableFuture<T> told(
      String call, List<String> keys, CompletableFuture<T> ends) {
    long began = System.nanoTime();
    return ends.whenComplete(
        (reply, error) ->
            tell(call, keys, began, reply instanceof Decision decision ? decision : null, error));
  }

  void tell(
      String call,
      List<String> keys,
      long began,
      @Nullable Decision decision,
      @Nullable Throwable error) {
    Throwable cause = error == null ? null : Core.cause(error);
    Duration took = Duration.ofNanos(System.nanoTime() - began);
    try {
      listener.accept(new Event(name, call, keys, took, decision, cause));
    } catch (RuntimeException failure) {
      // What was decided is decided, and a place that was taken has to be given back.
      LOG.warn("limiter {}: its listener has failed", name, failure);
    }
  }

  CompletableFuture<Long> settle(Keyed held, long actual) {
    return change("settle", held.key(), whole -> Command.settle(whole, held.rule(), actual))
        .thenApply(Replies::settlement);
  }

  /**
   * One more call of what is held. {@code late} is called where it has taken something for nobody.
   */
  CompletableFuture<Decision> renew(String call, List<Keyed> rules, Consumer<Decision> late) {
    return told("renew", Keyed.keys(rules), once(call, rules, timeout, late));
  }

  /**
   * Gives back what a decision has taken for nobody: the leases and reservations of a call, or its
   * turn. An error is logged: what is held ends by itself.
   */
  void giveBack(List<Keyed> rules, Decision decision) {
    if (!decision.allowed()) {
      return;
    }
    for (Keyed each : decision.asked(rules)) {
      CompletableFuture<?> given = CompletableFuture.completedFuture(0L);
      if (each.rule() instanceof Rule.Lease lease) {
        given = releaseAsync(each.key(), Objects.requireNonNull(lease.holder));
      } else if (each.isHeld()) {
        given = settle(each, 0);
      } else if (each.rule() instanceof Rule.Queued && rules.size() == 1) {
        given = refundAsync(each.key(), each.rule(), decision.at());
      }
      given.whenComplete(
          (count, error) -> {
            if (error != null) {
              LOG.warn(
                  "limiter {}: what was taken at {} could not be given back: {}",
                  name,
                  each.key(),
                  String.valueOf(error));
            }
          });
    }
  }

  /** The nanoseconds of three are more than a long holds. */
  static Duration atMostACentury(Duration time) {
    Duration century = Duration.ofDays(36_500);
    return time.compareTo(century) < 0 ? time : century;
  }

  /** A future that can be cancelled without a trace in the call. */
  static CompletableFuture<Decision> left(CompletableFuture<Decision> call) {
    return call.thenApply(Function.identity());
  }

  /** Waits for a call. What it takes for a caller that leaves is given back. */
  private static Decision joined(CompletableFuture<Decision> call, Consumer<Decision> back) {
    try {
      return joined(left(call));
    } catch (CancellationException error) {
      call.thenAccept(back);
      throw error;
    }
  }

  private Decision joined(Waiting.Waiter waiter) {
    try {
      return joined(waiter.result);
    } catch (CancellationException error) {
      waiter.result.thenAccept(decision -> giveBack(List.of(waiter.at), decision));
      throw error;
    }
  }

  /** Waits for a call. An interrupted thread leaves it, also where the reply is there already. */
  static <T> T joined(CompletableFuture<T> call) {
    try {
      if (Thread.interrupted()) {
        throw new InterruptedException();
      }
      return call.get();
    } catch (InterruptedException error) {
      call.cancel(false);
      Thread.currentThread().interrupt();
      throw new CancellationException("interrupted");
    } catch (ExecutionException error) {
      Throwable cause = Core.cause(Objects.requireNonNullElse(error.getCause(), error));
      if (cause instanceof UnavailableException || cause instanceof ServerException) {
        cause.fillInStackTrace(); // Where the caller is, and not a thread of the connection.
      }
      throw cause instanceof RuntimeException known ? known : new IllegalStateException(cause);
    }
  }
}
