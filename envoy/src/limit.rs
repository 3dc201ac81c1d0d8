//! What limits are: how they count, in which units, and which a descriptor has met.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis_rl_client::{Blocks, Error, Limiter, Rule, Window};

use crate::messages::{Shown, Struct, Unit};
use crate::stats::LimitStats;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Windows of the clock.
    #[default]
    Fixed,
    /// Any stretch of time as long as the window.
    Sliding,
    /// A steady rate with a burst.
    Throttle,
}

impl Algorithm {
    pub fn parse(name: &str) -> Result<Self, String> {
        let known = [("fixed", Self::Fixed), ("sliding", Self::Sliding), ("throttle", Self::Throttle)];
        let found = known.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, it)| it).ok_or_else(|| format!("an algorithm is fixed, sliding or throttle, not '{name}'"))
    }
}

/// What the environment says of all configurations.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether several files may speak of one domain.
    pub merge_domains: bool,
    /// Of limits that name none.
    pub algorithm: Algorithm,
}

#[derive(Debug, Clone, Default)]
pub struct Limit {
    /// What statistics and /rlconfig call it: `domain.key_value.key`.
    pub full_key: String,
    pub stats: Arc<LimitStats>,
    /// As it is configured: a throttle of 0 has a rule of fixed windows.
    pub algorithm: Algorithm,
    /// In the order of the rule's windows.
    pub rates: Vec<Shown>,
    /// How it is asked for in Redis. `None`: unlimited.
    pub rule: Option<Kind>,
    /// How its keys end: what they count by.
    pub suffix: String,
    pub shadow_mode: bool,
    pub quota_mode: bool,
    pub name: String,
    pub replaces: Vec<String>,
    pub reserve: Option<Reserve>,
    pub detailed_metric: bool,
    pub block: Option<Arc<Block>>,
}

/// Units of a sliding limit that this process reserves in one call, and spends by itself.
#[derive(Debug)]
pub struct Block {
    /// As it is configured: that of the limit is longer.
    pub given: redis_rl_client::Sliding,
    units: u64,
    pub within: Duration,
    blocks: OnceLock<Blocks>,
}

/// The service waits for unspent units when it ends.
const LONGEST_BLOCK: Duration = Duration::from_secs(10);

impl Block {
    pub fn blocks(&self, limiter: &Limiter) -> Result<&Blocks, Error> {
        if let Some(blocks) = self.blocks.get() {
            return Ok(blocks);
        }
        let blocks = Blocks::new(limiter, &self.given, self.units, self.within)?;
        Ok(self.blocks.get_or_init(|| blocks))
    }
}

impl Limit {
    /// From now on units are taken in blocks where a request meets this limit alone. Elsewhere it is asked for by the
    /// same key and rule.
    pub fn take_blocks(&mut self, units: u64, within: Duration) -> Result<(), String> {
        let (Some(Kind::Sliding(given)), [_], None) = (&self.rule, &self.rates[..], &self.reserve) else {
            return Err("only a limit with 'algorithm: sliding', one rate and no 'reserve' has one".to_owned());
        };
        if within > LONGEST_BLOCK {
            return Err(format!("it is spent within at most {LONGEST_BLOCK:?}"));
        }
        let given = given.clone();
        // Makes no connection: nobody asks this limiter.
        let limiter = Limiter::open("redis://localhost").map_err(|error| error.to_string())?;
        let blocks = Blocks::new(&limiter, &given, units, within).map_err(|error| error.to_string())?;
        self.suffix = String::from_utf8_lossy(&blocks.key(&self.suffix)).into_owned();
        self.rule = Some(Kind::Sliding(blocks.rule().clone()));
        self.block = Some(Arc::new(Block { given, units, within, blocks: OnceLock::new() }));
        Ok(())
    }

    /// The rule by which clients know the limit, for HTTP headers.
    pub fn shown_rule(&self) -> Option<Rule> {
        let kind = self.block.as_ref().map(|block| Kind::Sliding(block.given.clone()));
        Some(kind.as_ref().or(self.rule.as_ref())?.named(&self.name))
    }
}

/// Units that a check takes, until the hits of the same request are known. The value of the entry with the key `holder` names
/// the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    pub estimate: u64,
    pub lease: Duration,
    pub holder: String,
}

/// The rule of a limit, without the units of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Fixed(redis_rl_client::Fixed),
    Sliding(redis_rl_client::Sliding),
    Calendar {
        rule: redis_rl_client::Calendar,
        unit: Unit,
        calendar: Calendar,
    },
    Throttle(redis_rl_client::Throttle),
    /// A number of holders at a time. The value of the entry with the key `holder` names the holder.
    Concurrency {
        rule: redis_rl_client::Lease,
        holder: String,
    },
}

impl Kind {
    pub fn named(&self, name: &str) -> Rule {
        match self {
            Self::Fixed(rule) => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
            Self::Sliding(rule) => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
            Self::Calendar { rule, .. } => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
            Self::Throttle(rule) => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
            Self::Concurrency { rule, .. } => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
        }
    }

