package redisrl;

import static redisrl.Rates.MAX_SECONDS;
import static redisrl.Rates.MAX_UNITS;
import static redisrl.Rates.check;
import static redisrl.Rates.given;
import static redisrl.Rates.seconds;
import static redisrl.Rates.within;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import redisrl.Rates.Window;

/**
 * What is allowed, without the key. Rules are immutable: make one once, and use it for every key
 * and in every thread.
 *
 * <p>One key belongs to one rule: give the same rule in every call at it.
 */
public abstract sealed class Rule {
  /** The word in RL.PEEK and RL.ALL, and behind "RL." the command of its own. */
  final String kind;

  final Options options;

  private Rule(String kind, Options options) {
    this.kind = kind;
    this.options = options;
  }

  /** A rule of which a request can wait for its turn. */
  public sealed interface Queued permits Sliding, Throttle {}

  /**
   * An exact sliding window: no stretch of time as long as the window holds more than the limit.
   * With several rates ({@code "10/second", "1000/hour"}) a request has to fit into each, or it
   * counts in none.
   */
  public static Sliding sliding(String... rates) {
    return new Sliding(Options.NONE, Rates.windows(rates));
  }

  /**
   * {@link #sliding(String...)} with one window: a limit of 0 to 2^53-1, a length of 0.001 to
   * 2147483647 seconds.
   */
  public static Sliding sliding(long limit, Duration window) {
    return new Sliding(Options.NONE, List.of(Rates.window(limit, window)));
  }

  /**
   * One small counter for each window: cheap, and up to twice the limit can pass around a boundary.
   * Windows begin at multiples of their length since the epoch. A rule with one rate and no cost
   * also counts the requests that it denies.
   */
  public static Fixed fixed(String... rates) {
    return new Fixed(Options.NONE, Rates.windows(rates), false, null);
  }

  /** {@link #fixed(String...)} with one window. */
  public static Fixed fixed(long limit, Duration window) {
    return new Fixed(Options.NONE, List.of(Rates.window(limit, window)), false, null);
  }

  /**
   * A fixed window of the calendar: {@code "5_000_000/month"}, with day, week, month or year, in a
   * time zone. Windows go by the clocks of the processes that ask.
   *
   * @param starts the day of a month (1 to 31, of a month that is too short its last), the day of a
   *     week (1, Monday, to 7), or the month of a year
   */
  public static Fixed calendar(String rate, ZoneId zone, int starts) {
    Calendar calendar = Calendar.of(rate, given(zone, "the zone of a calendar"), starts);
    return new Fixed(Options.NONE, List.of(new Window(calendar.limit(), 0)), false, calendar);
  }

  /**
   * A steady rate with a burst: the generic cell rate algorithm. As many requests may come at once
   * as the rate has, and one more comes free every window / limit.
   */
  public static Throttle throttle(String rate) {
    return new Throttle(Options.NONE, rate, null);
  }

  /**
   * At most this number of holders at a time: concurrent requests, jobs, connections. A lease ends
   * when it is released, or by itself after {@code ttl}, so that a client that dies blocks nobody
   * for longer.
   */
  public static Lease lease(long limit, Duration ttl) {
    return new Lease(
        Options.NONE, Rates.limit(limit), Rates.milliseconds(ttl, "the ttl of a lease"), null);
  }

  /** The rule as commands take it, in a list that may be added to. */
  abstract List<String> words();

  /** Those of RateLimit-Policy, shortest window first. */
  abstract List<Policy> policies();

  /** What keys of adapters have in place of a name. */
  abstract String described();

  /** The word that asks for the long reply. */
  String form() {
    return "FULL";
  }

  /** What a request weighs. */
  long weight() {
    return options.cost == null ? 1 : options.cost;
  }

  /** This rule, which has at least such a cost. */
  Rule checked(long least) {
    within(least, MAX_UNITS, weight(), "the cost must be");
    return this;
  }

  /** This rule, of a calendar with the period in which a time lies. */
  Rule at(Instant time) {
    return this;
  }

  /** What the policy is called: its name, else its windows. */
  String policy() {
    return Keys.escaped(toString(), Keys.IN_POLICY);
  }

  @Override
  public boolean equals(@Nullable Object other) {
    return other instanceof Rule rule
        && described().equals(rule.described())
        && options.equals(rule.options);
  }

  @Override
  public int hashCode() {
    return Objects.hash(described(), options);
  }

  @Override
  public String toString() {
    return options.named(described());
  }

  List<Policy> policies(String otherwise, long limit, long ms, @Nullable String unit) {
    return List.of(new Policy(options.named(otherwise), limit, ms, unit));
  }

  /** A policy of RateLimit-Policy. The window is -1 for a lease, 0 for one of the calendar. */
  record Policy(String name, long limit, long windowMs, @Nullable String unit) {
    Policy named(String name) {
      return new Policy(name, limit, windowMs, unit);
    }
  }

  /** A reservation's. */
  record Hold(String holder, long leaseMs) {
    /** Of units that are to be reserved. */
    static final Hold OPEN = new Hold("", 0);
  }

