//! Rules as values: what is limited, without the key.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

#[cfg(feature = "calendar")]
use crate::calendar::Calendar;
use crate::command::Command;
use crate::common::{Common, Reserved, printable};
use crate::error::Error;
use crate::rates::{MOST_UNITS, Rates, Seconds, Window, ordered};

/// A kind of rule, with the methods that it shares with others.
macro_rules! kind {
    ($rule:ident $(, $trait:ident)*) => {
        impl $rule {
            /// Names the policy, in printable ASCII, for HTTP headers and for the keys of
            /// [`RateLimitLayer`](crate::RateLimitLayer). Without a name it is called by its window in the headers: `60s`.
            /// Of several windows each gets its length behind the name: `api-60s`.
            pub fn name(mut self, name: &str) -> Result<Self, Error> {
                self.with.name = printable("name", name)?;
                Ok(self)
            }

            /// What is counted, in printable ASCII, for `qu` in the header RateLimit-Policy, where it is not requests:
            /// `content-bytes`, for example.
            pub fn unit(mut self, unit: &str) -> Result<Self, Error> {
                self.with.unit = printable("unit", unit)?;
                Ok(self)
            }
        }

        impl From<$rule> for Rule {
            fn from(rule: $rule) -> Self {
                Self::$rule(rule)
            }
        }

        impl From<&$rule> for Rule {
            fn from(rule: &$rule) -> Self {
                Self::$rule(rule.clone())
            }
        }

        $(kind!(@ $trait $rule);)*
    };
    (@ Counting $rule:ident) => {
        impl $rule {
            /// The request weighs this many units, 1 to 2^53 − 1, and fits whole or not at all. Without a cost it weighs
            /// one. 0 is for [`Limiter::peek`](crate::Limiter::peek), where it shows the state as it is, and for
            /// [`Limiter::all`](crate::Limiter::all), where the rule denies if no unit is left and counts nothing.
            #[must_use]
            pub fn cost(mut self, units: u64) -> Self {
                self.with.cost = Some(units);
                self
            }
        }

        impl Counting for $rule {}
        impl Counting for &$rule {}
    };
    (@ Turning $rule:ident) => {
        impl Turning for $rule {}
        impl Turning for &$rule {}
    };
    (@ Metered $rule:ident) => {
        impl $rule {
            /// The request is counted whether it fits or not. `allowed` still says whether it fitted.
            #[must_use]
            pub fn force(mut self) -> Self {
                self.with.force = true;
                self
            }

            /// These units (1 to 2^53 − 1) are reserved: for [`Limiter::reserve_all`](crate::Limiter::reserve_all) alone.
            #[must_use]
            pub fn reserved(mut self, units: u64) -> Self {
                (self.with.cost, self.with.hold) = (Some(units), Some(Reserved::Wanted));
                self
            }

            /// The units of the cost are held by this holder (1 to 256 bytes) until they are settled, or the lease (0.001 to
            /// 2147483647 seconds, whole milliseconds) is over: see [`Limiter::settle`](crate::Limiter::settle).
            pub fn held_by(mut self, holder: &str, lease: Duration) -> Result<Self, Error> {
                if !(1..=256).contains(&holder.len()) {
                    return Err(Error::Invalid(format!("a holder has 1 to 256 bytes, not {}", holder.len())));
                }
                let Window { millis, .. } = Window::new(0, lease)?;
                self.with.hold = Some(Reserved::By { holder: holder.into(), millis });
                Ok(self)
            }
        }

        impl Metered for $rule {}
        impl Metered for &$rule {}
    };
    (@ Windowed $rule:ident) => {
        impl $rule {
            /// The windows, shortest first.
            pub fn windows(&self) -> &[Window] {
                &self.windows
            }
        }
    };
}
/// `RL.SLIDING`: at most `limit` units in any stretch of time as long as a window. Made by [`Rule::sliding`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sliding {
    windows: Arc<[Window]>,
    with: Common,
}

