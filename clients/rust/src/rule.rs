//! Rules as values: what is limited, without the key.

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use redis::Cmd;

use crate::calendar::{Clock, Periods, Unit};
use crate::error::InvalidArgument;

/// 2^53 - 1, the largest limit and cost.
pub(crate) const MOST_UNITS: u64 = (1 << 53) - 1;
const MOST_MILLIS: u64 = 2_147_483_647_000;
const MOST_WINDOWS: usize = 16;

/// At most `limit` units in a length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub(crate) limit: u64,
    pub(crate) millis: u64,
}

impl Window {
    /// A limit of units (0 to 2^53 − 1; 0 denies everything) in a time (0.001 to 2147483647 seconds, whole
    /// milliseconds).
    ///
    /// # Errors
    /// If one of the two is out of its range.
    pub fn new(limit: u64, length: Duration) -> Result<Self, InvalidArgument> {
        let millis = u64::try_from(length.as_millis()).ok();
        let whole = length.subsec_nanos().is_multiple_of(1_000_000);
        Self::checked(Some(limit), &limit.to_string(), millis.filter(|_| whole), &format!("{length:?}"))
    }

    /// The numbers, if they are in their ranges, and the texts that they were read from.
    fn checked(
        limit: Option<u64>,
        limit_text: &str,
        millis: Option<u64>,
        length: &str,
    ) -> Result<Self, InvalidArgument> {
        let Some(limit) = limit.filter(|limit| *limit <= MOST_UNITS) else {
            return Err(InvalidArgument(format!("a limit must be from 0 to {MOST_UNITS}, not {limit_text}")));
        };
        let Some(millis) = millis.filter(|millis| (1..=MOST_MILLIS).contains(millis)) else {
            return Err(InvalidArgument(format!(
                "a time must be from 0.001 to 2147483647 seconds, in whole milliseconds, not {length}"
            )));
        };
        Ok(Self { limit, millis })
    }

    /// Units.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How long the window is.
    pub fn length(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// Reads `100/minute`, `10/s` or `5 per 2 hours`.
    fn parse(text: &str) -> Result<Self, InvalidArgument> {
        let text = text.trim_matches(|c: char| c.is_ascii_whitespace());
        let bad = || {
            InvalidArgument(format!(
                "a rate looks like 100/minute, 10/s or 5 per 2 hours (ms, second, minute, hour, day, week), not {text:?}"
            ))
        };
        let (limit_text, length) = text.split_once('/').or_else(|| split_at_per(text)).ok_or_else(bad)?;
        let limit_text = limit_text.trim_ascii();
        let limit = digits(limit_text).ok_or_else(bad)?;
        let length = length.trim_ascii();
        let end = length.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (times, unit) = length.split_at(end);
        let unit = unit_millis(&unit.trim_ascii().to_ascii_lowercase()).ok_or_else(bad)?;
        // In thousandths, so that 0.25 is exact.
        let times = if times.is_empty() { Some(1000) } else { thousandths(times).ok_or_else(bad)? };
        let product = times.and_then(|times| times.checked_mul(unit)).filter(|product| product.is_multiple_of(1000));
        Self::checked(limit.parse().ok(), limit_text, product.map(|product| product / 1000), length)
    }
}

/// The two sides of the word `per`.
fn split_at_per(text: &str) -> Option<(&str, &str)> {
    let (limit, rest) = text.split_once(|c: char| c.is_ascii_whitespace())?;
    let rest = rest.trim_ascii_start();
    let (per, length) = rest.split_once(|c: char| c.is_ascii_whitespace())?;
    per.eq_ignore_ascii_case("per").then_some((limit, length))
}

/// Digits without the single underscores that may stand between them.
fn digits(text: &str) -> Option<String> {
    let each_is_a_number = text.split('_').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    each_is_a_number.then(|| text.replace('_', ""))
}

fn unit_millis(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" | "millisecond" | "milliseconds" => 1,
        "s" | "sec" | "secs" | "second" | "seconds" => 1000,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600_000,
        "d" | "day" | "days" => 86_400_000,
        "w" | "week" | "weeks" => 604_800_000,
        _ => return None,
    })
}

