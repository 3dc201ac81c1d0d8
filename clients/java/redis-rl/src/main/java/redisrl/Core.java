package redisrl;

import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redisrl.ServerException.Meaning;

/** Sends commands: within a deadline, at most once, in the mode that the server has. */
final class Core {
  /** For how long calls fail at once after the server was unavailable. */
  static final Duration PAUSE = Duration.ofSeconds(1);

  /** How often the server is asked whether it has something better. */
  static final Duration PROBE = Duration.ofMinutes(1);

  private static final Logger LOG = LoggerFactory.getLogger(Limiter.class);
  private static final Set<Meaning> ANSWERS = Set.of(Meaning.PERMANENT, Meaning.AGAIN);
  private static final Pattern VERSION = Pattern.compile("-- Version (\\d+)");
  // How much later than planned a timer runs in a process that is busy, and how often a call that
  // waits on looks again; then for how long it does at most.
  private static final long LATE = MILLISECONDS.toNanos(20);
  private static final long LONGEST_EXTENSION = Duration.ofSeconds(1).toNanos();
  // For how long it looks once more in a process that was stopped for longer than that.
  private static final long LAST_LOOK = MILLISECONDS.toNanos(100);
  // How long after its last failure a server still counts as unavailable.
  private static final long FORGOTTEN = Duration.ofSeconds(10).toNanos();
  // The pause before a call is sent again whose keys are between two nodes.
  private static final long FIRST_PAUSE = MILLISECONDS.toNanos(2);
  private static final long LONGEST_PAUSE = MILLISECONDS.toNanos(100);

  /** Deadlines, renewals and waits of all limiters. What it runs is short. */
  static final ScheduledThreadPoolExecutor TIMER = timer();

  private static ScheduledThreadPoolExecutor timer() {
    ScheduledThreadPoolExecutor timer =
        new ScheduledThreadPoolExecutor(1, work -> thread(work, "redis-rl"));
    timer.setRemoveOnCancelPolicy(true);
    return timer;
  }

