package redisrl;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.exceptions.JedisAskDataException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisRedirectionException;
import redis.clients.jedis.providers.ClusterConnectionProvider;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;
import redis.clients.jedis.providers.SentineledConnectionProvider;
import redis.clients.jedis.util.JedisClusterCRC16;
import redis.clients.jedis.util.KeyValue;
import redis.clients.jedis.util.Pool;

/**
 * A way to the server by Jedis, on connections of its own with your configuration: a pool, or in a
 * cluster a pool for each node.
 *
 * <p>A call of Jedis blocks its thread until its own time-outs are over. So calls are made in
 * threads of the transport, a few for each server, which are left where a server hangs.
 */
public final class JedisTransport implements Transport {
  /** How many calls to a server are under way at once; others wait for their turn. */
  private static final int CONNECTIONS = 16;

  /** For how long a server has not answered whose connections are given up for others. */
  private static final long ATTEMPT = Duration.ofSeconds(1).toNanos();

  private static final int IDLE_SECONDS = 10;
  private static final int REDIRECTIONS = 5;

  private final Supplier<ConnectionProvider> connector;
  private final boolean isCluster;
  private final Map<String, Lane> lanes = new ConcurrentHashMap<>();
  private final AtomicLong recoveries = new AtomicLong();
  private volatile @Nullable ClusterConnectionProvider cluster;
  private volatile boolean isClosed;

  private JedisTransport(Supplier<ConnectionProvider> connector, boolean isCluster) {
    this.connector = connector;
    this.isCluster = isCluster;
  }

  /** To a server. */
  public static JedisTransport create(HostAndPort server, JedisClientConfig config) {
    return new JedisTransport(() -> new PooledConnectionProvider(server, config, pool()), false);
  }

  /** To a cluster, of which these nodes are asked for the others. */
  public static JedisTransport cluster(Set<HostAndPort> nodes, JedisClientConfig config) {
    return new JedisTransport(() -> new ClusterConnectionProvider(nodes, config, pool()), true);
  }

  /** To the primary that these sentinels name. */
  public static JedisTransport sentinel(
      String service,
      JedisClientConfig config,
      Set<HostAndPort> sentinels,
      JedisClientConfig sentinelConfig) {
    return new JedisTransport(
        () -> new SentineledConnectionProvider(service, config, pool(), sentinels, sentinelConfig),
        false);
  }

  private static ConnectionPoolConfig pool() {
    ConnectionPoolConfig pool = new ConnectionPoolConfig();
    pool.setMaxTotal(CONNECTIONS);
    pool.setMaxIdle(CONNECTIONS);
    pool.setJmxEnabled(false);
    return pool;
  }

  /** The threads and connections to a server. It is left as a whole, for another. */
  private final class Lane {
    private final String name;
    volatile long answered = System.nanoTime();
    private final ThreadPoolExecutor threads =
        new ThreadPoolExecutor(
            CONNECTIONS,
            CONNECTIONS,
            IDLE_SECONDS,
            TimeUnit.SECONDS,
            new LinkedBlockingQueue<>(),
            work -> Core.thread(work, "redis-rl-jedis"));
    private final Set<Connection> busy = ConcurrentHashMap.newKeySet();
    private volatile boolean isFailing;
    private volatile @Nullable ConnectionProvider own;
    private volatile boolean isLeft;

    Lane(String name) {
      this.name = name;
      threads.allowCoreThreadTimeOut(true);
    }

    CompletableFuture<@Nullable Object> run(Supplier<@Nullable Object> call) {
      return CompletableFuture.supplyAsync(
          () -> {
            try {
              if (isLeft) {
                throw new JedisConnectionException("the server was given up before the call");
              }
              Object value = call.get();
              answered = System.nanoTime();
              if (isFailing) {
                isFailing = false;
                recoveries.incrementAndGet();
              }
              return value;
            } catch (UnavailableException givenUp) {
              throw givenUp;
            } catch (RuntimeException error) {
              JedisDataException said = Core.found(error, JedisDataException.class);
              if (said != null) {
                ServerException line = new ServerException(String.valueOf(said.getMessage()));
                answered = line.isReadOnly() ? answered : System.nanoTime();
                throw line;
              }
              isFailing = true;
              closeIdle();
              throw error;
            }
          },
          threads);
    }

    /** Those that were idle when another failed are as broken, and would each cost a call. */
    private void closeIdle() {
      ConnectionProvider known = isCluster ? cluster : own;
      Map<?, ?> pools = known == null ? Map.of() : known.getConnectionMap();
      for (Map.Entry<?, ?> pool : pools.entrySet()) {
        if (!isCluster || pool.getKey().equals(name)) {
          ((Pool<?>) pool.getValue()).clear();
        }
      }
    }

    /** The connections: those of a cluster are shared by its lanes. */
    ConnectionProvider provider() {
      synchronized (isCluster ? JedisTransport.this : this) {
        ConnectionProvider known = isCluster ? cluster : own;
        if (known == null) {
          known = connector.get();
          if (isLeft && !isCluster || isClosed) {
            closed(known);
            throw new JedisConnectionException("the server was given up");
          }
          if (isCluster) {
            cluster = (ClusterConnectionProvider) known;
          } else {
            own = known;
          }
        }
        return known;
      }
    }

