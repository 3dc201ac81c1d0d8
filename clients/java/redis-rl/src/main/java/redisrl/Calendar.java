package redisrl;

import static java.util.Locale.ROOT;

import java.time.DayOfWeek;
import java.time.Instant;
import java.time.LocalDate;
import java.time.YearMonth;
import java.time.ZoneId;
import java.time.temporal.TemporalAdjusters;
import java.util.Map;
import java.util.regex.Pattern;

/** A limit for each day, week, month or year of a time zone. */
record Calendar(long limit, String unit, ZoneId zone, int starts) {
  private static final Pattern RATE =
      Pattern.compile(
          "\\s*(\\d+(?:_\\d+)*)(?:\\s*/\\s*|\\s+per\\s+)(day|week|month|year)s?\\s*",
          Pattern.CASE_INSENSITIVE);
  private static final Map<String, Integer> MOST =
      Map.of("day", 1, "week", 7, "month", 31, "year", 12);

  static Calendar of(String rate, ZoneId zone, int starts) {
    var found = RATE.matcher(Rates.given(rate, "a rate"));
    Rates.check(
        found.matches(),
        "the rate of a calendar looks like \"1000/day\", with day, week, month or year, not \"%s\"",
        Rates.shortened(rate));
    String unit = found.group(2).toLowerCase(ROOT);
    int most = MOST.getOrDefault(unit, 1);
    Rates.within(1, most, starts, "starts of a " + unit + " must be");
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
    LocalDate day = time.atZone(zone).toLocalDate();
    // The first moment of a local day. Where clocks are set back over midnight a day can begin
    // twice; the first one counts.
    for (LocalDate next = beginning(day); ; next = following(next)) {
      Instant begins = next.atStartOfDay(zone).toInstant();
      if (begins.isAfter(time)) {
        return begins;
      }
    }
  }

  /** The period's first day on or before a day. */
  private LocalDate beginning(LocalDate day) {
    return switch (unit) {
      case "day" -> day;
      case "week" -> day.with(TemporalAdjusters.previousOrSame(DayOfWeek.of(starts)));
      case "month" -> {
        LocalDate first = of(YearMonth.from(day));
        yield first.isAfter(day) ? of(YearMonth.from(day).minusMonths(1)) : first;
      }
      default -> {
        LocalDate first = LocalDate.of(day.getYear(), starts, 1);
        yield first.isAfter(day) ? first.minusYears(1) : first;
      }
    };
  }

  private LocalDate following(LocalDate first) {
    return switch (unit) {
      case "day" -> first.plusDays(1);
      case "week" -> first.plusWeeks(1);
      case "month" -> of(YearMonth.from(first).plusMonths(1));
      default -> first.plusYears(1);
    };
  }

  private LocalDate of(YearMonth month) {
    return month.atDay(Math.min(starts, month.lengthOfMonth()));
  }
}