  /** A thread that keeps no process alive. */
  static Thread thread(Runnable work, String name) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    return thread;
  }

  static void after(long nanos, Runnable work) {
    TIMER.schedule(work, nanos, NANOSECONDS);
  }

  private final Transport transport;
  private final Mode chosen;
  private final String name;
  private final Map<String, Server> servers = new ConcurrentHashMap<>();

  Core(Transport transport, Mode chosen, String name) {
    this.transport = transport;
    this.chosen = chosen;
    this.name = name;
  }

  /** A server, or a node of a cluster, as this limiter sees it. */
  private static final class Server {
    final String name;
    volatile Mode mode = Mode.AUTO;
    volatile boolean lacksReadOnly;
    volatile long answeredAt;
    volatile long probeAt;
    // How many connections there had been when it was last asked what it has.
    volatile long connections;
    // When the latest of the calls began that were answered.
    private long answeredFrom = System.nanoTime();
    private @Nullable CompletableFuture<Boolean> loading;
    private boolean isOpen;
    private boolean isProbed;
    private long openUntil;
    private @Nullable String reason;

    Server(String name) {
      this.name = name;
    }

    /**
     * Whether a call may be sent: after a failure one a second, to see whether the server is there
     * again.
     */
    synchronized @Nullable String refusal() {
      if (!isOpen) {
        return null;
      }
      if (isProbed || System.nanoTime() - openUntil < 0) {
        return reason;
      }
      isProbed = true;
      return null;
    }

    /** A call was not sent that may have been the probe: the next one is. */
    synchronized void unsent() {
      isProbed = false;
    }

    /** One that nobody has asked for a while, such as a node that has left, does not count. */
    synchronized boolean isAway() {
      return isOpen && System.nanoTime() - openUntil < FORGOTTEN;
    }

    synchronized void answered(long began) {
      answeredAt = System.nanoTime();
      answeredFrom = began - answeredFrom > 0 ? began : answeredFrom;
      if (isOpen) {
        isOpen = isProbed = false;
        probeAt = answeredAt; // It may be another server now.
      }
    }

    /** Whether a later call was answered: a failure of this one says nothing of the server. */
    synchronized boolean isOld(long began) {
      return answeredFrom - began > 0;
    }

    void probed(long connections) {
      this.connections = connections;
      probeAt = System.nanoTime() + PROBE.toNanos();
    }

    synchronized void failed(String why) {
      isOpen = true;
      isProbed = false;
      openUntil = System.nanoTime() + PAUSE.toNanos();
      reason = why;
    }
  }

  /** A call under way. */
  private record Call(
      Command command,
      Server server,
      long began,
      long timeout,
      Consumer<@Nullable Object> late,
      CompletableFuture<@Nullable Object> result) {
    String key() {
      return command.keys().get(0);
    }

    long left() {
      return timeout - (System.nanoTime() - began);
    }

    /** What gives back does so for nobody, too. */
    boolean isGivenUp() {
      return result.isDone() && !command.givesBack();
    }
  }

  /** The mode that is known; of several servers the one with the fewest needs. */
  Mode mode() {
    if (chosen != Mode.AUTO) {
      return chosen;
    }
    return servers.values().stream()
        .map(server -> server.mode)
        .max(Mode::compareTo)
        .orElse(Mode.AUTO);
  }

  /** Whether no server counts as unavailable. */
  boolean isAvailable() {
    return servers.values().stream().noneMatch(Server::isAway);
  }

  /** Connects and finds out the mode, so that the first call does not wait for that. */
  void warm() {
    peek(server(""), Mode.MODULE).exceptionally(error -> null);
  }

  /** The reply. {@code late} is called with a reply that comes when the call was given up. */
  CompletableFuture<@Nullable Object> ask(
      Command command, Duration timeout, Consumer<@Nullable Object> late) {
    Server server = server(command.keys().get(0));
    String refusal = server.refusal();
    if (refusal != null) {
      return CompletableFuture.failedFuture(new UnavailableException(refusal, null, false));
    }
    long most = Math.max(timeout.toNanos(), MILLISECONDS.toNanos(1));
    Call call = new Call(command, server, System.nanoTime(), most, late, new CompletableFuture<>());
    try {
      attempt(call, FIRST_PAUSE);
    } catch (RuntimeException error) {
      server.unsent(); // Such as a key that is no text, which says nothing of the server.
      throw error;
    }
    watch(call, call.timeout, false);
    return call.result;
  }

  private Server server(String key) {
    return servers.computeIfAbsent(transport.server(key), Server::new);
  }

  private void attempt(Call call, long pause) {
    inMode(call)
        .whenComplete(
            (reply, thrown) -> {
              Throwable error = thrown == null ? null : cause(thrown);
              if (error == null) {
                call.server.answered(call.began);
                if (!call.result.complete(reply)) {
                  call.late.accept(reply);
                }
                return;
              }
              if (error instanceof UnavailableException) {
                return; // It was given up before it was sent, which says nothing of the server.
              }
              if (!(error instanceof ServerException line)) {
                fail(call, "no answer: " + told(error), error);
                return;
              }
              switch (line.meaning(transport.isCluster())) {
                case REFUSES -> fail(call, line.line(), line);
                case AGAIN -> again(call, line, pause);
                default -> {
                  call.server.answered(call.began);
                  call.result.completeExceptionally(line);
                }
              }
            });
  }

  private void fail(Call call, String why, Throwable cause) {
    boolean isSaid = cause instanceof ServerException;
    if (isSaid || !call.server.isOld(call.began)) {
      call.server.failed(why);
      transport.renew(call.server.name);
    }
    call.result.completeExceptionally(new UnavailableException(why, cause, !isSaid));
  }

  /**
   * Clients say that there is no connection. Why is said by its cause, of a cluster a suppressed
   * one.
   */
  private static String told(Throwable error) {
    Throwable first = error;
    for (Throwable next = error; next != null; next = before(next)) {
      first = next;
    }
    return first == error ? error.toString() : error + ": " + first.getMessage();
  }

  private static @Nullable Throwable before(Throwable error) {
    Throwable[] beside = error.getSuppressed();
    return error.getCause() == null && beside.length > 0 ? beside[0] : error.getCause();
  }

  /** An error of this type among those that have led to another. */
  static <E extends Throwable> @Nullable E found(Throwable error, Class<E> type) {
    for (Throwable next = error; next != null; next = before(next)) {
      if (type.isInstance(next)) {
        return type.cast(next);
      }
    }
    return null;
  }

  /** Nothing was counted: once more, as long as there is time. */
  private void again(Call call, ServerException line, long pause) {
    call.server.answered(call.began);
    if (call.left() <= pause) {
      call.result.completeExceptionally(new UnavailableException(line.line(), line, false));
      return;
    }
    after(
        ThreadLocalRandom.current().nextLong(pause / 2, pause),
        () -> attempt(call, Math.min(2 * pause, LONGEST_PAUSE)));
  }

  /**
   * Gives a call up at its deadline. A deadline judges the server and not this process: where the
   * timer was late itself, or the server has answered others since, the call waits on, for a second
   * at most.
   */
  private void watch(Call call, long wait, boolean isLast) {
    long planned = System.nanoTime() + wait;
    var timer =
        TIMER.schedule(
            () -> {
              long now = System.nanoTime();
              boolean isBusy = now - planned > LATE;
              boolean answers = call.server.answeredAt - (call.began + call.timeout / 2) > 0;
              if ((isBusy || answers) && now - call.began < call.timeout + LONGEST_EXTENSION) {
                watch(call, LATE, isLast);
              } else if (isBusy && !isLast) {
                watch(call, LAST_LOOK, true);
              } else if (!call.result.isDone()) {
                fail(
                    call,
                    "no answer within " + NANOSECONDS.toMillis(call.timeout) + " ms",
                    new TimeoutException());
              }
            },
            wait,
            NANOSECONDS);
    call.result.whenComplete((reply, error) -> timer.cancel(false));
  }

  private CompletableFuture<@Nullable Object> inMode(Call call) {
    if (chosen != Mode.AUTO) {
      return kept(chosen, call);
    }
    Mode known = call.server.mode;
    if (known == Mode.AUTO) {
      return found(Mode.MODULE, call);
    }
    probeIfDue(call.server, call.key());
    return orElse(in(known, call), line -> lacks(line) ? found(Mode.MODULE, call) : null);
  }

  /** In this mode, or in the next that the server has. */
  private CompletableFuture<@Nullable Object> found(Mode mode, Call call) {
    CompletableFuture<@Nullable Object> tried = kept(mode, call);
    if (mode == Mode.SCRIPT) {
      return tried;
    }
    Mode next = mode == Mode.MODULE ? Mode.FUNCTIONS : Mode.SCRIPT;
    return orElse(
        tried,
        line ->
            lacks(line) || mode == Mode.FUNCTIONS && isForbidden(line) ? found(next, call) : null);
  }

  private CompletableFuture<@Nullable Object> in(Mode mode, Call call) {
    return switch (mode) {
      case FUNCTIONS ->
          orElse(
              sent(mode, call, false),
              line ->
                  lacks(line) && !line.isUnknownCommand()
                      ? loaded(call.key()).thenCompose(loaded -> sent(mode, call, false))
                      : null);
      case SCRIPT ->
          orElse(
              sent(mode, call, false),
              line -> {
                if (!lacks(line)) {
                  return null;
                }
                call.server.lacksReadOnly |= line.isUnknownCommand() && call.command.reads();
                return sent(mode, call, true);
              });
      default -> sent(mode, call, false);
    };
  }

  /**
   * When the function library is loaded at the node of a key, by one call for all that lack it
   * meanwhile. Refused where it is there by now, or where it may not be loaded: the call itself
   * then says which.
   */
  private CompletableFuture<Boolean> loaded(String key) {
    Server node = server(key); // It may not have been known when the call began.
    synchronized (node) {
      CompletableFuture<Boolean> load = node.loading;
      if (load == null || load.isDone()) {
        load =
            transport
                .send(key, List.of("FUNCTION", "LOAD", Command.LIBRARY), () -> false)
                .handle((reply, error) -> error == null);
        node.loading = load;
      }
      return load;
    }
  }

  private CompletableFuture<@Nullable Object> sent(Mode mode, Call call, boolean whole) {
    List<String> words = call.command.sent(mode, whole, !call.server.lacksReadOnly);
    return transport.send(call.key(), words, call::isGivenUp);
  }

  static UnavailableException givenUp() {
    return new UnavailableException("the call was given up before it was sent", null, false);
  }

  /**
   * In this mode, which is remembered if the server has answered in it. An error of its own says
   * that it is there, too.
   */
  private CompletableFuture<@Nullable Object> kept(Mode mode, Call call) {
    Server server = call.server;
    return in(mode, call)
        .whenComplete(
            (reply, error) -> {
              if (server.mode == mode || error != null && !isAnswer(cause(error))) {
                return;
              }
              server.mode = mode;
              server.probed(transport.connections());
              String node = server.name.isEmpty() ? "" : " " + server.name;
              LOG.info("limiter {}: the server{} is called in mode {}", name, node, mode);
              if (mode == Mode.FUNCTIONS) {
                replaceOlder(call.key());
              }
            });
  }

  private boolean isAnswer(Throwable error) {
    return error instanceof ServerException line
        && !isForbidden(line)
        && ANSWERS.contains(line.meaning(transport.isCluster()));
  }

  /** Asks whether the server has something better by now. No call waits for that. */
  private void probeIfDue(Server server, String key) {
    long connections = transport.connections();
    boolean isDue = connections != server.connections || System.nanoTime() - server.probeAt > 0;
    if (server.mode != Mode.MODULE && isDue) {
      server.probed(connections);
      for (Mode better :
          server.mode == Mode.SCRIPT
              ? List.of(Mode.FUNCTIONS, Mode.MODULE)
              : List.of(Mode.MODULE)) {
        peek(server, better).exceptionally(error -> null);
      }
      if (server.mode == Mode.FUNCTIONS) {
        replaceOlder(key);
      }
    }
  }

  private CompletableFuture<@Nullable Object> peek(Server server, Mode mode) {
    Command looking = Command.peek("rl:probe", Rule.sliding("1/second").cost(0));
    return kept(mode, new Call(looking, server, 0, 0, reply -> {}, new CompletableFuture<>()));
  }

  /**
   * Replaces a function library of ours that is older than the one of this package; never a newer
   * one.
   */
  private void replaceOlder(String key) {
    transport
        .send(key, List.of("FUNCTION", "LIST", "LIBRARYNAME", "rl", "WITHCODE"), () -> false)
        .thenCompose(
            reply -> {
              String code = String.valueOf(reply);
              // Somebody else's library of that name is left alone.
              if (!code.contains("redis-rl") || version(code) >= version(Command.LIBRARY)) {
                return CompletableFuture.<@Nullable Object>completedFuture(null);
              }
              LOG.info("limiter {}: an older function library is replaced", name);
              return transport.send(
                  key, List.of("FUNCTION", "LOAD", "REPLACE", Command.LIBRARY), () -> false);
            })
        .exceptionally(
            error -> {
              LOG.debug("limiter {}: the function library was not looked at", name, error);
              return null;
            });
  }

  private static int version(String code) {
    var found = VERSION.matcher(code);
    return found.find() ? Integer.parseInt(found.group(1)) : 0;
  }

  private boolean lacks(ServerException line) {
    return line.meaning(transport.isCluster()) == Meaning.MISSING;
  }

  private static boolean isForbidden(ServerException line) {
    return line.line().startsWith("NOPERM");
  }

  /** The future, or where it fails with an error line what is made of that, if anything. */
  static <T extends @Nullable Object> CompletableFuture<T> orElse(
      CompletableFuture<T> future,
      Function<ServerException, @Nullable CompletableFuture<T>> other) {
    return future
        .handle(
            (reply, thrown) -> {
              CompletableFuture<T> instead =
                  thrown != null && cause(thrown) instanceof ServerException line
                      ? other.apply(line)
                      : null;
              return instead == null ? future : instead;
            })
        .thenCompose(Function.identity());
  }

  static Throwable cause(Throwable thrown) {
    return thrown instanceof CompletionException && thrown.getCause() != null
        ? thrown.getCause()
        : thrown;
  }
}