/// A decimal with at most three places, in thousandths; `None` within if it is too large.
fn thousandths(text: &str) -> Option<Option<u64>> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(places) || places.len() > 3 {
        return None;
    }
    let whole = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(1000));
    let places = format!("{places:0<3}").parse::<u64>().ok();
    Some(whole.zip(places).and_then(|(whole, places)| whole.checked_add(places)))
}

/// Milliseconds as the commands take seconds: `60`, `0.25`.
pub(crate) fn seconds(millis: u64) -> String {
    let (whole, rest) = (millis / 1000, millis % 1000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:03}").trim_end_matches('0').to_owned()
}

/// What a rule takes for its windows: text such as `"100/minute"` or `"10/second, 1000/hour"`, a limit with a
/// [`Duration`], a [`Window`], or several of them.
///
/// In text, a rate is a limit, `/` or the word `per`, and a time: `ms`, `s`, `min`, `h`, `d`, `w` or their longer names,
/// in either case, with a number before it if it is not one (`15min`, `0.25 s`, at most three decimal places). A limit
/// may have underscores between its digits. Several rates are joined by commas.
///
/// It is an error if text is not a list of rates, or a number is out of its range.
pub trait Rates: sealed::Windows {}

impl<T: sealed::Windows> Rates for T {}

impl sealed::Windows for &str {
    fn windows(self) -> Result<Vec<Window>, InvalidArgument> {
        self.split(',').map(Window::parse).collect()
    }
}

impl sealed::Windows for &String {
    fn windows(self) -> Result<Vec<Window>, InvalidArgument> {
        self.as_str().windows()
    }
}

impl sealed::Windows for (u64, Duration) {
    fn windows(self) -> Result<Vec<Window>, InvalidArgument> {
        Ok(vec![Window::new(self.0, self.1)?])
    }
}

impl sealed::Windows for Window {
    fn windows(self) -> Result<Vec<Window>, InvalidArgument> {
        Ok(vec![self])
    }
}

impl sealed::Windows for &[Window] {
    fn windows(self) -> Result<Vec<Window>, InvalidArgument> {
        Ok(self.to_vec())
    }
}

impl<T: sealed::Windows> sealed::Windows for Vec<T> {
    fn windows(self) -> Result<Vec<Window>, InvalidArgument> {
        let mut windows = Vec::with_capacity(self.len());
        for rates in self {
            windows.extend(rates.windows()?);
        }
        Ok(windows)
    }
}

impl<T: sealed::Windows, const N: usize> sealed::Windows for [T; N] {
    fn windows(self) -> Result<Vec<Window>, InvalidArgument> {
        Vec::from(self).windows()
    }
}

/// In increasing order, as the commands want them.
fn ordered(rates: impl Rates) -> Result<Arc<[Window]>, InvalidArgument> {
    let mut windows = sealed::Windows::windows(rates)?;
    windows.sort_by_key(|window| window.millis);
    if !(1..=MOST_WINDOWS).contains(&windows.len()) {
        return Err(InvalidArgument(format!("a rule has 1 to {MOST_WINDOWS} windows, not {}", windows.len())));
    }
    if windows.is_sorted_by(|a, b| a.millis < b.millis) {
        return Ok(windows.into());
    }
    Err(InvalidArgument("each window of a rule must have another length".to_owned()))
}

/// How a rule is called in HTTP headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Label {
    pub name: Option<Arc<str>>,
    pub unit: Option<Arc<str>>,
}

/// A name or unit, if it can be a string of a structured field.
fn printable(what: &str, text: &str) -> Result<Arc<str>, InvalidArgument> {
    if text.is_empty() || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(InvalidArgument(format!("a {what} must be printable ASCII, at least one character, not {text:?}")));
    }
    Ok(text.into())
}