/// `RL.FIXED`: at most `limit` units in each window, which starts at a multiple of its length since the epoch. Made by
/// [`Rule::fixed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    windows: Arc<[Window]>,
    anchored: bool,
    with: Common,
}

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
    pub(crate) burst: u64,
    count: u64,
    /// Seconds.
    period: u64,
    with: Common,
}

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
    with: Common,
}

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

kind!(Sliding, Counting, Turning, Metered, Windowed);
kind!(Fixed, Counting, Metered, Windowed);
kind!(Throttle, Counting, Turning);
kind!(Lease);
#[cfg(feature = "calendar")]
kind!(Calendar, Counting, Metered);

/// A rule of any kind: what a request is held to, without the key.
///
/// A rule holds no connection and is cheap to clone. Make it once and use it for every key. A key belongs to one rule.
///
/// [Rules](crate#rules) shows what there is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// `RL.SLIDING`
    Sliding(Sliding),
    /// `RL.FIXED`
    Fixed(Fixed),
    /// `RL.FIXED`, by the calendar
    #[cfg(feature = "calendar")]
    Calendar(Calendar),
    /// `RL.THROTTLE`
    Throttle(Throttle),
    /// `RL.ACQUIRE`
    Lease(Lease),
}

/// What rules of all kinds have in common, borrowed as the rule is.
macro_rules! with {
    ($rule:ident) => {
        match $rule {
            Rule::Sliding(Sliding { with, .. })
            | Rule::Fixed(Fixed { with, .. })
            | Rule::Throttle(Throttle { with, .. })
            | Rule::Lease(Lease { with, .. }) => with,
            #[cfg(feature = "calendar")]
            Rule::Calendar(Calendar { with, .. }) => with,
        }
    };
}

/// What a rule is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Hit,
    /// A call that can wait for its turn.
    Turn,
    /// One that may weigh nothing: a peek, or a check in `all`.
    Check,
    /// As a check, or units of it are reserved.
    Reserve,
}

impl Rule {
    /// An exact sliding window, or several (up to 16 of different lengths, all or nothing).
    pub fn sliding(rates: impl Rates) -> Result<Sliding, Error> {
        Ok(Sliding { windows: ordered(rates)?, with: Common::default() })
    }

    /// A fixed window, or several (up to 16 of different lengths, all or nothing): one counter for each. Up to twice the
    /// limit can pass around the turn of a window. With one window and no cost, denials are counted too.
    pub fn fixed(rates: impl Rates) -> Result<Fixed, Error> {
        Ok(Fixed { windows: ordered(rates)?, anchored: false, with: Common::default() })
    }

    /// A window of the calendar, such as `"5_000_000/month"`: a day, week, month or year in UTC unless [`Calendar::zone`]
    /// says otherwise, which begins as [`Calendar::starts`] says.
    #[cfg(feature = "calendar")]
    pub fn calendar(rate: &str) -> Result<Calendar, Error> {
        Calendar::parse(rate)
    }

    /// A steady rate, such as `"30/minute"`, at least one unit and at most one a nanosecond, with a burst of as many unless
    /// [`Throttle::burst`] says otherwise.
    pub fn throttle(rate: impl Rates) -> Result<Throttle, Error> {
        let windows = rate.windows()?;
        let &[Window { limit, millis }] = windows.as_slice() else {
            return Err(Error::Invalid(format!("a throttle takes one rate, not {}", windows.len())));
        };
        if limit == 0 {
            return Err(Error::Invalid("a throttle needs a limit of at least 1, not 0".to_owned()));
        }
        // The command takes whole seconds: 5 in half a second are 10 in one.
        let factor = 1000 / gcd(millis, 1000);
        let (count, period) = (limit.saturating_mul(factor), millis * factor / 1000);
        let longest = crate::rates::MOST_MILLIS / 1000;
        if period > longest {
            return Err(Error::Invalid(format!(
                "the window of a throttle must be at most {longest} s in whole seconds, not {millis} ms"
            )));
        }
        if count > period.saturating_mul(1_000_000_000) || count > MOST_UNITS {
            return Err(Error::Invalid(format!(
                "a throttle allows at most one unit a nanosecond, not {limit} in {millis} ms"
            )));
        }
        Ok(Throttle { burst: limit - 1, count, period, with: Common::default() })
    }

