//! A call as data, and the words that it is sent as.

use fastrand::Rng;

/// A window in milliseconds, and what it lets through.
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
    Acquire { limit: i64, lease: i64, holder: String },
}

/// What the reply is to look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Short,
    Full,
    Each,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// The command of the rule's own name.
    Take {
        key: String,
        rule: Rule,
        report: Report,
    },
    Peek {
        key: String,
        rule: Rule,
        report: Report,
    },
    Refund {
        key: String,
        rule: Rule,
        at: Option<i64>,
    },
    Release {
        key: String,
        holders: Vec<String>,
    },
    All {
        keys: Vec<String>,
        rules: Vec<Rule>,
        full: bool,
    },
    Reset {
        key: String,
        windows: Vec<i64>,
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

    /// What stands behind the name. The options come in any order.
    fn words(&self, rng: &mut Rng) -> Vec<String> {
        let pairs = |quotas: &[Quota]| -> Vec<String> {
            quotas.iter().flat_map(|quota| [seconds(quota.window), quota.limit.to_string()]).collect()
        };
        let (mut words, mut options) = match self {
            Self::Sliding { quotas, cost, force } => (pairs(quotas), options(*cost, *force)),
            Self::Fixed { quotas, anchored, cost, force } => {
                let mut options = options(*cost, *force);
                if *anchored {
                    options.push(vec!["ANCHORED".to_owned()]);
                }
                (pairs(quotas), options)
            }
            Self::Throttle { burst, count, period, quantity } => {
                let mut words: Vec<String> = [burst, count, period].map(ToString::to_string).to_vec();
                words.extend(quantity.map(|quantity| quantity.to_string()));
                (words, Vec::new())
            }
            Self::Acquire { limit, lease, holder } => {
                (vec![limit.to_string(), seconds(*lease), holder.clone()], Vec::new())
            }
        };
        rng.shuffle(&mut options);
        words.extend(options.into_iter().flatten());
        words
    }
}

fn options(cost: Option<i64>, force: bool) -> Vec<Vec<String>> {
    let mut options = Vec::new();
    if let Some(cost) = cost {
        options.push(vec!["COST".to_owned(), cost.to_string()]);
    }
    if force {
        options.push(vec!["FORCE".to_owned()]);
    }
    options
}

impl Call {
    pub fn words(&self, rng: &mut Rng) -> Vec<String> {
        let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
        let report = |words: &mut Vec<String>, report: Report| match report {
            Report::Short => {}
            Report::Full => words.push("FULL".to_owned()),
            Report::Each => words.push("EACH".to_owned()),
        };
        let mut words = match self {
            Self::Take { key, rule, report: asked } => {
                let mut words = owned(&[&format!("RL.{}", rule.name()), key]);
                words.extend(rule.words(rng));
                report(&mut words, *asked);
                words
            }
            Self::Peek { key, rule, report: asked } => {
                let mut words = owned(&["RL.PEEK", key, rule.name()]);
                words.extend(rule.words(rng));
                report(&mut words, *asked);
                words
            }
            Self::Refund { key, rule, at } => {
                let mut words = owned(&["RL.REFUND", key, rule.name()]);
                words.extend(rule.words(rng));
                if let Some(at) = at {
                    words.extend(owned(&["AT", &at.to_string()]));
                }
                words
            }
            Self::Release { key, holders } => {
                let mut words = owned(&["RL.RELEASE", key]);
                words.extend(holders.iter().cloned());
                words
            }
            Self::All { keys, rules, full } => {
                let mut words = owned(&["RL.ALL", &keys.len().to_string()]);
                words.extend(keys.iter().cloned());
                for rule in rules {
                    words.push(rule.name().to_owned());
                    words.extend(rule.words(rng));
                }
                if *full {
                    words.push("FULL".to_owned());
                }
                words
            }
            Self::Reset { key, windows } => {
                let mut words = owned(&["RL.RESET", key]);
                words.extend(windows.iter().map(|&window| seconds(window)));
                words
            }
        };
        // Keywords are taken in any case; of our words only they are in capitals.
        if rng.u32(..4) == 0 {
            for word in
                words.iter_mut().filter(|word| word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'.'))
            {
                word.make_ascii_lowercase();
            }
        }
        words
    }
}

/// Milliseconds as seconds, in the shortest decimal.
pub fn seconds(millis: i64) -> String {
    let (whole, rest) = (millis / 1000, millis % 1000);
    if rest == 0 { whole.to_string() } else { format!("{whole}.{rest:03}").trim_end_matches('0').to_owned() }
}
