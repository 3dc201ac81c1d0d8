package redisrl;

import static java.util.Locale.ROOT;

import java.math.BigDecimal;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.regex.Pattern;

/** Reads rates: {@code 100/minute}, {@code 5 per 2 seconds}, {@code 10/s, 1000/hour}. */
final class Rates {
  static final long MAX_UNITS = (1L << 53) - 1;
  static final long MAX_SECONDS = Integer.MAX_VALUE;
  static final int MAX_WINDOWS = 16;

  /**
   * At most this many units in this many milliseconds. One of the calendar has 0 ms, and ends at a
   * unix time in ms.
   */
  record Window(long limit, long ms, long ends) {
    Window(long limit, long ms) {
      this(limit, ms, 0);
    }

    /** The length as commands take it: 60, 0.25, @1801440000000. */
    String seconds() {
      return ends != 0 ? "@" + ends : Rates.seconds(ms);
    }
  }

  // Classes of ASCII: \s and \d are, unless UNICODE_CHARACTER_CLASS is set.
  static final Pattern RATE =
      Pattern.compile(
          "\\s*(\\d+(?:_\\d+)*)(?:\\s*/\\s*|\\s+per\\s+)(?:(\\d+(?:\\.\\d{1,3})?)\\s*)?([a-z]+)\\s*",
          Pattern.CASE_INSENSITIVE);

  private static final String WRONG_LIMIT =
      "the limit must be an integer from 0 to 9007199254740991, not %s";

  private Rates() {}

  static List<Window> windows(String... rates) {
    List<Window> windows = new ArrayList<>();
    for (String rate : given(rates, "the rates")) {
      for (String part : given(rate, "a rate").split(",", -1)) {
        windows.add(window(part));
      }
    }
    return sorted(windows);
  }

  static List<Window> sorted(List<Window> windows) {
    int count = windows.size();
    check(count > 0 && count <= MAX_WINDOWS, "a rule has 1 to 16 windows, not %s", count);
    List<Window> sorted = windows.stream().sorted(Comparator.comparingLong(Window::ms)).toList();
    for (int i = 1; i < count; i++) {
      check(
          sorted.get(i - 1).ms() < sorted.get(i).ms(),
          "each window of a rule must have another length, not twice %s s",
          sorted.get(i).seconds());
    }
    return sorted;
  }

  private static Window window(String text) {
    var found = RATE.matcher(text);
    long unit = found.matches() ? unit(found.group(3).toLowerCase(ROOT)) : 0;
    check(
        unit > 0,
        "a rate looks like \"100/minute\", \"10/s\" or \"5 per 2 hours\" (ms, second, minute, hour,"
            + " day, week), not \"%s\"",
        shortened(text));
    BigDecimal times = found.group(2) == null ? BigDecimal.ONE : new BigDecimal(found.group(2));
    return new Window(
        limit(found.group(1)), milliseconds(times.multiply(BigDecimal.valueOf(unit)), text));
  }

  /** In milliseconds; 0 for another word. */
  private static long unit(String name) {
    return switch (name) {
      case "ms", "millisecond", "milliseconds" -> 1;
      case "s", "sec", "secs", "second", "seconds" -> 1000;
      case "m", "min", "mins", "minute", "minutes" -> 60_000;
      case "h", "hr", "hrs", "hour", "hours" -> 3_600_000;
      case "d", "day", "days" -> 86_400_000;
      case "w", "week", "weeks" -> 604_800_000;
      default -> 0;
    };
  }

  static Window window(long limit, Duration length) {
    return new Window(limit(limit), milliseconds(length, "a window"));
  }

  /** Whole milliseconds that commands take, as a number of seconds with three digits at most. */
  static long milliseconds(Duration length, String what) {
    BigDecimal seconds =
        BigDecimal.valueOf(given(length, what).toSeconds())
            .add(BigDecimal.valueOf(length.getNano(), 9));
    return milliseconds(
        seconds.movePointRight(3),
        what + " of " + seconds.stripTrailingZeros().toPlainString() + " s");
  }

  private static long milliseconds(BigDecimal ms, String text) {
    boolean isWhole = ms.stripTrailingZeros().scale() <= 0;
    check(
        isWhole && ms.signum() > 0 && ms.compareTo(BigDecimal.valueOf(MAX_SECONDS * 1000)) <= 0,
        "it must be from 0.001 to 2147483647 seconds, in whole milliseconds, not %s",
        shortened(text.strip()));
    return ms.longValueExact();
  }

  static long limit(String digits) {
    String plain = digits.replace("_", "").replaceFirst("^0+(?=.)", "");
    check(plain.length() <= 16, WRONG_LIMIT, shortened(digits));
    return limit(Long.parseLong(plain));
  }

  static long limit(long limit) {
    check(limit >= 0 && limit <= MAX_UNITS, WRONG_LIMIT, limit);
    return limit;
  }

  /** A decimal number of seconds: 60, 0.25. */
  static String seconds(long ms) {
    return BigDecimal.valueOf(ms, 3).stripTrailingZeros().toPlainString();
  }

  static String shortened(String text) {
    return text.length() <= 100 ? text : text.substring(0, 100) + "…";
  }

  @SuppressWarnings("AnnotateFormatMethod") // Which takes a library.
  static void check(boolean fits, String sentence, Object... values) {
    if (!fits) {
      throw new IllegalArgumentException(sentence.formatted(values)); // By %s: in all locales.
    }
  }

  static long within(long least, long most, long value, String what) {
    check(value >= least && value <= most, "%s from %s to %s, not %s", what, least, most, value);
    return value;
  }

  @SuppressWarnings("ConstantValue") // Callers in plain Java may pass null.
  static <T> T given(T value, String what) {
    check(value != null, "%s must not be null", what);
    return value;
  }
}