/// The methods that rules have in common.
macro_rules! labelled {
    ($rule:ident) => {
        impl $rule {
            /// Names the policy, for HTTP headers and for the keys of [`RateLimitLayer`](crate::RateLimitLayer). Without
            /// a name it is called by its window in the headers: `60s`. Of several windows each gets its length behind
            /// the name: `api-60s`.
            ///
            /// # Errors
            /// If the name is empty or not printable ASCII.
            pub fn name(mut self, name: &str) -> Result<Self, InvalidArgument> {
                self.label.name = Some(printable("name", name)?);
                Ok(self)
            }

            /// What is counted, for `qu` in the header RateLimit-Policy, where it is not requests: `content-bytes`, for
            /// example.
            ///
            /// # Errors
            /// If the unit is empty or not printable ASCII.
            pub fn unit(mut self, unit: &str) -> Result<Self, InvalidArgument> {
                self.label.unit = Some(printable("unit", unit)?);
                Ok(self)
            }
        }
    };
}

macro_rules! weighed {
    ($rule:ident) => {
        impl $rule {
            /// The request weighs this many units, 1 to 2^53 − 1, and fits whole or not at all. Without a cost it weighs
            /// one. 0 is for [`Limiter::peek`](crate::Limiter::peek), where it shows the state as it is, and for
            /// [`Limiter::all`](crate::Limiter::all), where the rule denies if no unit is left and counts nothing.
            #[must_use]
            pub fn cost(mut self, units: u64) -> Self {
                self.cost = Some(units);
                self
            }
        }
    };
}

macro_rules! windowed {
    ($rule:ident) => {
        impl $rule {
            /// The windows, shortest first.
            pub fn windows(&self) -> &[Window] {
                &self.windows
            }

            fn write_windows(&self, cmd: &mut Cmd) {
                for window in self.windows.iter() {
                    cmd.arg(seconds(window.millis)).arg(window.limit);
                }
            }
        }
    };
}

/// The methods of rules that can count over the limit, and hold what they have counted.
macro_rules! metered {
    ($rule:ident) => {
        impl $rule {
            /// The request is counted whether it fits or not. `allowed` still says whether it fitted.
            #[must_use]
            pub fn force(mut self) -> Self {
                self.force = true;
                self
            }

            /// These units (1 to 2^53 − 1) are reserved: for [`Limiter::reserve_all`](crate::Limiter::reserve_all) alone.
            #[must_use]
            pub fn reserved(mut self, units: u64) -> Self {
                (self.cost, self.hold) = (Some(units), Some(Hold::Wanted));
                self
            }

            /// The units of the cost are held by this holder (1 to 256 bytes) until they are settled, or the lease (0.001 to
            /// 2147483647 seconds, whole milliseconds) is over: see [`Limiter::settle`](crate::Limiter::settle).
            ///
            /// # Errors
            /// If one of the two is out of its range.
            pub fn held_by(mut self, holder: &str, lease: Duration) -> Result<Self, InvalidArgument> {
                if !(1..=256).contains(&holder.len()) {
                    return Err(InvalidArgument(format!("a holder has 1 to 256 bytes, not {}", holder.len())));
                }
                let Window { millis, .. } = Window::new(0, lease)?;
                self.hold = Some(Hold::By { holder: holder.into(), millis });
                Ok(self)
            }

            fn write_options(&self, cmd: &mut Cmd, cost: Option<u64>) {
                if let Some(cost) = cost {
                    cmd.arg("COST").arg(cost);
                }
                if let Some(Hold::By { holder, millis }) = &self.hold {
                    cmd.arg("HOLD").arg(&**holder).arg(seconds(*millis));
                }
                if self.force {
                    cmd.arg("FORCE");
                }
            }
        }

        impl Metered for $rule {}
        impl Metered for &$rule {}
    };
}

/// Whether units are reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hold {
    /// They are to be.
    Wanted,
    /// By this holder, for a lease.
    By { holder: Arc<str>, millis: u64 },
}

/// `RL.SLIDING`: at most `limit` units in any stretch of time as long as a window. Made by [`Rule::sliding`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sliding {
    windows: Arc<[Window]>,
    cost: Option<u64>,
    hold: Option<Hold>,
    force: bool,
    label: Label,
}

labelled!(Sliding);
weighed!(Sliding);
metered!(Sliding);
windowed!(Sliding);

/// `RL.FIXED`: at most `limit` units in each window, which starts at a multiple of its length since the epoch. Made by
/// [`Rule::fixed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    windows: Arc<[Window]>,
    anchored: bool,
    cost: Option<u64>,
    hold: Option<Hold>,
    force: bool,
    label: Label,
}

