//! Rules as values: what is limited, without the key.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::error::InvalidRule;
use crate::headers;

/// 2^53 - 1, the largest limit and cost.
const MOST_UNITS: u64 = (1 << 53) - 1;
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
    pub fn new(limit: u64, length: Duration) -> Result<Self, InvalidRule> {
        let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        if !length.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(bad_length(&format!("{length:?}")));
        }
        Self::checked(limit, millis, &format!("{length:?}"))
    }

    fn checked(limit: u64, millis: u64, length: &str) -> Result<Self, InvalidRule> {
        if limit > MOST_UNITS {
            return Err(InvalidRule(format!("a limit must be from 0 to {MOST_UNITS}, not {limit}")));
        }
        if !(1..=MOST_MILLIS).contains(&millis) {
            return Err(bad_length(length));
        }
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
    fn parse(text: &str) -> Result<Self, InvalidRule> {
        let bad = || {
            InvalidRule(format!(
                "a rate looks like 100/minute, 10/s or 5 per 2 hours (ms, second, minute, hour, day, week), not {text:?}"
            ))
        };
        let (limit, length) = text.split_once('/').or_else(|| text.split_once(" per ")).ok_or_else(bad)?;
        let digits: String = limit.trim().chars().filter(|c| *c != '_').collect();
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let limit = digits.parse().unwrap_or(u64::MAX);
        let length = length.trim();
        let (times, unit) = length.split_at(length.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?);
        let unit = unit_millis(&unit.to_ascii_lowercase()).ok_or_else(bad)?;
        // In thousandths, so that 0.25 is exact.
        let times = match times.trim() {
            "" => 1000,
            times => thousandths(times).ok_or_else(bad)?,
        };
        let product = times.checked_mul(unit).ok_or_else(|| bad_length(length))?;
        if !product.is_multiple_of(1000) {
            return Err(bad_length(length));
        }
        Self::checked(limit, product / 1000, length)
    }
}

fn bad_length(length: &str) -> InvalidRule {
    InvalidRule(format!("a time must be from 0.001 to 2147483647 seconds, in whole milliseconds, not {length}"))
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

/// A decimal with at most three places, in thousandths.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(places) || places.len() > 3 {
        return None;
    }
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(format!("{places:0<3}").parse().ok()?)
}

/// Milliseconds as the commands take seconds: `60`, `0.25`.
pub(crate) fn seconds(millis: u64) -> String {
    let (whole, rest) = (millis / 1000, millis % 1000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:03}").trim_end_matches('0').to_owned()
}

/// What a rule takes for its windows: text such as `"100/minute"` or `"10/second, 1000/hour"`, a [`Window`], or several
/// of them.
pub trait Rates {
    /// The windows.
    ///
    /// # Errors
    /// If text is not a list of rates, or a number is out of its range.
    fn windows(self) -> Result<Vec<Window>, InvalidRule>;
}

impl Rates for &str {
    fn windows(self) -> Result<Vec<Window>, InvalidRule> {
        self.split(',').map(|rate| Window::parse(rate.trim())).collect()
    }
}

impl Rates for &String {
    fn windows(self) -> Result<Vec<Window>, InvalidRule> {
        self.as_str().windows()
    }
}

impl Rates for Window {
    fn windows(self) -> Result<Vec<Window>, InvalidRule> {
        Ok(vec![self])
    }
}

impl Rates for &[Window] {
    fn windows(self) -> Result<Vec<Window>, InvalidRule> {
        Ok(self.to_vec())
    }
}

impl<T: Rates, const N: usize> Rates for [T; N] {
    fn windows(self) -> Result<Vec<Window>, InvalidRule> {
        let mut windows = Vec::with_capacity(N);
        for rates in self {
            windows.extend(rates.windows()?);
        }
        Ok(windows)
    }
}

/// In increasing order, as the commands want them.
fn ordered(rates: impl Rates) -> Result<Arc<[Window]>, InvalidRule> {
    let mut windows = rates.windows()?;
    windows.sort_by_key(|window| window.millis);
    if !(1..=MOST_WINDOWS).contains(&windows.len()) {
        return Err(InvalidRule(format!("a rule has 1 to {MOST_WINDOWS} windows, not {}", windows.len())));
    }
    if windows.is_sorted_by(|a, b| a.millis < b.millis) {
        return Ok(windows.into());
    }
    Err(InvalidRule("each window of a rule must have another length".to_owned()))
}

/// How a rule is called in HTTP headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Label {
    pub name: Option<Arc<str>>,
    pub unit: Option<Arc<str>>,
}

