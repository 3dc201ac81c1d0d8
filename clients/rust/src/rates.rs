//! Rates, as text and as windows.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisWrite, ToRedisArgs};

use crate::error::Error;

/// 2^53 - 1, the largest limit and cost.
pub(crate) const MOST_UNITS: u64 = (1 << 53) - 1;
pub(crate) const MOST_MILLIS: u64 = 2_147_483_647_000;
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
    pub fn new(limit: u64, length: Duration) -> Result<Self, Error> {
        let millis = u64::try_from(length.as_millis()).ok();
        let whole = length.subsec_nanos().is_multiple_of(1_000_000);
        Self::checked(Some(limit), &limit.to_string(), millis.filter(|_| whole), &format!("{length:?}"))
    }

    /// The numbers, if they are in their ranges, and the texts that they were read from.
    pub(crate) fn checked(
        limit: Option<u64>,
        limit_text: &str,
        millis: Option<u64>,
        length: &str,
    ) -> Result<Self, Error> {
        let Some(limit) = limit.filter(|limit| *limit <= MOST_UNITS) else {
            return Err(Error::Invalid(format!("a limit must be from 0 to {MOST_UNITS}, not {limit_text}")));
        };
        let Some(millis) = millis.filter(|millis| (1..=MOST_MILLIS).contains(millis)) else {
            return Err(Error::Invalid(format!(
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
    fn parse(text: &str) -> Result<Self, Error> {
        let text = text.trim_ascii();
        let bad = || {
            Error::Invalid(format!(
                "a rate looks like 100/minute, 10/s or 5 per 2 hours (ms, second, minute, hour, day, week), not {text:?}"
            ))
        };
        let (limit_text, length) = sides(text).ok_or_else(bad)?;
        let limit = digits(limit_text).ok_or_else(bad)?;
        let end = length.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (times, unit) = length.split_at(end);
        let unit = unit_millis(&unit.trim_ascii().to_ascii_lowercase()).ok_or_else(bad)?;
        // In thousandths, so that 0.25 is exact.
        let times = if times.is_empty() { Some(1000) } else { thousandths(times).ok_or_else(bad)? };
        let product = times.and_then(|times| times.checked_mul(unit)).filter(|product| product.is_multiple_of(1000));
        Self::checked(limit.parse().ok(), limit_text, product.map(|product| product / 1000), length)
    }
}

/// The limit of a rate, and what stands behind `/` or the word `per`.
pub(crate) fn sides(text: &str) -> Option<(&str, &str)> {
    let at_per = || {
        let (limit, rest) = text.split_once(|c: char| c.is_ascii_whitespace())?;
        let (per, time) = rest.trim_ascii_start().split_once(|c: char| c.is_ascii_whitespace())?;
        per.eq_ignore_ascii_case("per").then_some((limit, time))
    };
    let (limit, time) = text.split_once('/').or_else(at_per)?;
    Some((limit.trim_ascii(), time.trim_ascii()))
}

/// Digits without the single underscores that may stand between them.
pub(crate) fn digits(text: &str) -> Option<String> {
    text.split('_').all(is_number).then(|| text.replace('_', ""))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
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
    (is_number(whole) && is_number(places) && places.len() <= 3).then(|| format!("{whole}{places:0<3}").parse().ok())
}

/// Milliseconds as the commands take seconds: `60`, `0.25`.
pub(crate) struct Seconds(pub u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1000, self.0 % 1000);
        if rest == 0 {
            return whole.fmt(f);
        }
        f.write_str(format!("{whole}.{rest:03}").trim_end_matches('0'))
    }
}

impl ToRedisArgs for Seconds {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        if self.0.is_multiple_of(1000) { (self.0 / 1000).write_redis_args(out) } else { out.write_arg_fmt(self) }
    }
}

/// What a rule takes for its windows: text such as `"100/minute"` or `"10/second, 1000/hour"`, a limit with a
/// [`Duration`], a [`Window`], or several of them.
///
/// In text, a rate is a limit, `/` or the word `per`, and a time: `ms`, `s`, `min`, `h`, `d`, `w` or their longer names,
/// in either case, with a number before it if it is not one (`15min`, `0.25 s`, at most three decimal places). A limit
/// may have underscores between its digits. Several rates are joined by commas.
///
/// It is an error if text is not a list of rates, or a number is out of its range.
pub trait Rates {
    #[doc(hidden)]
    fn windows(self) -> Result<Vec<Window>, Error>;
}

impl<T: AsRef<str> + ?Sized> Rates for &T {
    fn windows(self) -> Result<Vec<Window>, Error> {
        self.as_ref().split(',').map(Window::parse).collect()
    }
}

impl Rates for (u64, Duration) {
    fn windows(self) -> Result<Vec<Window>, Error> {
        Ok(vec![Window::new(self.0, self.1)?])
    }
}

impl Rates for Window {
    fn windows(self) -> Result<Vec<Window>, Error> {
        Ok(vec![self])
    }
}

impl<T: Rates> Rates for Vec<T> {
    fn windows(self) -> Result<Vec<Window>, Error> {
        let windows: Vec<_> = self.into_iter().map(T::windows).collect::<Result<_, _>>()?;
        Ok(windows.concat())
    }
}

impl<T: Rates, const N: usize> Rates for [T; N] {
    fn windows(self) -> Result<Vec<Window>, Error> {
        Vec::from(self).windows()
    }
}

/// In increasing order, as the commands want them.
pub(crate) fn ordered(rates: impl Rates) -> Result<Arc<[Window]>, Error> {
    let mut windows = rates.windows()?;
    windows.sort_by_key(|window| window.millis);
    if !(1..=MOST_WINDOWS).contains(&windows.len()) {
        return Err(Error::Invalid(format!("a rule has 1 to {MOST_WINDOWS} windows, not {}", windows.len())));
    }
    if windows.is_sorted_by(|a, b| a.millis < b.millis) {
        return Ok(windows.into());
    }
    Err(Error::Invalid("each window of a rule must have another length".to_owned()))
}
