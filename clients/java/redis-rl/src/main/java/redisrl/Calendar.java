package redisrl;

import static java.util.Locale.ROOT;

import java.time.Instant;
import java.time.LocalDate;
import java.time.ZoneId;
import java.util.Map;

/** A limit for each day, week, month or year of a time zone. */
record Calendar(long limit, String unit, ZoneId zone, int starts) {
  private static final Map<String, Integer> MOST =
      Map.of("day", 1, "week", 7, "month", 31, "year", 12);

  static Calendar of(String rate, ZoneId zone, int starts) {
    var found = Rates.RATE.matcher(Rates.given(rate, "a rate"));
    boolean isOne = found.matches() && found.group(2) == null;
    String unit = isOne ? found.group(3).toLowerCase(ROOT).replaceFirst("s$", "") : "";
    Rates.check(
        MOST.containsKey(unit),
        "the rate of a calendar looks like \"1000/day\", with day, week, month or year, not \"%s\"",
        Rates.shortened(rate));
    Rates.within(1, MOST.getOrDefault(unit, 1), starts, "starts of a " + unit + " must be");
    return new Calendar(Rates.limit(found.group(1)), unit, zone, starts);
  }

  String described() {
    return "calendar-"
        + limit
        + "/"
        + unit
        + " "
        + zone.getId()
        + (starts == 1 ? "" : " " + starts);
  }

  /** When the period ends in which a time lies: where the next one begins. */
  Instant end(Instant time) {
    // The first moment of a local day. Where clocks are set back over midnight a day can begin
    // twice; the first one counts.
    for (LocalDate day = time.atZone(zone).toLocalDate(); ; day = day.plusDays(1)) {
      Instant begins = day.atStartOfDay(zone).toInstant();
      if (begins.isAfter(time) && isFirst(day)) {
        return begins;
      }
    }
  }

  /** Whether a period begins with this day. */
  private boolean isFirst(LocalDate day) {
    return switch (unit) {
      case "day" -> true;
      case "week" -> day.getDayOfWeek().getValue() == starts;
      case "month" -> day.getDayOfMonth() == Math.min(starts, day.lengthOfMonth());
      default -> day.getDayOfMonth() == 1 && day.getMonthValue() == starts;
    };
  }
}