/// The methods that rules have in common.
macro_rules! labelled {
    ($rule:ident) => {
        impl $rule {
            /// Names the policy in HTTP headers; `default` where there is no name. Of several windows each gets its
            /// length behind the name: `api-60s`.
            ///
            /// # Errors
            /// If the name is empty or not printable ASCII.
            pub fn name(mut self, name: &str) -> Result<Self, InvalidRule> {
                self.label.name = Some(headers::checked(name)?.into());
                Ok(self)
            }

            /// What is counted, for `qu` in the header RateLimit-Policy, where it is not requests: `content-bytes`, for
            /// example.
            ///
            /// # Errors
            /// If the unit is empty or not printable ASCII.
            pub fn unit(mut self, unit: &str) -> Result<Self, InvalidRule> {
                self.label.unit = Some(headers::checked(unit)?.into());
                Ok(self)
            }
        }
    };
}

macro_rules! weighed {
    ($rule:ident) => {
        impl $rule {
            /// The request weighs so many units, 1 to 2^53 − 1, and fits whole or not at all. Without a cost it weighs
            /// one. 0 is for [`Limiter::peek`](crate::Limiter::peek) alone, where it shows the state as it is.
            #[must_use]
            pub fn cost(mut self, units: u64) -> Self {
                self.cost = Some(units);
                self
            }

            /// The request is counted whether it fits or not. `allowed` still says whether it fitted.
            #[must_use]
            pub fn force(mut self) -> Self {
                self.force = true;
                self
            }

            /// The windows, shortest first.
            pub fn windows(&self) -> &[Window] {
                &self.windows
            }

            fn write_windows(&self, cmd: &mut Cmd) {
                for window in self.windows.iter() {
                    cmd.arg(seconds(window.millis)).arg(window.limit);
                }
            }

            fn write_options(&self, cmd: &mut Cmd) {
                if let Some(cost) = self.cost {
                    cmd.arg("COST").arg(cost);
                }
                if self.force {
                    cmd.arg("FORCE");
                }
            }
        }

        impl Metered for $rule {
            fn with_cost(self, units: u64) -> Self {
                self.cost(units)
            }

            fn forced(self) -> Self {
                self.force()
            }
        }
    };
}

/// `RL.SLIDING`: at most `limit` units in any stretch of time as long as a window. Made by [`Rule::sliding`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sliding {
    windows: Arc<[Window]>,
    cost: Option<u64>,
    force: bool,
    label: Label,
}

labelled!(Sliding);
weighed!(Sliding);

/// `RL.FIXED`: at most `limit` units in each window, which starts at a multiple of its length since the epoch. Made by
/// [`Rule::fixed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    windows: Arc<[Window]>,
    anchored: bool,
    cost: Option<u64>,
    force: bool,
    label: Label,
}

labelled!(Fixed);
weighed!(Fixed);

impl Fixed {
    /// A window begins with its first request, and not at a multiple of its length since the epoch.
    #[must_use]
    pub fn anchored(mut self) -> Self {
        self.anchored = true;
        self
    }
}

/// `RL.THROTTLE`: a steady rate with a burst (GCRA). Made by [`Rule::throttle`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throttle {
    max_burst: u64,
    count: u64,
    period: u64,
    quantity: Option<u64>,
    label: Label,
}

labelled!(Throttle);

impl Throttle {
    /// How many units may come at once after a pause, above the first: the limit is `max_burst + 1`. Without it, one
    /// less than the rate's count.
    #[must_use]
    pub fn max_burst(mut self, units: u64) -> Self {
        self.max_burst = units;
        self
    }

    /// The request weighs so many units. 0 looks and counts nothing.
    #[must_use]
    pub fn quantity(mut self, units: u64) -> Self {
        self.quantity = Some(units);
        self
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
    /// Who holds the lease: any bytes that no other holder has. [`Limiter::acquire`](crate::Limiter::acquire) makes up a
    /// holder where there is none; elsewhere a rule without one is an error.
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
/// A rule holds no connection and is cheap to clone. Make it once and use it for every key.
///
/// ```
/// use redis_rl_client::Rule;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), redis_rl_client::InvalidRule> {
/// let api = Rule::sliding("10/second, 100/minute")?.name("api")?;
/// let tokens = Rule::sliding("200_000/minute")?.cost(1800);
/// let logins = Rule::fixed("5 per 15 minutes")?.anchored();
/// let steady = Rule::throttle("30/minute")?.max_burst(15);
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
    /// `RL.THROTTLE`
    Throttle(Throttle),
    /// `RL.ACQUIRE`
    Lease(Lease),
}

impl Rule {
    /// An exact sliding window, or several (up to 16, all or nothing).
    ///
    /// # Errors
    /// If the rates cannot be read, are out of range, or two windows have one length.
    pub fn sliding(rates: impl Rates) -> Result<Sliding, InvalidRule> {
        Ok(Sliding { windows: ordered(rates)?, cost: None, force: false, label: Label::default() })
    }

