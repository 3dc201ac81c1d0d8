package redisrl;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.Objects.requireNonNull;

import io.lettuce.core.AbstractRedisClient;
import io.lettuce.core.ClientOptions;
import io.lettuce.core.ClientOptions.DisconnectedBehavior;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionException;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisURI;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions.RefreshTrigger;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.NestedMultiOutput;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * A way to the server by Lettuce, on a connection of its own: so that a command is not sent again
 * when the connection breaks, which Lettuce does otherwise, and a server that hangs is left.
 */
public final class LettuceTransport implements Transport {
  /** How old an attempt to connect is that may be given up for another. */
  private static final long ATTEMPT = Duration.ofSeconds(1).toNanos();

  private static final int TRIES = 20;
  private static final long PAUSE = Duration.ofMillis(20).toNanos();

  /**
   * Calls have their deadline elsewhere. Lettuce's would end those whose replies have arrived while
   * the process was stopped.
   */
  private static final TimeoutOptions NO_TIMEOUT =
      TimeoutOptions.builder().timeoutCommands(false).build();

  private final Supplier<CompletableFuture<? extends StatefulConnection<String, String>>> connector;
  private final @Nullable RedisClusterClient cluster;
  private final @Nullable AbstractRedisClient own;
  private final AtomicLong connections = new AtomicLong();
  private @Nullable CompletableFuture<StatefulConnection<String, String>> current;
  private long begun;
  private volatile long answered;
  private volatile @Nullable Throwable refusal; // What the server said against a connection last.
  private long refreshed = System.nanoTime();
  private boolean isClosed;

  private LettuceTransport(
      Supplier<CompletableFuture<? extends StatefulConnection<String, String>>> connector,
      @Nullable AbstractRedisClient own) {
    this.connector = connector;
    this.cluster = own instanceof RedisClusterClient nodes ? nodes : null;
    this.own = own;
  }

  /**
   * On a client of its own, which ends with the transport. The address may be that of sentinels.
   */
  public static LettuceTransport create(RedisURI uri) {
    RedisURI own = impatient(uri);
    RedisClient client = RedisClient.create(own);
    client.setOptions(
        ClientOptions.builder()
            .autoReconnect(false)
            .disconnectedBehavior(DisconnectedBehavior.REJECT_COMMANDS)
            .timeoutOptions(NO_TIMEOUT)
            .build());
    return new LettuceTransport(
        () -> client.connectAsync(StringCodec.UTF8, own).toCompletableFuture(), client);
  }

  /** With less than the minute that a connection to a server that hangs takes otherwise. */
  private static RedisURI impatient(RedisURI uri) {
    RedisURI.Builder copy = RedisURI.builder(uri).withTimeout(Duration.ofSeconds(2));
    // Which Lettuce's builder leaves out.
    uri.getSentinels().forEach(copy::withSentinel);
    if (uri.getSentinelMasterId() != null) {
      copy.withSentinelMasterId(uri.getSentinelMasterId());
    }
    return copy.build();
  }

  /**
   * On a connection of its own from your client, with the client's options. The client stays yours.
   */
  public static LettuceTransport of(RedisClient client) {
    // Lettuce has no other way to the client's own address than to connect, and waits for that in a
    // thread.
    return new LettuceTransport(
        () ->
            CompletableFuture.supplyAsync(
                () -> client.connect(StringCodec.UTF8),
                work -> Core.thread(work, "redis-rl-connect").start()),
        null);
  }

  /** On a client of its own, with the nodes, the resources and the options of yours. */
  public static LettuceTransport of(RedisClusterClient client) {
    List<RedisURI> nodes =
        client.getPartitions().stream().map(node -> impatient(node.getUri())).toList();
    return cluster(
        RedisClusterClient.create(client.getResources(), nodes),
        client.getOptions() instanceof ClusterClientOptions options
            ? options.mutate()
            : ClusterClientOptions.builder());
  }

  /** On a client of its own to a cluster, of which these nodes are asked for the others. */
  public static LettuceTransport cluster(List<RedisURI> nodes) {
    return cluster(
        RedisClusterClient.create(nodes.stream().map(LettuceTransport::impatient).toList()),
        ClusterClientOptions.builder());
  }