    /// Those of a rule that has windows by length.
    pub fn windows(&self) -> &[Window] {
        match self {
            Self::Fixed(rule) => rule.windows(),
            Self::Sliding(rule) => rule.windows(),
            Self::Calendar { .. } | Self::Throttle(_) | Self::Concurrency { .. } => &[],
        }
    }

    /// What a key ends with: two rules that count differently never share it.
    pub fn suffix(&self, rates: &[Shown]) -> String {
        let lengths = |windows: &[Window]| {
            let seconds = windows.iter().map(|window| window.length().as_secs().to_string());
            seconds.collect::<Vec<_>>().join("+")
        };
        match self {
            Self::Fixed(rule) => format!("|{}", lengths(rule.windows())),
            Self::Sliding(rule) => format!("|sliding {}", lengths(rule.windows())),
            Self::Calendar { unit, calendar: Calendar { zone, starts }, .. } => {
                format!("|calendar {} {zone} {}", unit.as_str_name(), starts.unwrap_or(1))
            }
            Self::Throttle(_) => format!("|throttle {}", rates.first().map_or("", |rate| rate.unit().as_str_name())),
            Self::Concurrency { .. } => "|concurrency".to_owned(),
        }
    }
}

/// The limit that a descriptor meets.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub limit: Arc<Limit>,
    /// Those of the limit, or of the value at hand.
    pub stats: Arc<LimitStats>,
    pub metadata: Option<Arc<Struct>>,
    /// By entry: the pattern that stands in for the value, where all values share a threshold.
    pub shared: Vec<Option<String>>,
    pub hash_tag: Option<String>,
}

/// In place of windows of the clock: the units of a time zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calendar {
    pub zone: String,
    pub starts: Option<u32>,
}

pub fn of_calendar(limit: u32, unit: Unit, calendar: &Calendar) -> Result<Kind, String> {
    let name = match unit {
        Unit::Day | Unit::Week | Unit::Month | Unit::Year => unit.as_str_name().to_lowercase(),
        _ => return Err("the unit of a calendar is day, week, month or year".to_owned()),
    };
    let make = || {
        let mut rule = Rule::calendar(&format!("{limit}/{name}"))?;
        if !calendar.zone.is_empty() {
            rule = rule.zone(&calendar.zone)?;
        }
        // What is too much for the type is too much for any unit.
        rule.starts(u8::try_from(calendar.starts.unwrap_or(1)).unwrap_or(u8::MAX))
    };
    let rule = make().map_err(|error: Error| error.to_string())?;
    Ok(Kind::Calendar { rule, unit, calendar: calendar.clone() })
}

pub fn window(limit: u32, seconds: u64) -> Result<Window, String> {
    Window::new(limit.into(), Duration::from_secs(seconds)).map_err(|error| error.to_string())
}

pub fn rule(algorithm: Algorithm, windows: &[Window], burst: Option<u32>) -> Result<Kind, String> {
    if burst.is_some() && algorithm != Algorithm::Throttle {
        return Err("a burst belongs to 'algorithm: throttle'".to_owned());
    }
    let made = match algorithm {
        Algorithm::Fixed => Rule::fixed(windows.to_vec()).map(Kind::Fixed),
        Algorithm::Sliding => Rule::sliding(windows.to_vec()).map(Kind::Sliding),
        Algorithm::Throttle => {
            let [window] = windows else {
                return Err("a throttle has one rate".to_owned());
            };
            // A limit of 0 denies everything, which a steady rate cannot say.
            if window.limit() == 0 {
                return Rule::fixed(*window).map(Kind::Fixed).map_err(|error| error.to_string());
            }
            let burst = burst.map_or(window.limit(), u64::from).max(1);
            // The server takes none of more than 2^62 nanoseconds.
            if window.length().as_nanos().div_ceil(window.limit().into()) * u128::from(burst) > 1 << 62 {
                return Err("a burst takes at most 146 years to come back".to_owned());
            }
            // The command counts what may come beyond the first.
            Rule::throttle(*window).map(|rule| Kind::Throttle(rule.burst(burst - 1)))
        }
    };
    made.map_err(|error| error.to_string())
}

pub fn unit_of(name: &str) -> Option<(Unit, u64)> {
    let unit = Unit::from_str_name(&name.to_uppercase())?;
    Some((unit, seconds_of(unit)?))
}

/// The units and their seconds. A month is 30 days and a year 365, both counted from the epoch.
pub const UNITS: [(Unit, u64); 7] = {
    use Unit::{Day, Hour, Minute, Month, Second, Week, Year};
    [(Second, 1), (Minute, 60), (Hour, 3600), (Day, 86_400), (Week, 604_800), (Month, 2_592_000), (Year, 31_536_000)]
};

pub fn seconds_of(unit: Unit) -> Option<u64> {
    UNITS.iter().find(|(found, _)| *found == unit).map(|(_, seconds)| *seconds)
}