labelled!(Fixed);
weighed!(Fixed);
metered!(Fixed);
windowed!(Fixed);

impl Fixed {
    /// A window begins with its first request, and not at a multiple of its length since the epoch.
    #[must_use]
    pub fn anchored(mut self) -> Self {
        self.anchored = true;
        self
    }
}

/// `RL.FIXED` with a window of the calendar: a day, week, month or year of a time zone. Made by [`Rule::calendar`].
///
/// A period begins with the first moment of its local day, and ends where the next one begins. Each call works it out by
/// the clock of this process; where the server's clock is past its end already, the call is sent again with the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calendar {
    pub(crate) limit: u64,
    pub(crate) periods: Periods,
    cost: Option<u64>,
    hold: Option<Hold>,
    force: bool,
    label: Label,
}

labelled!(Calendar);
weighed!(Calendar);
metered!(Calendar);

impl Calendar {
    /// Units.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The time zone by its name in the zone database, such as `Europe/Berlin`; `UTC` unless set. The database is that of
    /// the system (`/usr/share/zoneinfo`, or `TZDIR`).
    ///
    /// # Errors
    /// If there is no zone of this name.
    pub fn zone(mut self, name: &str) -> Result<Self, InvalidArgument> {
        let zone = TimeZone::get(name).ok().filter(|zone| !zone.is_unknown());
        self.periods.zone = zone.ok_or_else(|| {
            InvalidArgument(format!("a zone must be one of the zone database, such as Europe/Berlin, not {name:?}"))
        })?;
        Ok(self)
    }

    /// With what a period begins: the day of a month (1 to 31; of a month that is too short its last), the day of a week (1,
    /// Monday, to 7), or the month of a year (1 to 12). 1 unless set.
    ///
    /// # Errors
    /// If it is out of that range. A day takes 1 alone.
    pub fn starts(mut self, with: u8) -> Result<Self, InvalidArgument> {
        let (unit, most) = (self.periods.unit.name(), self.periods.unit.last_start());
        let with_checked = i8::try_from(with).ok().filter(|with| (1..=most).contains(with));
        self.periods.starts = with_checked
            .ok_or_else(|| InvalidArgument(format!("starts of a {unit} must be from 1 to {most}, not {with}")))?;
        Ok(self)
    }
}

/// `RL.THROTTLE`: a steady rate with a burst (GCRA). Made by [`Rule::throttle`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttle {
    pub(crate) burst: u64,
    pub(crate) count: u64,
    /// Seconds.
    pub(crate) period: u64,
    cost: Option<u64>,
    label: Label,
}

labelled!(Throttle);
weighed!(Throttle);

impl Throttle {
    /// How many units may come at once after a pause, beyond the first (0 to 2^53 − 2): the limit is one more. Unless
    /// set, one less than the limit of the rate. It is redis-cell's `max_burst`.
    #[must_use]
    pub fn burst(mut self, units: u64) -> Self {
        self.burst = units;
        self
    }

