//! Windows of the calendar: days, weeks, months and years of a time zone.

use std::iter::successors;

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

use crate::common::Common;
use crate::error::Error;
use crate::rates::{Window, digits, sides};

/// `RL.FIXED` with a window of the calendar: a day, week, month or year of a time zone. Made by [`Rule::calendar`](crate::Rule::calendar).
///
/// A period begins with the first moment of its local day, and ends where the next one begins. Each call works it out by
/// the clock of this process; where the server's clock is past its end already, the call is sent again with the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calendar {
    pub(crate) limit: u64,
    pub(crate) unit: Unit,
    zone: TimeZone,
    starts: i8,
    pub(crate) with: Common,
}

impl Calendar {
    pub(crate) fn parse(rate: &str) -> Result<Self, Error> {
        let bad = || {
            Error::Invalid(format!(
                "a rate of the calendar looks like 5_000_000/month or 100 per day (day, week, month, year), not {rate:?}"
            ))
        };
        let (limit_text, unit) = sides(rate.trim_ascii()).ok_or_else(bad)?;
        let unit = Unit::parse(unit).ok_or_else(bad)?;
        let digits = digits(limit_text).ok_or_else(bad)?;
        let Window { limit, .. } = Window::checked(digits.parse().ok(), limit_text, Some(1), "")?;
        Ok(Self { limit, unit, zone: TimeZone::UTC, starts: 1, with: Common::default() })
    }

    /// Units.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The time zone by its name in the zone database, such as `Europe/Berlin`; `UTC` unless set. The database is that of
    /// the system (`/usr/share/zoneinfo`, or `TZDIR`).
    pub fn zone(mut self, name: &str) -> Result<Self, Error> {
        let zone = TimeZone::get(name).ok().filter(|zone| !zone.is_unknown());
        self.zone = zone.ok_or_else(|| {
            Error::Invalid(format!("a zone must be one of the zone database, such as Europe/Berlin, not {name:?}"))
        })?;
        Ok(self)
    }

    /// With what a period begins: the day of a month (1 to 31; of a month that is too short its last), the day of a week (1,
    /// Monday, to 7), or the month of a year (1 to 12). 1 unless set, and alone for a day.
    pub fn starts(mut self, with: u8) -> Result<Self, Error> {
        let (unit, most) = (self.unit.name(), self.unit.last_start());
        let with_checked = i8::try_from(with).ok().filter(|with| (1..=most).contains(with));
        self.starts = with_checked
            .ok_or_else(|| Error::Invalid(format!("starts of a {unit} must be from 1 to {most}, not {with}")))?;
        Ok(self)
    }

    /// The window as the commands take it, at this time.
    pub(crate) fn period(&self, time: u64) -> String {
        format!("@{}", self.end(time).unwrap_or(u64::MAX))
    }

    /// As the policy of other rules.
    #[cfg(feature = "tower")]
    pub(crate) fn policy(&self) -> String {
        let zone = self.zone.iana_name().unwrap_or("UTC");
        let starts = if self.starts == 1 { String::new() } else { format!(" {}", self.starts) };
        format!("calendar-{}/{} {zone}{starts}", self.limit, self.unit.name())
    }

    /// The end of the period in which a time lies, both in unix milliseconds. `None` within some years of the ends
    /// of the calendar, in the year 9999.
    pub(crate) fn end(&self, time: u64) -> Option<u64> {
        let time = Timestamp::from_millisecond(i64::try_from(time).ok()?).ok()?;
        // No date begins later than a time that lies in it.
        let days = successors(Some(self.zone.to_datetime(time).date()), |day| day.tomorrow().ok());
        let mut begin = days.filter(|day| self.is_first(*day)).map_while(|day| self.begins(day));
        u64::try_from(begin.find(|begins| *begins > time)?.as_millisecond()).ok()
    }

    /// Whether a period begins with this date.
    fn is_first(&self, day: Date) -> bool {
        match self.unit {
            Unit::Day => true,
            Unit::Week => day.weekday().to_monday_one_offset() == self.starts,
            Unit::Month => day.day() == self.starts.min(day.days_in_month()),
            Unit::Year => day.month() == self.starts && day.day() == 1,
        }
    }

    /// The first moment of a local date: midnight, the earlier of two, or the end of the gap in which it lies.
    fn begins(&self, day: Date) -> Option<Timestamp> {
        let midnight = self.zone.to_ambiguous_timestamp(day.at(0, 0, 0, 0));
        let AmbiguousOffset::Gap { .. } = midnight.offset() else { return midnight.earlier().ok() };
        let behind = midnight.later().ok()?.checked_add(1.nanosecond()).ok()?;
        self.zone.preceding(behind).next().map(|change| change.timestamp())
    }
}

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

#[cfg(test)]
#[path = "../tests/unit/calendar.rs"]
mod tests;