  record Options(
      @Nullable String name,
      @Nullable String unit,
      @Nullable Long cost,
      boolean force,
      @Nullable Hold hold) {
    static final Options NONE = new Options(null, null, null, false, null);

    /** The name, or another if the rule has no name. */
    String named(String otherwise) {
      return name != null ? name : otherwise;
    }

    private static String text(String text, String what) {
      check(
          given(text, "the " + what).matches("[ -~]+"),
          "a %s is 1 or more printable ASCII characters, not \"%s\"",
          what,
          Rates.shortened(text));
      return text;
    }
  }

  /** What every rule can be called. */
  public abstract static sealed class Named<R extends Rule> extends Rule {
    private Named(String kind, Options options) {
      super(kind, options);
    }

    abstract R with(Options options);

    /** What the policy is called in HTTP headers and keys, in place of its windows. */
    public R name(String name) {
      String checked = Options.text(name, "name");
      return with(new Options(checked, options.unit, options.cost, options.force, options.hold));
    }

    /**
     * What is counted, for the header RateLimit-Policy: "requests" (which is understood; of a lease
     * "concurrent-requests"), "tokens", …
     */
    public R unit(String unit) {
      String checked = Options.text(unit, "unit");
      return with(new Options(options.name, checked, options.cost, options.force, options.hold));
    }
  }

  /** A rule that counts units, which can be given back: all but a lease. */
  public abstract static sealed class Counted<R extends Counted<R>> extends Named<R> {
    private Counted(String kind, Options options) {
      super(kind, options);
    }

    /**
     * The rule for a request that weighs this number of units, 1 to 2^53-1: it fits whole or not at
     * all. A cost of 0 is for peek and all: the rule is checked, and nothing is counted.
     */
    public R cost(long units) {
      within(0, MAX_UNITS, units, "the cost must be");
      return with(new Options(options.name, options.unit, units, options.force, options.hold));
    }
  }

  /**
   * What sliding and fixed rules have in common. They can be charged over their limits, and so
   * settled afterwards.
   */
  public abstract static sealed class Windowed<R extends Windowed<R>> extends Counted<R> {
    final List<Window> windows;

    private Windowed(String kind, Options options, List<Window> windows) {
      super(kind, options);
      this.windows = windows;
    }

    /**
     * The rule that counts a request whether it fits or not; the answer still says whether it
     * fitted.
     */
    public R force() {
      return with(new Options(options.name, options.unit, options.cost, true, options.hold));
    }

    R held(long units, Hold hold) {
      return with(new Options(options.name, options.unit, units, options.force, hold));
    }

    /** The windows, what a kind has beside them, and how the request counts. */
    List<String> windowed(String... more) {
      List<String> words = new ArrayList<>();
      for (Window window : windows) {
        words.add(window.seconds());
        words.add(Long.toString(window.limit()));
      }
      words.addAll(List.of(more));
      if (options.cost != null) {
        words.addAll(List.of("COST", options.cost.toString()));
      }
      if (options.hold != null) {
        words.addAll(List.of("HOLD", options.hold.holder(), seconds(options.hold.leaseMs())));
      }
      if (options.force) {
        words.add("FORCE");
      }
      return words;
    }

    /**
     * Only where a request is forced on several windows can the wait of the whole call not be told
     * from those of the windows.
     */
    @Override
    String form() {
      return windows.size() > 1 && !options.force ? "EACH" : "FULL";
    }

    @Override
    List<Policy> policies() {
      return windows.stream()
          .map(
              window -> {
                String name = window.seconds() + "s";
                if (options.name != null) {
                  name = windows.size() > 1 ? options.name + "-" + name : options.name;
                }
                return new Policy(name, window.limit(), window.ms(), options.unit);
              })
          .toList();
    }

    String described(String kind) {
      return windows.stream()
          .map(window -> window.limit() + "/" + seconds(window.ms()) + "s")
          .collect(Collectors.joining(",", kind + "-", ""));
    }
  }

  /** See {@link Rule#sliding(String...)}. */
  public static final class Sliding extends Windowed<Sliding> implements Queued {
    private Sliding(Options options, List<Window> windows) {
      super("SLIDING", options, windows);
    }

    @Override
    Sliding with(Options options) {
      return new Sliding(options, windows);
    }

    /** The cost is always sent, so that the log is compact from its first request on. */
    @Override
    List<String> words() {
      return options.cost == null ? cost(1).windowed() : windowed();
    }

    @Override
    String described() {
      return described("sliding");
    }
  }

  /** See {@link Rule#fixed(String...)} and {@link Rule#calendar}. */
  public static final class Fixed extends Windowed<Fixed> {
    private final boolean anchored;
    final @Nullable Calendar calendar;

    private Fixed(
        Options options, List<Window> windows, boolean anchored, @Nullable Calendar calendar) {
      super("FIXED", options, windows);
      this.anchored = anchored;
      this.calendar = calendar;
    }

