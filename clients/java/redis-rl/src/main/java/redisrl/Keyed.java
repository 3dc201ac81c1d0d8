package redisrl;

import static redisrl.Rates.MAX_UNITS;
import static redisrl.Rates.check;
import static redisrl.Rates.given;
import static redisrl.Rates.within;

import java.time.Duration;
import java.time.Instant;
import java.util.List;
import redisrl.Rule.Hold;

/** A rule at a key, for {@link Limiter#all} and {@link Limiter#reserveAll}. */
public record Keyed(String key, Rule rule) {
  public Keyed {
    given(key, "a key");
    given(rule, "a rule");
  }

  /** A rule at a key. */
  public static Keyed of(String key, Rule rule) {
    return new Keyed(key, rule);
  }

  /** A rule at a key that reserves units, for {@link Limiter#reserveAll}. */
  public static Keyed reserved(String key, Rule.Windowed<?> rule, long units) {
    check(
        !given(rule, "a rule").options.force(),
        "a reservation is not forced: settle charges over the limit where it has to");
    within(1, MAX_UNITS, units, "the units of a reservation must be");
    return new Keyed(key, rule.held(units, Hold.OPEN));
  }

  /** The rules with what is reserved, under one holder. */
  static List<Keyed> held(List<Keyed> rules, Duration lease) {
    check(!rules.isEmpty(), "a call takes 1 to 64 keys, not 0");
    check(
        rules.stream().anyMatch(Keyed::isHeld),
        "a reservation needs a rule of which units are reserved");
    Hold hold = new Hold(Keys.random(), Rates.milliseconds(lease, "the lease of a reservation"));
    return rules.stream()
        .map(
            each ->
                each.isHeld()
                    ? new Keyed(
                        each.key, ((Rule.Windowed<?>) each.rule).held(each.rule.weight(), hold))
                    : each)
        .toList();
  }

  /** Whether units are reserved. */
  boolean isHeld() {
    return rule.options.hold() != null;
  }

  /** The rules with the periods of calendars in which a time lies. */
  static List<Keyed> at(List<Keyed> rules, Instant time) {
    return rules.stream().map(each -> new Keyed(each.key, each.rule.at(time))).toList();
  }

  /** When the first of the calendars' periods ends. */
  static Instant earliestEnd(List<Keyed> rules) {
    return rules.stream()
        .filter(each -> each.rule instanceof Rule.Fixed fixed && fixed.calendar != null)
        .map(each -> Instant.ofEpochMilli(((Rule.Fixed) each.rule).windows.get(0).ends()))
        .min(Instant::compareTo)
        .orElse(Instant.MAX);
  }

  static List<String> keys(List<Keyed> rules) {
    return rules.stream().map(Keyed::key).toList();
  }
}