  @SuppressWarnings("deprecation") // What takes the place of the triggers is not in Lettuce 6.
  private static LettuceTransport cluster(
      RedisClusterClient own, ClusterClientOptions.Builder options) {
    own.setOptions(
        options
            .autoReconnect(true)
            .disconnectedBehavior(DisconnectedBehavior.REJECT_COMMANDS)
            .timeoutOptions(NO_TIMEOUT)
            .topologyRefreshOptions(
                ClusterTopologyRefreshOptions.builder()
                    .enableAdaptiveRefreshTrigger(RefreshTrigger.values())
                    .adaptiveRefreshTriggersTimeout(Duration.ofSeconds(1))
                    .enablePeriodicRefresh(Duration.ofSeconds(10))
                    .build())
            .build());
    return new LettuceTransport(
        () ->
            own.refreshPartitionsAsync()
                .toCompletableFuture()
                .thenCompose(done -> own.connectAsync(StringCodec.UTF8)),
        own);
  }

  @Override
  public CompletableFuture<@Nullable Object> send(
      String key, List<String> words, BooleanSupplier isGivenUp) {
    CommandArgs<String, String> args = new CommandArgs<>(StringCodec.UTF8);
    for (String word : words.subList(1, words.size())) {
      byte[] encoded = Keys.encoded(word);
      if (word.equals(key)) {
        args.addKey(word); // By which Lettuce finds the node.
      } else {
        args.add(encoded);
      }
    }
    return connection()
        .thenCompose(
            connection ->
                args.getFirstEncodedKey() == null
                        && connection
                            instanceof StatefulRedisClusterConnection<String, String> nodes
                    ? nodes
                        .getConnectionAsync(node(key).getNodeId())
                        .thenCompose(node -> dispatched(node, words.get(0), args, isGivenUp))
                    : routed(
                        connection, words.get(0), args, isGivenUp, cluster == null ? 0 : TRIES));
  }

  /**
   * Lettuce rejects a command, and does not send it, while the connection to its node is being
   * made.
   */
  private CompletableFuture<@Nullable Object> routed(
      StatefulConnection<String, String> connection,
      String name,
      CommandArgs<String, String> args,
      BooleanSupplier isGivenUp,
      int tries) {
    return dispatched(connection, name, args, isGivenUp)
        .exceptionallyCompose(
            error -> {
              if (tries == 0 || !Core.cause(error).toString().contains("Commands are rejected")) {
                return CompletableFuture.failedFuture(error);
              }
              CompletableFuture<@Nullable Void> pause = new CompletableFuture<>();
              Core.after(PAUSE, () -> pause.complete(null));
              return pause.thenCompose(
                  done -> routed(connection, name, args, isGivenUp, tries - 1));
            });
  }

  private CompletableFuture<@Nullable Object> dispatched(
      StatefulConnection<String, String> connection,
      String name,
      CommandArgs<String, String> args,
      BooleanSupplier isGivenUp) {
    if (isGivenUp.getAsBoolean()) {
      return CompletableFuture.failedFuture(Core.givenUp());
    }
    Output output = new Output();
    AsyncCommand<String, String, List<Object>> command =
        new AsyncCommand<>(new Command<>(new Keyword(name), output, args));
    connection.dispatch(command);
    return command.handle(
        (values, error) -> {
          if (error instanceof RedisCommandExecutionException said) {
            ServerException line = new ServerException(String.valueOf(said.getMessage()));
            answered = line.isReadOnly() ? answered : System.nanoTime();
            throw line;
          }
          if (error != null) {
            throw new CompletionException(error);
          }
          answered = System.nanoTime();
          return output.isList ? values : values.get(0);
        });
  }

  /** Lettuce's own makes a list of a value by itself. */
  private static final class Output extends NestedMultiOutput<String, String> {
    private boolean isList;

    Output() {
      super(StringCodec.UTF8);
    }

    @Override
    public void multi(int count) {
      isList = true;
      super.multi(count);
    }
  }

  private record Keyword(String text) implements ProtocolKeyword {
    @Override
    public byte[] getBytes() {
      return text.getBytes(UTF_8);
    }