    @Override
    Fixed with(Options options) {
      return new Fixed(options, windows, anchored, calendar);
    }

    /**
     * A window begins with its first request, and not at a multiple of its length since the epoch.
     */
    public Fixed anchored() {
      check(calendar == null, "a calendar is not anchored");
      return new Fixed(options, windows, true, null);
    }

    @Override
    Fixed at(Instant time) {
      if (calendar == null) {
        return this;
      }
      Window window = new Window(calendar.limit(), 0, calendar.end(time).toEpochMilli());
      return new Fixed(options, List.of(window), anchored, calendar);
    }

    @Override
    List<String> words() {
      return anchored ? windowed("ANCHORED") : windowed();
    }

    @Override
    List<Policy> policies() {
      return calendar == null
          ? super.policies()
          : policies(calendar.unit(), calendar.limit(), 0, options.unit);
    }

    @Override
    String described() {
      return calendar != null ? calendar.described() : described(anchored ? "anchored" : "fixed");
    }
  }

  /** See {@link Rule#throttle}. */
  public static final class Throttle extends Counted<Throttle> implements Queued {
    private final String rate;
    private final long burst;
    private final long count;
    private final long period;

    private Throttle(Options options, String rate, @Nullable Long burst) {
      super("THROTTLE", options);
      this.rate = rate;
      List<Window> windows = Rates.windows(rate);
      check(windows.size() == 1, "a throttle takes one rate, not %s", windows.size());
      long limit = windows.get(0).limit();
      long ms = windows.get(0).ms();
      within(1, MAX_UNITS, limit, "the limit of a throttle must be");
      this.burst = within(0, MAX_UNITS - 1, burst == null ? limit - 1 : burst, "burst must be");
      // A window that is not whole seconds is scaled up to whole ones.
      long scale = 1000 / BigInteger.valueOf(ms).gcd(BigInteger.valueOf(1000)).longValueExact();
      this.period = ms * scale / 1000;
      check(
          period <= MAX_SECONDS,
          "the window of a throttle must be at most 2147483647 s in whole seconds, not %s",
          rate);
      check(
          limit <= MAX_UNITS / scale && limit * scale <= period * 1_000_000_000L,
          "the rate of a throttle must be at most one request a nanosecond, not %s",
          rate);
      this.count = limit * scale;
    }

    /**
     * How many requests may come at once beyond the first, 0 to 2^53-2; unless given, the rate's
     * limit less one.
     */
    public Throttle burst(long burst) {
      return new Throttle(options, rate, burst);
    }

    @Override
    Throttle with(Options options) {
      return new Throttle(options, rate, burst);
    }

    @Override
    List<String> words() {
      List<String> words = new ArrayList<>();
      words.add(Long.toString(burst));
      words.add(Long.toString(count));
      words.add(Long.toString(period));
      if (options.cost != null) {
        words.add(options.cost.toString());
      }
      return words;
    }

    /**
     * The window is the time in which an empty bucket fills, which the server rounds up to
     * milliseconds.
     */
    @Override
    List<Policy> policies() {
      long interval = (period * 1_000_000_000L + count - 1) / count;
      BigDecimal full = BigDecimal.valueOf(interval, 6).multiply(BigDecimal.valueOf(burst + 1));
      BigDecimal most = BigDecimal.valueOf(MAX_UNITS);
      long ms = full.setScale(0, RoundingMode.CEILING).min(most).longValueExact();
      return policies(seconds(ms) + "s", burst + 1, ms, options.unit);
    }

    @Override
    String described() {
      return "throttle-" + burst + "-" + count + "/" + period + "s";
    }
  }

  /** See {@link Rule#lease}. */
  public static final class Lease extends Named<Lease> {
    final long limit;
    final long ms;
    final @Nullable String holder;

    private Lease(Options options, long limit, long ms, @Nullable String holder) {
      super("ACQUIRE", options);
      this.limit = limit;
      this.ms = ms;
      this.holder = holder;
    }

    /** The lease of one holder. Acquire and hold make a random name unless there is one. */
    public Lease holder(String holder) {
      check(
          !given(holder, "the holder of a lease").isEmpty(),
          "the holder of a lease must have a name");
      return new Lease(options, limit, ms, holder);
    }

    @Override
    Lease with(Options options) {
      return new Lease(options, limit, ms, holder);
    }

    Lease held() {
      return holder == null ? holder(Keys.random()) : this;
    }

    @Override
    Rule checked(long least) {
      check(holder != null, "the lease needs a holder: give it one, or call acquire or hold");
      return this;
    }

    @Override
    List<String> words() {
      String held = Objects.requireNonNull(holder);
      return new ArrayList<>(List.of(Long.toString(limit), seconds(ms), held));
    }

    @Override
    List<Policy> policies() {
      String unit = options.unit == null ? "concurrent-requests" : options.unit;
      return policies(seconds(ms) + "s", limit, -1, unit);
    }

    @Override
    String described() {
      return "lease-" + limit + "/" + seconds(ms) + "s";
    }
  }
}