    /// A fixed window, or several (up to 16, all or nothing): one counter for each. Up to twice the limit can pass
    /// around the turn of a window. With one window and no cost, denials are counted too.
    ///
    /// # Errors
    /// If the rates cannot be read, are out of range, or two windows have one length.
    pub fn fixed(rates: impl Rates) -> Result<Fixed, InvalidRule> {
        Ok(Fixed { windows: ordered(rates)?, anchored: false, cost: None, force: false, label: Label::default() })
    }

    /// A steady rate, such as `"30/minute"`, with a burst of as many. The period is whole seconds.
    ///
    /// # Errors
    /// If the rate cannot be read, is 0, has more than one window, or its period is not whole seconds.
    pub fn throttle(rate: impl Rates) -> Result<Throttle, InvalidRule> {
        let windows = rate.windows()?;
        let [Window { limit: count, millis }] = windows.as_slice() else {
            return Err(InvalidRule(format!("a throttle has one rate, not {}", windows.len())));
        };
        if *count == 0 || !millis.is_multiple_of(1000) {
            return Err(InvalidRule("a throttle needs at least one unit in whole seconds".to_owned()));
        }
        let max_burst = count.saturating_sub(1);
        Ok(Throttle { max_burst, count: *count, period: millis / 1000, quantity: None, label: Label::default() })
    }

    /// At most `limit` holders at a time (0 to 2^53 − 1), each for `length` (0.001 to 2147483647 seconds, whole
    /// milliseconds) unless it renews its lease or gives it back.
    ///
    /// # Errors
    /// If one of the two is out of its range.
    pub fn lease(limit: u64, length: Duration) -> Result<Lease, InvalidRule> {
        let Window { limit, millis } = Window::new(limit, length)?;
        Ok(Lease { limit, millis, holder: None, label: Label::default() })
    }

    /// The command's name behind `RL.`, and behind `rl_` in the function library.
    pub(crate) fn command(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Sliding(_) => ("RL.SLIDING", "rl_sliding", "sliding"),
            Self::Fixed(_) => ("RL.FIXED", "rl_fixed", "fixed"),
            Self::Throttle(_) => ("RL.THROTTLE", "rl_throttle", "throttle"),
            Self::Lease(_) => ("RL.ACQUIRE", "rl_acquire", "acquire"),
        }
    }