    @Override
    public String toString() {
      return text;
    }
  }

  private synchronized CompletableFuture<StatefulConnection<String, String>> connection() {
    if (isClosed) {
      return CompletableFuture.failedFuture(new IllegalStateException("the transport is closed"));
    }
    CompletableFuture<StatefulConnection<String, String>> known = current;
    if (known == null
        || known.isCompletedExceptionally()
        || known.isDone() && !known.join().isOpen()) {
      known = current = connect();
    }
    return known;
  }

  private CompletableFuture<StatefulConnection<String, String>> connect() {
    begun = System.nanoTime();
    CompletableFuture<StatefulConnection<String, String>> made = new CompletableFuture<>();
    connector
        .get()
        .whenComplete(
            (connection, error) -> {
              if (error != null) {
                Throwable said = refusal != null && isCut(error) ? refusal : said(error);
                refusal = said instanceof ServerException ? said : refusal;
                made.completeExceptionally(said);
                return;
              }
              refusal = null;
              connections.incrementAndGet();
              if (cluster == null) {
                connection.addListener(ENDS_WHEN_DISCONNECTED);
              }
              if (!made.complete(connection)) {
                connection.closeAsync(); // Given up for another.
              }
            });
    return made;
  }

  /**
   * Whether a connection was made and ended, and Lettuce does not know why: it may see the end of
   * one that the server refuses before what the server has said.
   */
  private static boolean isCut(Throwable error) {
    Throwable cause = error.getCause();
    return cause != null
        ? isCut(cause)
        : error instanceof RedisConnectionException || error instanceof IllegalStateException;
  }

  /** What the server has said against the connection, such as that the password is wrong. */
  private static Throwable said(Throwable error) {
    RedisCommandExecutionException line = Core.found(error, RedisCommandExecutionException.class);
    return line == null ? error : new ServerException(String.valueOf(line.getMessage()));
  }

  /**
   * A connection that breaks is closed, so that Lettuce neither connects it anew nor sends what was
   * unanswered again.
   */
  private static final RedisConnectionStateListener ENDS_WHEN_DISCONNECTED =
      new RedisConnectionStateListener() {
        @Override
        public void onRedisDisconnected(RedisChannelHandler<?, ?> connection) {
          if (connection.isOpen()) {
            connection.closeAsync();
          }
        }
      };

  /** Closes a connection, or gives up the attempt to make it. */
  private static void leave(@Nullable CompletableFuture<StatefulConnection<String, String>> known) {
    if (known != null && !known.cancel(false)) {
      var ignored = known.thenAccept(StatefulConnection::closeAsync);
    }
  }

  /**
   * After a failure: another connection in place of one that does not answer, or is not there yet.
   * One that has just answered others is left alone.
   */
  @Override
  public synchronized void renew(String server) {
    long now = System.nanoTime();
    if (cluster != null && isMade() && now - refreshed > ATTEMPT) {
      refreshed = now;
      cluster.refreshPartitionsAsync(); // Nothing else tells of a node that hangs.
    }
    if (cluster == null && now - begun >= ATTEMPT && !(isMade() && now - answered < ATTEMPT)) {
      leave(current);
      current = null;
    }
  }

  private RedisClusterNode node(String key) {
    return requireNonNull(cluster)
        .getPartitions()
        .getPartitionBySlot(SlotHash.getSlot(key.getBytes(UTF_8)));
  }

  private boolean isMade() {
    return connections.get() > 0;
  }

  @Override
  public String server(String key) {
    if (cluster == null || !isMade()) {
      return ""; // To ask for the nodes of a cluster that is not known yet blocks.
    }
    RedisClusterNode node = node(key);
    return node == null ? "" : node.getNodeId();
  }

  @Override
  public boolean isCluster() {
    return cluster != null;
  }

  @Override
  public long connections() {
    return connections.get();
  }

  @Override
  public void close() {
    synchronized (this) {
      isClosed = true;
    }
    if (own == null) {
      leave(current);
    } else {
      var ignored = own.shutdownAsync(); // With its connections.
    }
  }
}