    /// At most `limit` holders at a time (0 to 2^53 − 1), each for `ttl` (0.001 to 2147483647 seconds, whole
    /// milliseconds) unless it renews its lease or gives it back.
    pub fn lease(limit: u64, ttl: Duration) -> Result<Lease, Error> {
        let Window { limit, millis } = Window::new(limit, ttl)?;
        Ok(Lease { limit, millis, holder: None, with: Common::default() })
    }

    pub(crate) fn common(&self) -> &Common {
        with!(self)
    }

    pub(crate) fn common_mut(&mut self) -> &mut Common {
        with!(self)
    }

    /// The command that decides by it.
    pub(crate) fn command(&self) -> Command {
        match self {
            Self::Sliding(_) => Command::SLIDING,
            Self::Fixed(_) => Command::FIXED,
            #[cfg(feature = "calendar")]
            Self::Calendar(_) => Command::FIXED,
            Self::Throttle(_) => Command::THROTTLE,
            Self::Lease(_) => Command::ACQUIRE,
        }
    }

    /// The rule as the commands take it, at this time. `word`: with the word that it has in front of it in RL.PEEK,
    /// RL.REFUND, RL.SETTLE and RL.ALL.
    #[cfg_attr(not(feature = "calendar"), allow(unused_variables))]
    pub(crate) fn write(&self, cmd: &mut Cmd, time: u64, word: bool) {
        if word {
            cmd.arg(self.command().word());
        }
        for window in self.windows() {
            cmd.arg(Seconds(window.millis)).arg(window.limit);
        }
        match self {
            // Always with a cost, whatever it is: then the server stores a new log compactly.
            Self::Sliding(rule) => rule.with.write(cmd, rule.with.cost.or(Some(1))),
            Self::Fixed(rule) => {
                if rule.anchored {
                    cmd.arg("ANCHORED");
                }
                rule.with.write(cmd, rule.with.cost);
            }
            #[cfg(feature = "calendar")]
            Self::Calendar(rule) => {
                cmd.arg(rule.period(time)).arg(rule.limit);
                rule.with.write(cmd, rule.with.cost);
            }
            Self::Throttle(rule) => {
                cmd.arg(rule.burst).arg(rule.count).arg(rule.period).arg(rule.with.cost);
            }
            Self::Lease(rule) => {
                cmd.arg(rule.limit).arg(Seconds(rule.millis)).arg(rule.holder.as_deref().unwrap_or_default());
            }
        }
    }

    /// The end of the period of the calendar in which this time lies.
    #[cfg_attr(not(feature = "calendar"), allow(unused_variables))]
    pub(crate) fn ends(&self, time: u64) -> Option<u64> {
        match self {
            #[cfg(feature = "calendar")]
            Self::Calendar(rule) => rule.end(time),
            _ => None,
        }
    }

