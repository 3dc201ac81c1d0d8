//! Days, weeks, months and years of a time zone, and the time by which a call works them out.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use jiff::civil::{Date, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

use crate::decision::unix_millis;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Reads the name of one, or of several.
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let single = name.strip_suffix('s').unwrap_or(&name);
        [Self::Day, Self::Week, Self::Month, Self::Year].into_iter().find(|unit| unit.name() == single)
    }

    /// The last day of the month or week, or month of the year, with which a period can begin.
    pub fn last_start(self) -> i8 {
        match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 31,
            Self::Year => 12,
        }
    }
}

/// Periods of the calendar, without gaps: each begins with the first moment of a local date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Periods {
    pub unit: Unit,
    pub zone: TimeZone,
    pub starts: i8,
}

impl Periods {
    /// The end of the period in which a time lies, both in unix milliseconds. `None` within some years of the ends
    /// of the calendar, in the year 9999.
    pub fn end(&self, time: u64) -> Option<u64> {
        let time = Timestamp::from_millisecond(i64::try_from(time).ok()?).ok()?;
        // A date begins a little before the time where the clock is put back over midnight.
        let mut first = self.first(self.zone.to_datetime(time).date().checked_sub(1.day()).ok()?)?;
        loop {
            let begins = self.begins(first)?;
            if begins > time {
                return u64::try_from(begins.as_millisecond()).ok();
            }
            first = self.following(first)?;
        }
    }

    /// The first date of a period, on this date or some days before it.
    fn first(&self, day: Date) -> Option<Date> {
        match self.unit {
            Unit::Day => Some(day),
            Unit::Week => {
                let starts = Weekday::from_monday_one_offset(self.starts).ok()?;
                day.checked_sub(i64::from(day.weekday().since(starts)).days()).ok()
            }
            // That of the month or year may be later than the day: then it is the first that can end the period.
            Unit::Month => in_month(day.year(), day.month(), self.starts),
            Unit::Year => Date::new(day.year(), self.starts, 1).ok(),
        }
    }

    fn following(&self, first: Date) -> Option<Date> {
        match self.unit {
            Unit::Day => first.tomorrow().ok(),
            Unit::Week => first.checked_add(1.week()).ok(),
            Unit::Month => {
                let next = first.first_of_month().checked_add(1.month()).ok()?;
                in_month(next.year(), next.month(), self.starts)
            }
            Unit::Year => first.checked_add(1.year()).ok(),
        }
    }

    /// The first moment of a local date: midnight, the earlier of two, or the end of the gap in which it lies.
    fn begins(&self, day: Date) -> Option<Timestamp> {
        let midnight = day.at(0, 0, 0, 0);
        let at = |offset: jiff::tz::Offset| offset.to_timestamp(midnight).ok();
        match self.zone.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } => at(offset),
            AmbiguousOffset::Fold { before, .. } => at(before),
            AmbiguousOffset::Gap { before, .. } => {
                let behind = at(before)?.checked_add(1.nanosecond()).ok()?;
                self.zone.preceding(behind).next().map(|change| change.timestamp())
            }
        }
    }
}

/// The day of a month, or its last.
fn in_month(year: i16, month: i8, day: i8) -> Option<Date> {
    let first = Date::new(year, month, 1).ok()?;
    Date::new(year, month, day.min(first.days_in_month())).ok()
}

/// The time by which a call works out the calendars of its rules, in unix milliseconds.
#[derive(Debug)]
pub(crate) struct Clock {
    time: AtomicU64,
    /// The earliest end of a period that was sent.
    earliest_end: AtomicU64,
}

impl Clock {
    pub fn now() -> Self {
        #[cfg(test)]
        if let Some(time) = tests::NOW.get() {
            return Self::at(time);
        }
        Self::at(unix_millis(SystemTime::now()))
    }

    pub fn at(time: u64) -> Self {
        Self { time: AtomicU64::new(time), earliest_end: AtomicU64::new(u64::MAX) }
    }

    pub fn time(&self) -> u64 {
        self.time.load(Relaxed)
    }

    /// The end of the period at this time, which is sent.
    pub fn end(&self, periods: &Periods) -> u64 {
        let end = periods.end(self.time()).unwrap_or(u64::MAX);
        self.earliest_end.fetch_min(end, Relaxed);
        end
    }

    /// Goes on to the earliest end that was sent, as the server's clock is there already. Answers whether there is one.
    pub fn go_on(&self) -> bool {
        let end = self.earliest_end.swap(u64::MAX, Relaxed);
        if end != u64::MAX {
            self.time.store(end, Relaxed);
        }
        end != u64::MAX
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::cases::read;

    thread_local! {
        /// What the clock of this thread shows, for tests.
        pub(crate) static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Each period of the cases: its first moment, its last millisecond, and what lies around a change in it.
    #[test]
    fn cases_of_calendars() {
        let file = read("calendar");
        let mut asked = 0;
        for (zone, lists) in file["zones"].as_object().unwrap() {
            let zone = TimeZone::get(zone).unwrap();
            let changes: Vec<_> =
                lists["changes"].as_array().unwrap().iter().map(|time| time.as_u64().unwrap() * 1000).collect();
            for (name, runs) in lists.as_object().unwrap().iter().filter(|(name, _)| *name != "changes") {
                let (unit, starts) = name.split_once(':').unwrap_or((name, "1"));
                let unit = Unit::parse(unit).unwrap();
                let periods = Periods { unit, zone: zone.clone(), starts: starts.parse().unwrap() };
                for run in runs.as_array().unwrap() {
                    let mut run = run.as_array().unwrap().iter().map(|number| number.as_u64().unwrap());
                    let mut begins = run.next().unwrap() * 1000;
                    for minutes in run {
                        let end = begins + minutes * 60_000;
                        let inside = changes.iter().filter(|change| (begins..end).contains(change));
                        let around = inside.flat_map(|change| [change.saturating_sub(1), *change, change + 1]);
                        for time in around.chain([begins, end - 1]).filter(|time| (begins..end).contains(time)) {
                            let context = format!("{zone:?} {name} at {time}");
                            assert_eq!(periods.end(time), Some(end), "{context}");
                            asked += 1;
                        }
                        assert!(periods.end(begins - 1) == Some(begins), "{zone:?} {name} before {begins}");
                        begins = end;
                    }
                }
            }
        }
        assert!(asked > 10_000, "{asked}");
    }

    #[test]
    fn a_time_beyond_the_calendar_has_no_period() {
        let periods = Periods { unit: Unit::Year, zone: TimeZone::UTC, starts: 1 };
        for time in [253_402_300_799_999, u64::MAX, 1 << 62] {
            assert_eq!(periods.end(time), None);
        }
        assert_eq!(Clock::at(u64::MAX).end(&periods), u64::MAX);
        assert_eq!(periods.end(0), Some(31_536_000_000));
    }
}