    @Nullable Object asked(
        Connection connection, CommandArguments words, BooleanSupplier isGivenUp) {
      if (isGivenUp.getAsBoolean()) {
        throw Core.givenUp();
      }
      busy.add(connection);
      try {
        return value(connection.executeCommand(words));
      } finally {
        busy.remove(connection);
      }
    }

    /** Ends what is under way, and lets the threads end. */
    void leave() {
      isLeft = true;
      threads.shutdown();
      for (Connection each : busy) {
        try {
          each.disconnect();
        } catch (RuntimeException error) {
          // It is of no more use in either case.
        }
      }
      ConnectionProvider known = own;
      if (known != null) {
        closed(known);
      }
      ClusterConnectionProvider nodes = cluster;
      if (nodes != null && !isClosed) {
        closeIdle();
        nodes.renewSlotCache();
      }
    }
  }

  private Lane lane(String server) {
    if (isClosed) {
      throw new IllegalStateException("the transport is closed");
    }
    return lanes.computeIfAbsent(server, Lane::new);
  }

  @Override
  public CompletableFuture<@Nullable Object> send(
      String key, List<String> words, BooleanSupplier isGivenUp) {
    byte[] name = words.get(0).getBytes(UTF_8);
    CommandArguments arguments = new CommandArguments(() -> name);
    words.subList(1, words.size()).forEach(word -> arguments.add(Keys.encoded(word)));
    try {
      Lane lane = lane(server(key));
      return lane.run(() -> routed(lane, slot(key), arguments, isGivenUp));
    } catch (IllegalStateException | RejectedExecutionException error) {
      return CompletableFuture.failedFuture(error); // It was closed, or left just now.
    }
  }

  /**
   * Jedis' own executor either sends a call again whose reply was lost, or follows no redirections.
   * A call that is redirected was not carried out.
   */
  private static @Nullable Object routed(
      Lane lane, int slot, CommandArguments words, BooleanSupplier isGivenUp) {
    ConnectionProvider provider = lane.provider();
    if (!(provider instanceof ClusterConnectionProvider nodes)) {
      try (Connection connection = provider.getConnection()) {
        return lane.asked(connection, words, isGivenUp);
      }
    }
    HostAndPort node = null;
    boolean asks = false;
    for (int left = REDIRECTIONS; ; left--) {
      try (Connection connection =
          node == null ? nodes.getConnectionFromSlot(slot) : nodes.getConnection(node)) {
        try {
          if (asks) {
            lane.asked(connection, new CommandArguments(Protocol.Command.ASKING), isGivenUp);
          }
          return lane.asked(connection, words, isGivenUp);
        } catch (JedisRedirectionException elsewhere) {
          if (left == 0) {
            throw elsewhere;
          }
          asks = elsewhere instanceof JedisAskDataException;
          if (!asks) {
            nodes.renewSlotCache(connection);
          }
          node = elsewhere.getTargetNode();
        }
      }
    }
  }

  /** A reply as all transports have it. */
  private static @Nullable Object value(@Nullable Object raw) {
    if (raw instanceof byte[] bytes) {
      return new String(bytes, UTF_8);
    }
    if (!(raw instanceof List<?> items)) {
      return raw;
    }
    List<@Nullable Object> values = new ArrayList<>();
    for (Object item : items) {
      if (item instanceof KeyValue<?, ?> entry) { // Of a map.
        values.add(value(entry.getKey()));
        values.add(value(entry.getValue()));
      } else {
        values.add(value(item));
      }
    }
    return values;
  }

  private static int slot(String key) {
    return JedisClusterCRC16.getSlot(key.getBytes(UTF_8));
  }

  @Override
  public String server(String key) {
    ClusterConnectionProvider nodes = cluster;
    HostAndPort node = nodes == null ? null : nodes.getNode(slot(key));
    return node == null ? "" : node.toString();
  }

  @Override
  public boolean isCluster() {
    return isCluster;
  }

  /** Counts a failure and the success after it, since the pool makes connections unseen. */
  @Override
  public long connections() {
    return recoveries.get();
  }

  /**
   * After a failure: other connections in place of those that do not answer. In a cluster another
   * node may have the slots by now.
   */
  @Override
  public void renew(String server) {
    Lane lane = lanes.get(server);
    if (lane == null
        || System.nanoTime() - lane.answered < ATTEMPT
        || !lanes.remove(server, lane)) {
      return;
    }
    Core.thread(lane::leave, "redis-rl-jedis-left").start();
  }

  @Override
  public void close() {
    isClosed = true;
    lanes.values().forEach(Lane::leave);
    lanes.clear();
    ClusterConnectionProvider nodes = cluster;
    if (nodes != null) {
      nodes.close();
    }
  }

  private static void closed(ConnectionProvider provider) {
    try {
      provider.close();
    } catch (Exception error) {
      throw new IllegalStateException(error); // None does.
    }
  }
}
