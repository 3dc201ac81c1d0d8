//! A call as data. grammar.rs reads it from words, draw.rs draws it and writes its words, and model/ replies to it.

/// A window in milliseconds and its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// 0 if the window ends at a given time.
    pub window: i64,
    pub limit: i64,
    pub end: Option<i64>,
}

impl Quota {
    pub fn of(window: i64, limit: i64) -> Self {
        Self { window, limit, end: None }
    }

    pub fn until(end: i64, limit: i64) -> Self {
        Self { window: 0, limit, end: Some(end) }
    }
}

/// Who holds the units of a request, and for how many milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub holder: Vec<u8>,
    pub lease: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    Sliding { quotas: Vec<Quota>, cost: Option<i64>, force: bool, hold: Option<Hold>, within: Option<i64> },
    Fixed { quotas: Vec<Quota>, anchored: bool, cost: Option<i64>, force: bool, hold: Option<Hold> },
    Throttle { burst: i64, count: i64, period: i64, quantity: Option<i64>, within: Option<i64> },
    Acquire { limit: i64, lease: i64, holder: Vec<u8> },
}

/// The form of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Short,
    Full,
    Each,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// The command named after the rule.
    Take {
        key: Vec<u8>,
        rule: Rule,
        report: Report,
    },
    Peek {
        key: Vec<u8>,
        rule: Rule,
        report: Report,
    },
    Refund {
        key: Vec<u8>,
        rule: Rule,
        at: Option<i64>,
    },
    Settle {
        key: Vec<u8>,
        rule: Rule,
        actual: i64,
    },
    Release {
        key: Vec<u8>,
        holders: Vec<Vec<u8>>,
    },
    All {
        keys: Vec<Vec<u8>>,
        rules: Vec<Rule>,
        within: Option<i64>,
        full: bool,
    },
    Reset {
        key: Vec<u8>,
        windows: Vec<i64>,
        ends: Vec<i64>,
        holds: bool,
    },
}

impl Rule {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sliding { .. } => "SLIDING",
            Self::Fixed { .. } => "FIXED",
            Self::Throttle { .. } => "THROTTLE",
            Self::Acquire { .. } => "ACQUIRE",
        }
    }

    /// A throttle has one window, in which the empty bucket fills; the window of leases is a lease long.
    pub fn quotas(&self) -> Vec<Quota> {
        match self {
            Self::Sliding { quotas, .. } | Self::Fixed { quotas, .. } => quotas.clone(),
            Self::Throttle { burst, .. } => {
                let nanos = self.interval() * i128::from(burst + 1);
                vec![Quota::of(up(nanos, 1_000_000), burst + 1)]
            }
            Self::Acquire { limit, lease, .. } => vec![Quota::of(*lease, *limit)],
        }
    }

    pub fn longest(&self) -> i64 {
        self.quotas().last().expect("a window").window
    }

    /// Units that are taken.
    pub fn cost(&self) -> i64 {
        match self {
            Self::Sliding { cost, .. } | Self::Fixed { cost, .. } => cost.unwrap_or(1),
            Self::Throttle { quantity, .. } => quantity.unwrap_or(1),
            Self::Acquire { .. } => 1,
        }
    }

    /// Units that have to be free. COST 0 asks for one.
    pub fn needed(&self) -> i64 {
        match self {
            Self::Throttle { .. } => self.cost(),
            _ => self.cost().max(1),
        }
    }

    pub fn force(&self) -> bool {
        matches!(self, Self::Sliding { force: true, .. } | Self::Fixed { force: true, .. })
    }

    pub fn hold(&self) -> Option<&Hold> {
        match self {
            Self::Sliding { hold, .. } | Self::Fixed { hold, .. } => hold.as_ref(),
            _ => None,
        }
    }

    /// For how many milliseconds a request may wait for its turn.
    pub fn within(&self) -> Option<i64> {
        match self {
            Self::Sliding { within, .. } | Self::Throttle { within, .. } => *within,
            _ => None,
        }
    }

    pub fn is_anchored(&self) -> bool {
        matches!(self, Self::Fixed { anchored: true, .. })
    }

    /// Nanoseconds from one unit of a throttle to the next, rounded up: never more than count a period.
    pub fn interval(&self) -> i128 {
        match self {
            Self::Throttle { count, period, .. } => {
                (i128::from(*period) * 1_000_000_000 + i128::from(*count) - 1) / i128::from(*count)
            }
            _ => 1,
        }
    }

    /// Whether denied calls count as well.
    pub fn counts_denials(&self) -> bool {
        matches!(self, Self::Fixed { quotas, hold: None, .. } if quotas.len() == 1 && self.cost() == 1)
    }

    /// The keys of what the rule counts: a counter for each window, or the key itself.
    pub fn places(&self, key: &[u8], now: i64) -> Vec<Vec<u8>> {
        let counter = |suffix: String| [key, b":", suffix.as_bytes()].concat();
        match self {
            Self::Fixed { quotas, anchored, .. } => {
                let suffix = |quota: &Quota| match quota.end {
                    Some(end) => format!("@{end}"),
                    None if *anchored => format!("{}s", seconds(quota.window)),
                    None => now.div_euclid(quota.window).to_string(),
                };
                quotas.iter().map(|quota| counter(suffix(quota))).collect()
            }
            _ => vec![key.to_vec()],
        }
    }

    /// Also that of its holds.
    pub fn all_places(&self, key: &[u8], now: i64) -> Vec<Vec<u8>> {
        let held = self.hold().map(|_| held(key));
        self.places(key, now).into_iter().chain(held).collect()
    }
}

/// Where the holds of a key are.
pub fn held(key: &[u8]) -> Vec<u8> {
    [key, b":held"].concat()
}

impl Call {
    /// The keys that a call reads, each once; its own key comes first if it is one of them.
    pub fn places(&self, now: i64) -> Vec<Vec<u8>> {
        let places = match self {
            Self::Take { key, rule, .. }
            | Self::Peek { key, rule, .. }
            | Self::Refund { key, rule, .. }
            | Self::Settle { key, rule, .. } => rule.all_places(key, now),
            Self::Release { key, .. } => vec![key.clone()],
            Self::All { keys, rules, .. } => {
                keys.iter().zip(rules).flat_map(|(key, rule)| rule.all_places(key, now)).collect()
            }
            Self::Reset { key, windows, ends, holds } => {
                let counters = |quotas, anchored| {
                    Rule::Fixed { quotas, anchored, cost: None, force: false, hold: None }.places(key, now)
                };
                let of_windows = || windows.iter().map(|&window| Quota::of(window, 0)).collect();
                let of_ends = ends.iter().map(|&end| Quota::until(end, 0)).collect();
                let mut places =
                    [vec![key.clone()], counters(of_windows(), false), counters(of_windows(), true)].concat();
                places.extend(counters(of_ends, false));
                places.extend(holds.then(|| held(key)));
                places
            }
        };
        let mut once: Vec<Vec<u8>> = Vec::new();
        for place in places {
            if !once.contains(&place) {
                once.push(place);
            }
        }
        once
    }
}

/// Rounds up a division.
pub fn up(dividend: i128, divisor: i128) -> i64 {
    i64::try_from((dividend + divisor - 1).div_euclid(divisor)).expect("within the range of the contract")
}

/// Milliseconds as seconds, in the shortest decimal.
pub fn seconds(millis: i64) -> String {
    let (whole, rest) = (millis / 1000, millis % 1000);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}").trim_end_matches('0').to_owned() }
}
