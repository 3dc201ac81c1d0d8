package redisrl;

import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** A rule at a key, for {@link Limiter#all} and {@link Limiter#reserveAll}. */
public final class Keyed {
  final Command.Keyed at;
  final @Nullable Long reserved;

  private Keyed(String key, Rule rule, @Nullable Long reserved) {
    this.at = new Command.Keyed(Rates.given(key, "a key"), Rates.given(rule, "a rule"));
    this.reserved = reserved;
  }

  /** A rule at a key. */
  public static Keyed of(String key, Rule rule) {
    return new Keyed(key, rule, null);
  }

  /** A rule at a key that reserves units, for {@link Limiter#reserveAll}. */
  public static <R extends Rule & Rule.Reservable> Keyed reserved(String key, R rule, long units) {
    return holding(key, rule, units);
  }

  static Keyed holding(String key, Rule rule, long units) {
    return new Keyed(key, rule, units);
  }

  /** The rules with what is reserved, under one holder. */
  static List<Command.Keyed> held(List<Keyed> rules, Duration lease) {
    if (rules.stream().noneMatch(each -> each.reserved != null)) {
      throw new IllegalArgumentException(
          rules.isEmpty()
              ? "a call takes 1 to 64 keys, not 0"
              : "a reservation needs a rule of which units are reserved");
    }
    String holder = Keys.random();
    return rules.stream()
        .map(
            each ->
                each.reserved == null
                    ? each.at
                    : new Command.Keyed(
                        each.at.key(), held(each.at.rule(), each.reserved, holder, lease)))
        .toList();
  }

  static Rule held(Rule rule, long units, String holder, Duration lease) {
    if (rule.isForced()) {
      throw new IllegalArgumentException(
          "a reservation is not forced: settle charges over the limit where it has to");
    }
    if (units < 1 || units > Rates.MAX_UNITS) {
      throw new IllegalArgumentException(
          "the units of a reservation must be from 1 to " + Rates.MAX_UNITS + ", not " + units);
    }
    Rule.Hold hold = new Rule.Hold(holder, Rates.milliseconds(lease, "the lease of a reservation"));
    return ((Rule.Windowed<?>) rule).held(units, hold);
  }
}