    /// Refuses what no server takes, before anything is sent.
    pub(crate) fn check(&self, wanted: Use) -> Result<(), Error> {
        let refused = |what: &str| Err(Error::Invalid(what.to_owned()));
        if matches!(self, Self::Lease(rule) if rule.holder.as_deref().is_none_or(<[u8]>::is_empty)) {
            return refused("a lease needs a holder of at least one byte: say who with Lease::holder");
        }
        if let Self::Throttle(Throttle { burst, .. }) = self
            && *burst >= MOST_UNITS
        {
            return Err(Error::Invalid(format!("a burst must be from 0 to {}, not {burst}", MOST_UNITS - 1)));
        }
        if wanted == Use::Turn && !self.takes_turns() {
            return refused("a turn is for a sliding rule or a throttle that is neither forced nor held");
        }
        let Common { cost, hold, force, .. } = self.common();
        let is_wanted = hold == &Some(Reserved::Wanted);
        if is_wanted && wanted != Use::Reserve {
            return refused("a rule with reserved units is for Limiter::reserve_all");
        }
        if is_wanted && *force {
            return refused("a reservation takes a rule without force: what does not fit is not charged");
        }
        let what = if is_wanted { "reserved units" } else { "a cost" };
        let least = u64::from(is_wanted || matches!(wanted, Use::Hit | Use::Turn));
        match cost {
            Some(units) if !(least..=MOST_UNITS).contains(units) => {
                Err(Error::Invalid(format!("{what} must be from {least} to {MOST_UNITS}, not {units}")))
            }
            _ => Ok(()),
        }
    }

    /// Units that a request weighs.
    pub(crate) fn cost(&self) -> u64 {
        self.common().cost.unwrap_or(1)
    }

    pub(crate) fn is_forced(&self) -> bool {
        self.common().force
    }

    /// Whether units of it are, or are to be, reserved.
    pub(crate) fn is_reserved(&self) -> bool {
        self.common().hold.is_some()
    }

    /// Whether a request can wait for its turn.
    pub(crate) fn takes_turns(&self) -> bool {
        matches!(self, Self::Sliding(_) | Self::Throttle(_)) && !self.is_forced() && !self.is_reserved()
    }

    /// Whether it limits the same, whatever a request weighs.
    pub(crate) fn limits_as(&self, other: &Self) -> bool {
        let alike = |rule: &Self| {
            let mut rule = rule.clone();
            *rule.common_mut() = Common::default();
            rule
        };
        alike(self) == alike(other)
    }

    /// The most units that can ever fit.
    pub(crate) fn smallest_limit(&self) -> u64 {
        match self {
            Self::Sliding(_) | Self::Fixed(_) => self.windows().iter().map(Window::limit).min().unwrap_or(0),
            #[cfg(feature = "calendar")]
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
            _ => &[],
        }
    }

    /// What tells the rule from others in the keys of an adapter: its name, or else its kind with its limits.
    #[cfg(feature = "tower")]
    pub(crate) fn policy(&self) -> String {
        if let Some(name) = &self.common().name {
            return name.to_string();
        }
        let windows = || {
            let each = self.windows().iter().map(|window| format!("{}/{}s", window.limit, Seconds(window.millis)));
            each.collect::<Vec<_>>().join(",")
        };
        match self {
            Self::Sliding(_) => format!("sliding-{}", windows()),
            Self::Fixed(rule) if rule.anchored => format!("anchored-{}", windows()),
            Self::Fixed(_) => format!("fixed-{}", windows()),
            #[cfg(feature = "calendar")]
            Self::Calendar(rule) => rule.policy(),
            Self::Throttle(rule) => format!("throttle-{}-{}/{}s", rule.burst, rule.count, rule.period),
            Self::Lease(rule) => format!("lease-{}/{}s", rule.limit, Seconds(rule.millis)),
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl From<&Self> for Rule {
    fn from(rule: &Self) -> Self {
        rule.clone()
    }
}

/// A rule that counts units, and can take them back: all but a lease, which is given back by
/// [`Limiter::release`](crate::Limiter::release).
pub trait Counting: Into<Rule> {}

/// A rule by which a request can wait for its turn: sliding windows and throttles. See
/// [`Limiter::turn`](crate::Limiter::turn).
pub trait Turning: Counting {}

/// A rule of which units can be reserved: sliding and fixed windows, and those of the calendar. See
/// [`Limiter::reserve`](crate::Limiter::reserve).
pub trait Metered: Counting {}