    /// The word that the rule has in front of it in RL.PEEK, RL.REFUND and RL.ALL.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Sliding(_) => "SLIDING",
            Self::Fixed(_) => "FIXED",
            Self::Throttle(_) => "THROTTLE",
            Self::Lease(_) => "ACQUIRE",
        }
    }

    /// The rule as the commands take it.
    pub(crate) fn write(&self, cmd: &mut Cmd) {
        match self {
            Self::Sliding(rule) => {
                rule.write_windows(cmd);
                rule.write_options(cmd);
            }
            Self::Fixed(rule) => {
                rule.write_windows(cmd);
                if rule.anchored {
                    cmd.arg("ANCHORED");
                }
                rule.write_options(cmd);
            }
            Self::Throttle(rule) => {
                cmd.arg(rule.max_burst).arg(rule.count).arg(rule.period);
                if let Some(quantity) = rule.quantity {
                    cmd.arg(quantity);
                }
            }
            Self::Lease(rule) => {
                cmd.arg(rule.limit).arg(seconds(rule.millis)).arg(rule.holder.as_deref().unwrap_or_default());
            }
        }
    }

    /// Refuses what no server takes, before anything is sent.
    pub(crate) fn check(&self, peeked: bool) -> Result<(), InvalidRule> {
        let cost = match self {
            Self::Sliding(rule) => rule.cost,
            Self::Fixed(rule) => rule.cost,
            Self::Throttle(_) => None,
            Self::Lease(rule) if rule.holder.is_none() => {
                return Err(InvalidRule("the lease has no holder: say who with Lease::holder".to_owned()));
            }
            Self::Lease(_) => None,
        };
        match cost {
            Some(0) if !peeked => Err(InvalidRule("a cost of 0 is for peek alone".to_owned())),
            Some(cost) if cost > MOST_UNITS => {
                Err(InvalidRule(format!("a cost must be from 1 to {MOST_UNITS}, not {cost}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the answer is asked for window by window. Where a request is forced on several windows, the wait of the
    /// whole call cannot be told from those of the windows: one that had room may have none now.
    pub(crate) fn wants_each(&self) -> bool {
        match self {
            Self::Sliding(rule) => rule.windows.len() > 1 && !rule.force,
            Self::Fixed(rule) => rule.windows.len() > 1 && !rule.force,
            Self::Throttle(_) | Self::Lease(_) => false,
        }
    }

    /// The windows that the rule names; none for a throttle and a lease.
    pub(crate) fn windows(&self) -> &[Window] {
        match self {
            Self::Sliding(rule) => &rule.windows,
            Self::Fixed(rule) => &rule.windows,
            Self::Throttle(_) | Self::Lease(_) => &[],
        }
    }

    pub(crate) fn label(&self) -> &Label {
        match self {
            Self::Sliding(rule) => &rule.label,
            Self::Fixed(rule) => &rule.label,
            Self::Throttle(rule) => &rule.label,
            Self::Lease(rule) => &rule.label,
        }
    }
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

kinds!(Sliding, Fixed, Throttle, Lease);

impl From<&Self> for Rule {
    fn from(rule: &Self) -> Self {
        rule.clone()
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Sliding {}
    impl Sealed for super::Fixed {}
    impl Sealed for super::Throttle {}
    impl<T: Sealed> Sealed for &T {}
}

/// A rule whose units can be taken back by [`Limiter::refund`](crate::Limiter::refund). A lease is given back by
/// [`Limiter::release`](crate::Limiter::release) instead.
pub trait Refundable: sealed::Sealed + Into<Rule> {}

impl Refundable for Sliding {}
impl Refundable for Fixed {}
impl Refundable for Throttle {}
impl Refundable for &Sliding {}
impl Refundable for &Fixed {}
impl Refundable for &Throttle {}

/// A rule that a [`Budget`](crate::Budget) can be made of: it takes any cost, and counts what is over the limit if it is
/// told to.
pub trait Metered: Refundable + Clone + Send + Sync + 'static {
    /// The same rule for a request of another weight.
    #[must_use]
    fn with_cost(self, units: u64) -> Self;

    /// The same rule, which counts a request whether it fits or not.
    #[must_use]
    fn forced(self) -> Self;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(rule: impl Into<Rule>) -> String {
        let mut cmd = Cmd::new();
        rule.into().write(&mut cmd);
        let words = cmd.args_iter().map(|arg| match arg {
            redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            _ => unreachable!("only plain arguments are written"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rates_are_read_exactly() {
        assert_eq!(words(Rule::sliding("100/minute").unwrap()), "60 100");
        assert_eq!(words(Rule::sliding("1_000 per 2 hours, 10/s").unwrap()), "1 10 7200 1000");
        assert_eq!(words(Rule::sliding("3/0.25s").unwrap().cost(2).force()), "0.25 3 COST 2 FORCE");
        assert_eq!(words(Rule::fixed(["5/100ms", "7/1.5 min"]).unwrap().anchored()), "0.1 5 90 7 ANCHORED");
        assert_eq!(words(Rule::sliding(Window::new(0, Duration::from_millis(1)).unwrap()).unwrap()), "0.001 0");
        assert_eq!(words(Rule::throttle("30/minute").unwrap()), "29 30 60");
        assert_eq!(words(Rule::throttle("30/minute").unwrap().max_burst(15).quantity(2)), "15 30 60 2");
        assert_eq!(words(Rule::lease(3, Duration::from_secs(2)).unwrap().holder("me")), "3 2 me");
        assert_eq!(words(Rule::sliding("9007199254740991/2147483647s").unwrap()), "2147483647 9007199254740991");
    }

    #[test]
    fn what_no_server_takes_is_refused() {
        for text in [
            "",
            "100",
            "/minute",
            "100/",
            "100/fortnight",
            "-1/s",
            "1.5/s",
            "1/0s",
            "1/0.0001s",
            "1/1.2345s",
            "1/.5s",
            "1/s, 2/1000ms",
            "9007199254740992/s",
            "1/2147483648s",
            "1/99999999999999999999 weeks",
            "1/0.5ms",
            "+5/s",
            "1/s,",
            "99999999999999999999999/s",
        ] {
            assert!(Rule::sliding(text).is_err(), "{text:?} was taken");
        }
        assert!(Window::new(1, Duration::from_micros(1500)).is_err());
        assert!(Window::new(1, Duration::MAX).is_err());
        let lengths: Vec<_> = (1..=17).map(|length| Window::new(1, Duration::from_secs(length)).unwrap()).collect();
        assert!(Rule::sliding(lengths.as_slice()).is_err());
        assert!(Rule::sliding(&lengths[..16]).is_ok());
        assert!(Rule::throttle("0/s").is_err());
        assert!(Rule::throttle("1/0.5s").is_err());
        assert!(Rule::throttle("1/s, 2/m").is_err());
        assert!(Rule::sliding("1/s").unwrap().name("").is_err());
        assert!(Rule::sliding("1/s").unwrap().name("Größe").is_err());
        let free: Rule = Rule::sliding("1/s").unwrap().cost(0).into();
        assert!(free.check(false).is_err());
        assert!(free.check(true).is_ok());
        let nobody: Rule = Rule::lease(1, Duration::from_secs(1)).unwrap().into();
        assert!(nobody.check(false).is_err());
    }
}
