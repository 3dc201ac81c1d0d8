package redisrl;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Reads replies, as a {@link Transport} gives them. What cannot be read is an error, and never
 * "allowed".
 */
final class Replies {
  private Replies() {}

  static Decision rule(Rule rule, @Nullable Object reply, boolean isTurn) {
    List<?> windows =
        rule.form().equals("FULL")
            ? Collections.singletonList(reply)
            : list(reply, rule.policies().size());
    return Decision.of(windows.stream().map(map -> window(rule, map, isTurn)).toList());
  }

  static Decision all(List<Keyed> rules, @Nullable Object reply) {
    List<?> parts = list(reply, 5);
    long index = number(parts.get(1));
    List<?> maps = list(parts.get(4), rules.size());
    if (index < 0 || index >= rules.size()) {
      throw unreadable(reply);
    }
    List<Decision> each = new ArrayList<>();
    for (int i = 0; i < rules.size(); i++) {
      each.add(Decision.of(List.of(window(rules.get(i).rule(), maps.get(i), false))));
    }
    boolean allowed = number(parts.get(0)) == 1;
    Duration retry = duration(number(parts.get(3)));
    return each.get((int) index)
        .with(allowed, number(parts.get(2)), retry, each, (int) index, null);
  }

  static Refund refund(@Nullable Object reply) {
    List<?> parts = list(reply, 3);
    return new Refund(
        number(parts.get(0)), number(parts.get(1)), Duration.ofSeconds(number(parts.get(2))));
  }

  /**
   * How a settlement was carried out: 1 now, 2 now and after the hold had ended, 3 before with the
   * same figure.
   */
  static long settlement(@Nullable Object reply) {
    long settled = number(list(reply, 3).get(0));
    if (settled < 0 || settled > 3) {
      throw unreadable(reply);
    }
    Rates.check(settled > 0, Reservation.OTHER_FIGURE);
    return settled;
  }

  static long number(@Nullable Object reply) {
    if (reply instanceof Long number) {
      return number;
    }
    throw unreadable(reply);
  }

  private static List<?> list(@Nullable Object reply, int size) {
    if (reply instanceof List<?> list && list.size() == size) {
      return list;
    }
    throw unreadable(reply);
  }

  private static Decision window(Rule rule, @Nullable Object reply, boolean isTurn) {
    long waitMs = isTurn ? field(reply, "wait-ms") : 0;
    if (waitMs < 0) {
      throw unreadable(reply);
    }
    return new Decision(
        field(reply, "allowed") == 1,
        field(reply, "limit"),
        field(reply, "used"),
        field(reply, "remaining"),
        duration(field(reply, "retry-after-ms")),
        duration(field(reply, "next-after-ms")),
        duration(field(reply, "reset-after-ms")),
        Duration.ofMillis(field(reply, "window-ms")),
        Instant.ofEpochMilli(field(reply, "at-ms")),
        Duration.ofMillis(waitMs),
        List.of(),
        Decision.Source.SERVER,
        0,
        rule);
  }

  /** Of the fields of FULL, with their names. */
  private static long field(@Nullable Object reply, String name) {
    if (reply instanceof List<?> fields) {
      for (int i = 0; i + 1 < fields.size(); i += 2) {
        if (name.equals(fields.get(i)) && fields.get(i + 1) instanceof Long number) {
          return number;
        }
      }
    }
    throw unreadable(reply);
  }

  private static @Nullable Duration duration(long ms) {
    return ms < 0 ? null : Duration.ofMillis(ms);
  }

  static ServerException unreadable(@Nullable Object reply) {
    String text =
        reply instanceof List<?> list && list.size() > 100
            ? "an array of " + list.size()
            : String.valueOf(reply);
    return new ServerException("the reply cannot be read: " + Rates.shortened(text));
  }
}
