//! A call as data. grammar.rs reads it from words, draw.rs draws it and writes its words, and model.rs replies to it.

/// A window in milliseconds and its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub window: i64,
    pub limit: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    Sliding { quotas: Vec<Quota>, cost: Option<i64>, force: bool },
    Fixed { quotas: Vec<Quota>, anchored: bool, cost: Option<i64>, force: bool },
    Throttle { burst: i64, count: i64, period: i64, quantity: Option<i64> },
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
    Release {
        key: Vec<u8>,
        holders: Vec<Vec<u8>>,
    },
    All {
        keys: Vec<Vec<u8>>,
        rules: Vec<Rule>,
        full: bool,
    },
    Reset {
        key: Vec<u8>,
        windows: Vec<i64>,
    },
}

impl Rule {
    /// A throttle has one window, in which the empty bucket fills; the window of leases is a lease long.
    pub fn quotas(&self) -> Vec<Quota> {
        match self {
            Self::Sliding { quotas, .. } | Self::Fixed { quotas, .. } => quotas.clone(),
            Self::Throttle { burst, .. } => {
                let nanos = self.interval() * i128::from(burst + 1);
                vec![Quota { window: up(nanos, 1_000_000), limit: burst + 1 }]
            }
            Self::Acquire { limit, lease, .. } => vec![Quota { window: *lease, limit: *limit }],
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
        matches!(self, Self::Fixed { quotas, .. } if quotas.len() == 1 && self.cost() == 1)
    }

    /// The keys that hold the state of the rule: a counter for each window, or the key itself.
    pub fn places(&self, key: &[u8], now: i64) -> Vec<Vec<u8>> {
        let counter = |suffix: String| [key, b":", suffix.as_bytes()].concat();
        match self {
            Self::Fixed { quotas, anchored: true, .. } => {
                quotas.iter().map(|quota| counter(format!("{}s", seconds(quota.window)))).collect()
            }
            Self::Fixed { quotas, .. } => {
                quotas.iter().map(|quota| counter(now.div_euclid(quota.window).to_string())).collect()
            }
            _ => vec![key.to_vec()],
        }
    }
}

impl Call {
    /// The keys that a call reads, each once; its own key comes first if it is one of them.
    pub fn places(&self, now: i64) -> Vec<Vec<u8>> {
        let places = match self {
            Self::Take { key, rule, .. } | Self::Peek { key, rule, .. } | Self::Refund { key, rule, .. } => {
                rule.places(key, now)
            }
            Self::Release { key, .. } => vec![key.clone()],
            Self::All { keys, rules, .. } => {
                keys.iter().zip(rules).flat_map(|(key, rule)| rule.places(key, now)).collect()
            }
            Self::Reset { key, windows } => {
                let counters = |anchored| {
                    let quotas = windows.iter().map(|&window| Quota { window, limit: 0 }).collect();
                    Rule::Fixed { quotas, anchored, cost: None, force: false }.places(key, now)
                };
                [vec![key.clone()], counters(false), counters(true)].concat()
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