    /// The time in which an empty bucket fills, as the server rounds it.
    pub(crate) fn fill_millis(&self) -> u64 {
        let interval = (u128::from(self.period) * 1_000_000_000).div_ceil(u128::from(self.count.max(1)));
        u64::try_from((interval * (u128::from(self.burst) + 1)).div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// `RL.ACQUIRE`: at most `limit` holders at a time. Made by [`Rule::lease`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub(crate) limit: u64,
    pub(crate) millis: u64,
    pub(crate) holder: Option<Arc<[u8]>>,
    label: Label,
}

labelled!(Lease);

impl Lease {
    /// Who holds the lease: any bytes, at least one, that no other holder has.
    /// [`Limiter::acquire`](crate::Limiter::acquire) makes a random holder where none is given; elsewhere a rule without
    /// one is an error.
    #[must_use]
    pub fn holder(mut self, holder: impl AsRef<[u8]>) -> Self {
        self.holder = Some(holder.as_ref().into());
        self
    }

    /// How long the lease lasts without a renewal.
    pub fn length(&self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

/// A rule of any kind: what a request is held to, without the key.
///
/// A rule holds no connection and is cheap to clone. Make it once and use it for every key. A key belongs to one rule.
///
/// ```
/// use redis_rl_client::Rule;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), redis_rl_client::InvalidArgument> {
/// let api = Rule::sliding("10/second, 100/minute")?.name("api")?;
/// let tokens = Rule::sliding("200_000/minute")?.cost(1800);
/// let logins = Rule::fixed("5 per 15 minutes")?.anchored();
/// let budget = Rule::calendar("5_000_000/month")?.zone("Europe/Berlin")?;
/// let steady = Rule::throttle("30/minute")?.burst(15);
/// let busy = Rule::lease(16, Duration::from_secs(120))?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// `RL.SLIDING`
    Sliding(Sliding),
    /// `RL.FIXED`
    Fixed(Fixed),
    /// `RL.FIXED`, by the calendar
    Calendar(Calendar),
    /// `RL.THROTTLE`
    Throttle(Throttle),
    /// `RL.ACQUIRE`
    Lease(Lease),
}

/// What a rule is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Hit,
    /// One that may weigh nothing: a peek, or a check in `all`.
    Check,
    /// As a check, or units of it are reserved.
    Reserve,
}

impl Rule {
    /// An exact sliding window, or several (up to 16, all or nothing).
    ///
    /// # Errors
    /// If the rates cannot be read, are out of range, or two windows have one length.
    pub fn sliding(rates: impl Rates) -> Result<Sliding, InvalidArgument> {
        Ok(Sliding { windows: ordered(rates)?, cost: None, hold: None, force: false, label: Label::default() })
    }

    /// A fixed window, or several (up to 16, all or nothing): one counter for each. Up to twice the limit can pass
    /// around the turn of a window. With one window and no cost, denials are counted too.
    ///
    /// # Errors
    /// If the rates cannot be read, are out of range, or two windows have one length.
    pub fn fixed(rates: impl Rates) -> Result<Fixed, InvalidArgument> {
        let windows = ordered(rates)?;
        Ok(Fixed { windows, anchored: false, cost: None, hold: None, force: false, label: Label::default() })
    }

    /// A window of the calendar, such as `"5_000_000/month"`: a day, week, month or year in UTC unless [`Calendar::zone`]
    /// says otherwise, which begins as [`Calendar::starts`] says.
    ///
    /// ```
    /// use redis_rl_client::Rule;
    ///
    /// # fn main() -> Result<(), redis_rl_client::InvalidArgument> {
    /// let billed = Rule::calendar("5_000_000/month")?.zone("Europe/Berlin")?.starts(15)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the rate cannot be read, or its limit is more than 2^53 − 1.
    pub fn calendar(rate: &str) -> Result<Calendar, InvalidArgument> {
        let bad = || {
            InvalidArgument(format!(
                "a rate of the calendar looks like 5_000_000/month or 100 per day (day, week, month, year), not {rate:?}"
            ))
        };
        let text = rate.trim_ascii();
        let (limit_text, unit) = text.split_once('/').or_else(|| split_at_per(text)).ok_or_else(bad)?;
        let unit = Unit::parse(unit.trim_ascii()).ok_or_else(bad)?;
        let digits = digits(limit_text.trim_ascii()).ok_or_else(bad)?;
        let Window { limit, .. } = Window::checked(digits.parse().ok(), limit_text, Some(1), "")?;
        let periods = Periods { unit, zone: TimeZone::UTC, starts: 1 };
        Ok(Calendar { limit, periods, cost: None, hold: None, force: false, label: Label::default() })
    }

    /// A steady rate, such as `"30/minute"`, with a burst of as many unless [`Throttle::burst`] says otherwise.
    ///
    /// # Errors
    /// If the rate cannot be read, is 0 or more than one unit a nanosecond, or there is more than one.
    pub fn throttle(rate: impl Rates) -> Result<Throttle, InvalidArgument> {
        let windows = rate.windows()?;
        let &[Window { limit, millis }] = windows.as_slice() else {
            return Err(InvalidArgument(format!("a throttle takes one rate, not {}", windows.len())));
        };
        if limit == 0 {
            return Err(InvalidArgument("a throttle needs a limit of at least 1, not 0".to_owned()));
        }
        // The command takes whole seconds: 5 in half a second are 10 in one.
        let factor = 1000 / gcd(millis, 1000);
        let (count, period) = (limit.saturating_mul(factor), millis * factor / 1000);
        if count > period.saturating_mul(1_000_000_000) || count > MOST_UNITS {
            return Err(InvalidArgument(format!(
                "a throttle allows at most one unit a nanosecond, not {limit} in {millis} ms"
            )));
        }
        Ok(Throttle { burst: limit - 1, count, period, cost: None, label: Label::default() })
    }

    /// At most `limit` holders at a time (0 to 2^53 − 1), each for `ttl` (0.001 to 2147483647 seconds, whole
    /// milliseconds) unless it renews its lease or gives it back.
    ///
    /// # Errors
    /// If one of the two is out of its range.
    pub fn lease(limit: u64, ttl: Duration) -> Result<Lease, InvalidArgument> {
        let Window { limit, millis } = Window::new(limit, ttl)?;
        Ok(Lease { limit, millis, holder: None, label: Label::default() })
    }

    /// The command's name behind `RL.`, and behind `rl_` in the function library.
    pub(crate) fn command(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Sliding(_) => ("RL.SLIDING", "rl_sliding", "sliding"),
            Self::Fixed(_) | Self::Calendar(_) => ("RL.FIXED", "rl_fixed", "fixed"),
            Self::Throttle(_) => ("RL.THROTTLE", "rl_throttle", "throttle"),
            Self::Lease(_) => ("RL.ACQUIRE", "rl_acquire", "acquire"),
        }
    }

    /// The word that the rule has in front of it in RL.PEEK, RL.REFUND and RL.ALL.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Sliding(_) => "SLIDING",
            Self::Fixed(_) | Self::Calendar(_) => "FIXED",
            Self::Throttle(_) => "THROTTLE",
            Self::Lease(_) => "ACQUIRE",
        }
    }

    /// The rule as the commands take it, at this time.
    pub(crate) fn write(&self, cmd: &mut Cmd, clock: &Clock) {
        match self {
            Self::Sliding(rule) => {
                rule.write_windows(cmd);
                // Always said, whatever it is: then the server stores a new log compactly.
                rule.write_options(cmd, rule.cost.or(Some(1)));
            }
            Self::Fixed(rule) => {
                rule.write_windows(cmd);
                if rule.anchored {
                    cmd.arg("ANCHORED");
                }
                rule.write_options(cmd, rule.cost);
            }
            Self::Calendar(rule) => {
                cmd.arg(format!("@{}", clock.end(&rule.periods))).arg(rule.limit);
                rule.write_options(cmd, rule.cost);
            }
            Self::Throttle(rule) => {
                cmd.arg(rule.burst).arg(rule.count).arg(rule.period);
                if let Some(cost) = rule.cost {
                    cmd.arg(cost);
                }
            }
            Self::Lease(rule) => {
                cmd.arg(rule.limit).arg(seconds(rule.millis)).arg(rule.holder.as_deref().unwrap_or_default());
            }
        }
    }

    /// Refuses what no server takes, before anything is sent.
    pub(crate) fn check(&self, wanted: Use) -> Result<(), InvalidArgument> {
        if let Self::Lease(rule) = self
            && rule.holder.as_deref().is_none_or(<[u8]>::is_empty)
        {
            return Err(InvalidArgument(
                "a lease needs a holder of at least one byte: say who with Lease::holder".to_owned(),
            ));
        }
        if let Self::Throttle(rule) = self
            && rule.burst >= MOST_UNITS
        {
            return Err(InvalidArgument(format!("a burst must be from 0 to {}, not {}", MOST_UNITS - 1, rule.burst)));
        }
        let is_wanted = self.hold() == Some(&Hold::Wanted);
        if wanted != Use::Reserve && is_wanted {
            return Err(InvalidArgument("a rule with reserved units is for Limiter::reserve_all".to_owned()));
        }
        let least = u64::from(wanted == Use::Hit);
        match self.cost() {
            Some(units) if is_wanted => {
                if self.is_forced() {
                    let what = "a reservation takes a rule without force: what does not fit is not charged";
                    return Err(InvalidArgument(what.to_owned()));
                }
                if (1..=MOST_UNITS).contains(&units) {
                    return Ok(());
                }
                Err(InvalidArgument(format!("reserved units must be from 1 to {MOST_UNITS}, not {units}")))
            }
            Some(cost) if !(least..=MOST_UNITS).contains(&cost) => {
                Err(InvalidArgument(format!("a cost must be from {least} to {MOST_UNITS}, not {cost}")))
            }
            _ => Ok(()),
        }
    }

    /// Units that a request weighs, where they are said.
    pub(crate) fn cost(&self) -> Option<u64> {
        match self {
            Self::Sliding(Sliding { cost, .. })
            | Self::Fixed(Fixed { cost, .. })
            | Self::Calendar(Calendar { cost, .. })
            | Self::Throttle(Throttle { cost, .. }) => *cost,
            Self::Lease(_) => None,
        }
    }

    /// The same rule for a request of another weight. A lease has none.
    #[cfg(feature = "tower")]
    pub(crate) fn weighing(self, units: u64) -> Self {
        match self {
            Self::Sliding(rule) => rule.cost(units).into(),
            Self::Fixed(rule) => rule.cost(units).into(),
            Self::Calendar(rule) => rule.cost(units).into(),
            Self::Throttle(rule) => rule.cost(units).into(),
            Self::Lease(rule) => rule.into(),
        }
    }

    pub(crate) fn is_forced(&self) -> bool {
        match self {
            Self::Sliding(rule) => rule.force,
            Self::Fixed(rule) => rule.force,
            Self::Calendar(rule) => rule.force,
            Self::Throttle(_) | Self::Lease(_) => false,
        }
    }

    /// Whether it limits the same, whatever a request weighs.
    pub(crate) fn limits_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sliding(one), Self::Sliding(other)) => one.windows == other.windows,
            (Self::Fixed(one), Self::Fixed(other)) => one.windows == other.windows && one.anchored == other.anchored,
            (Self::Calendar(one), Self::Calendar(other)) => (one.limit, &one.periods) == (other.limit, &other.periods),
            (Self::Throttle(one), Self::Throttle(other)) => {
                (one.burst, one.count, one.period) == (other.burst, other.count, other.period)
            }
            (one, other) => one == other,
        }
    }

    fn hold_mut(&mut self) -> Option<(&mut Option<u64>, &mut Option<Hold>)> {
        match self {
            Self::Sliding(rule) => Some((&mut rule.cost, &mut rule.hold)),
            Self::Fixed(rule) => Some((&mut rule.cost, &mut rule.hold)),
            Self::Calendar(rule) => Some((&mut rule.cost, &mut rule.hold)),
            Self::Throttle(_) | Self::Lease(_) => None,
        }
    }

    fn hold(&self) -> Option<&Hold> {
        match self {
            Self::Sliding(Sliding { hold, .. })
            | Self::Fixed(Fixed { hold, .. })
            | Self::Calendar(Calendar { hold, .. }) => hold.as_ref(),
            Self::Throttle(_) | Self::Lease(_) => None,
        }
    }

    /// Whether units of it are, or are to be, reserved.
    pub(crate) fn is_reserved(&self) -> bool {
        self.hold().is_some()
    }

    /// The same rule, of which this holder reserves the units of the cost.
    pub(crate) fn held(mut self, holder: &Arc<str>, millis: u64) -> Self {
        if let Some((_, hold)) = self.hold_mut() {
            *hold = Some(Hold::By { holder: Arc::clone(holder), millis });
        }
        self
    }

    /// The same rule, of which these units are to be reserved.
    pub(crate) fn reserving(mut self, units: u64) -> Self {
        if let Some((cost, hold)) = self.hold_mut() {
            (*cost, *hold) = (Some(units), Some(Hold::Wanted));
        }
        self
    }

    /// The most units that can ever fit.
    pub(crate) fn smallest_limit(&self) -> u64 {
        match self {
            Self::Sliding(_) | Self::Fixed(_) => self.windows().iter().map(Window::limit).min().unwrap_or(0),
            Self::Calendar(rule) => rule.limit,
            Self::Throttle(rule) => rule.burst.saturating_add(1),
            Self::Lease(rule) => rule.limit,
        }
    }

    /// Whether the answer is asked for window by window. Where a request is forced on several windows, the wait of the
    /// whole call cannot be told from those of the windows: one that had room may have none now.
    pub(crate) fn wants_each(&self) -> bool {
        self.windows().len() > 1 && !self.is_forced()
    }

    /// The windows that the rule names by their lengths; none for a calendar, a throttle and a lease.
    pub(crate) fn windows(&self) -> &[Window] {
        match self {
            Self::Sliding(rule) => &rule.windows,
            Self::Fixed(rule) => &rule.windows,
            Self::Calendar(_) | Self::Throttle(_) | Self::Lease(_) => &[],
        }
    }

    pub(crate) fn label(&self) -> &Label {
        match self {
            Self::Sliding(rule) => &rule.label,
            Self::Fixed(rule) => &rule.label,
            Self::Calendar(rule) => &rule.label,
            Self::Throttle(rule) => &rule.label,
            Self::Lease(rule) => &rule.label,
        }
    }

    /// What tells the rule from others in the keys of an adapter: its name, or else its kind with its limits.
    #[cfg(feature = "tower")]
    pub(crate) fn policy(&self) -> String {
        if let Some(name) = &self.label().name {
            return name.to_string();
        }
        let windows = || {
            let each = self.windows().iter().map(|window| format!("{}/{}s", window.limit, seconds(window.millis)));
            each.collect::<Vec<_>>().join(",")
        };
        match self {
            Self::Sliding(_) => format!("sliding-{}", windows()),
            Self::Fixed(rule) if rule.anchored => format!("anchored-{}", windows()),
            Self::Fixed(_) => format!("fixed-{}", windows()),
            Self::Calendar(Calendar { limit, periods: Periods { unit, zone, starts }, .. }) => {
                let zone = zone.iana_name().unwrap_or("UTC");
                let starts = if *starts == 1 { String::new() } else { format!(" {starts}") };
                format!("calendar-{limit}/{} {zone}{starts}", unit.name())
            }
            Self::Throttle(rule) => format!("throttle-{}-{}/{}s", rule.burst, rule.count, rule.period),
            Self::Lease(rule) => format!("lease-{}/{}s", rule.limit, seconds(rule.millis)),
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

macro_rules! kinds {
    ($($kind:ident),*) => {
        $(impl From<$kind> for Rule {
            fn from(rule: $kind) -> Self {
                Self::$kind(rule)
            }
        }

        impl From<&$kind> for Rule {
            fn from(rule: &$kind) -> Self {
                Self::$kind(rule.clone())
            }
        })*
    };
}

kinds!(Sliding, Fixed, Calendar, Throttle, Lease);

impl From<&Self> for Rule {
    fn from(rule: &Self) -> Self {
        rule.clone()
    }
}

pub(crate) mod sealed {
    use super::{InvalidArgument, Window};

    pub trait Windows {
        fn windows(self) -> Result<Vec<Window>, InvalidArgument>;
    }

    pub trait Sealed {}
    impl Sealed for super::Sliding {}
    impl Sealed for super::Fixed {}
    impl Sealed for super::Calendar {}
    impl Sealed for super::Throttle {}
    impl<T: Sealed> Sealed for &T {}
}

/// A rule that counts units, and can take them back: all but a lease, which is given back by
/// [`Limiter::release`](crate::Limiter::release).
pub trait Counting: sealed::Sealed + Into<Rule> {}

impl Counting for Sliding {}
impl Counting for Fixed {}
impl Counting for Calendar {}
impl Counting for Throttle {}
impl Counting for &Sliding {}
impl Counting for &Fixed {}
impl Counting for &Calendar {}
impl Counting for &Throttle {}

/// A rule of which units can be reserved: sliding and fixed windows, and those of the calendar. See
/// [`Limiter::reserve`](crate::Limiter::reserve).
pub trait Metered: Counting {}
