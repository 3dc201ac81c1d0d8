//! What the arguments of a call alone say of it, by the words of the contract and not by the module's code: the one line
//! that refuses it, or what it asks for.

pub const WINDOW: &str =
    "ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const LIMIT: &str = "ERR limit must be an integer from 0 to 9007199254740991";
const COST: &str = "ERR COST must be an integer from 1 to 9007199254740991";
const ORDER: &str = "ERR windowSec must increase from one window to the next";
const TOO_MANY: &str = "ERR windowSec and limit can be given for at most 16 windows";
const TOO_MANY_TO_RESET: &str = "ERR windowSec can be given for at most 16 windows";
const COST_OR_NONE: &str = "ERR COST must be an integer from 0 to 9007199254740991";
const SLIDING_WORDS: &str = "ERR syntax error: expected windowSec limit, COST n, FORCE, FULL or EACH";
const FIXED_WORDS: &str = "ERR syntax error: expected windowSec limit, ANCHORED, COST n, FORCE, FULL or EACH";
const LEASE: &str =
    "ERR leaseSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const RULE: &str = "ERR rule must be SLIDING, FIXED, THROTTLE or ACQUIRE";
const BURST: &str = "ERR max_burst must be an integer from 0 to 9007199254740990";
const COUNT: &str = "ERR count must be an integer from 1 to 9007199254740991";
const PERIOD: &str = "ERR period must be an integer number of seconds from 1 to 2147483647";
const QUANTITY: &str = "ERR quantity must be an integer from 0 to 9007199254740991";
const TOO_FAST: &str = "ERR count must be at most one request a nanosecond of the period";
const TOO_LONG: &str =
    "ERR max_burst must be less: at this count and period the burst takes more than 146 years to refill";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Milliseconds.
    pub window: i64,
    pub limit: i64,
}

/// What RL.SLIDING, RL.FIXED and RL.PEEK ask.
#[derive(Debug, Clone)]
pub struct Request {
    pub sliding: bool,
    pub peek: bool,
    pub quotas: Vec<Quota>,
    /// Units to be counted; 0 in RL.PEEK alone.
    pub cost: i64,
    pub anchored: bool,
    pub force: bool,
    pub report: Report,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Short,
    Full,
    Each,
}

/// What RL.THROTTLE asks. Times in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    pub interval: i128,
    pub limit: i64,
    pub quantity: i64,
    pub peek: bool,
    pub report: Report,
}

/// What RL.ACQUIRE asks.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The limit, and a lease in milliseconds.
    pub quota: Quota,
    pub holder: Vec<u8>,
    pub peek: bool,
    pub report: Report,
}

/// What the commands reply that are not held to the one right answer here: the model of tests/support/policy is for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loose {
    Refund,
    All,
}

#[derive(Debug, Clone)]
pub enum Verdict {
    /// By the server itself, which counts the words before it calls the module.
    Uncalled(String),
    Refused(String),
    Request(Request),
    Throttle(Rate),
    /// The windows in milliseconds.
    Reset(Vec<i64>),
    Lease(Lease),
    /// The holders.
    Release(Vec<Vec<u8>>),
    /// Whether it is refused is not said here.
    Loose(Loose),
}

/// The verdict on a call of one of our commands.
pub fn verdict(words: &[Vec<u8>]) -> Verdict {
    let name = String::from_utf8_lossy(&words[0]).to_lowercase();
    let arity = || format!("ERR wrong number of arguments for '{name}' command");
    let least = match &*name {
        "rl.reset" => 2,
        "rl.release" => 3,
        "rl.sliding" | "rl.fixed" => 4,
        "rl.all" => 6,
        _ => 5,
    };
    if words.len() < least {
        return Verdict::Uncalled(arity());
    }
    let rest = &words[2..];
    let read = match &*name {
        "rl.sliding" => request(rest, true, false, arity).map(Verdict::Request),
        "rl.fixed" => request(rest, false, false, arity).map(Verdict::Request),
        "rl.peek" => match &*rest[0].to_ascii_uppercase() {
            rule @ (b"SLIDING" | b"FIXED") => {
                request(&rest[1..], rule == b"SLIDING", true, arity).map(Verdict::Request)
            }
            b"THROTTLE" => rate(&rest[1..], true, arity).map(Verdict::Throttle),
            b"ACQUIRE" => lease(&rest[1..], true, arity).map(Verdict::Lease),
            _ => Err(RULE.to_owned()),
        },
        "rl.reset" => windows(rest).map(Verdict::Reset),
        "rl.throttle" => rate(rest, false, arity).map(Verdict::Throttle),
        "rl.acquire" => lease(rest, false, arity).map(Verdict::Lease),
        "rl.release" => Ok(Verdict::Release(rest.to_vec())),
        "rl.refund" => Ok(Verdict::Loose(Loose::Refund)),
        "rl.all" => Ok(Verdict::Loose(Loose::All)),
        _ => panic!("{name} is none of ours"),
    };
    read.unwrap_or_else(Verdict::Refused)
}

/// `windowSec limit [windowSec limit ...]` and options, read from left to right: the first thing that is wrong is what the
/// line says.
fn request(words: &[Vec<u8>], sliding: bool, peek: bool, arity: impl Fn() -> String) -> Result<Request, String> {
    // A word that begins as a number does is meant as one; the first is in any case.
    let looks_like_a_number = |word: &Vec<u8>| word.first().is_some_and(|byte| b"0123456789+-.".contains(byte));
    let pairs = (0..words.len()).step_by(2).take_while(|&at| at == 0 || looks_like_a_number(&words[at]));
    let mut quotas: Vec<Quota> = Vec::new();
    let mut options = words;
    for at in pairs {
        let word = words.get(at + 1).ok_or_else(&arity)?;
        let window = window(&words[at]).ok_or(WINDOW)?;
        let limit = within(word, 0, (1 << 53) - 1).ok_or(LIMIT)?;
        if quotas.last().is_some_and(|last| last.window >= window) {
            return Err(ORDER.to_owned());
        }
        if quotas.len() == 16 {
            return Err(TOO_MANY.to_owned());
        }
        quotas.push(Quota { window, limit });
        options = &words[at + 2..];
    }
    let (mut cost, mut force, mut anchored, mut report) = (None, false, false, Report::Short);
    let (least, cost_line) = if peek { (0, COST_OR_NONE) } else { (1, COST) };
    loop {
        let is = |word: &[u8], name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        options = match options {
            [] => break,
            [word, behind @ ..] if is(word, "FULL") && report == Report::Short => {
                report = Report::Full;
                behind
            }
            [word, behind @ ..] if is(word, "EACH") && report == Report::Short => {
                report = Report::Each;
                behind
            }
            [word, behind @ ..] if is(word, "FORCE") && !force => {
                force = true;
                behind
            }
            [word, behind @ ..] if is(word, "ANCHORED") && !anchored && !sliding => {
                anchored = true;
                behind
            }
            [word, units, behind @ ..] if is(word, "COST") && cost.is_none() => {
                cost = Some(within(units, least, (1 << 53) - 1).ok_or(cost_line)?);
                behind
            }
            _ => return Err(if sliding { SLIDING_WORDS } else { FIXED_WORDS }.to_owned()),
        };
    }
    Ok(Request { sliding, peek, quotas, cost: cost.unwrap_or(1), anchored, force, report })
}

/// `[windowSec ...]`, read as [`request`] reads windows with limits.
fn windows(words: &[Vec<u8>]) -> Result<Vec<i64>, String> {
    let mut windows: Vec<i64> = Vec::new();
    for word in words {
        let window = window(word).ok_or(WINDOW)?;
        if windows.last().is_some_and(|&last| last >= window) {
            return Err(ORDER.to_owned());
        }
        if windows.len() == 16 {
            return Err(TOO_MANY_TO_RESET.to_owned());
        }
        windows.push(window);
    }
    Ok(windows)
}

/// `max_burst count period [quantity] [FULL]`, and EACH in RL.PEEK.
fn rate(words: &[Vec<u8>], peek: bool, arity: impl Fn() -> String) -> Result<Rate, String> {
    if words.len() < 3 {
        return Err(arity());
    }
    let max_burst = within(&words[0], 0, (1 << 53) - 2).ok_or(BURST)?;
    let count = within(&words[1], 1, (1 << 53) - 1).ok_or(COUNT)?;
    let period = within(&words[2], 1, i64::from(i32::MAX)).ok_or(PERIOD)?;
    let report_of = |word: &[u8]| match &*word.to_ascii_uppercase() {
        b"FULL" => Some(Report::Full),
        b"EACH" if peek => Some(Report::Each),
        _ => None,
    };
    let (quantity, rest) = match &words[3..] {
        [word, rest @ ..] if report_of(word).is_none() => (within(word, 0, (1 << 53) - 1).ok_or(QUANTITY)?, rest),
        rest => (1, rest),
    };
    let report = match rest {
        [] => Report::Short,
        [word] => report_of(word).ok_or_else(&arity)?,
        _ => return Err(arity()),
    };
    let interval = i128::from(period) * 1_000_000_000 / i128::from(count);
    if interval == 0 {
        return Err(TOO_FAST.to_owned());
    }
    let limit = max_burst + 1;
    if interval * i128::from(limit) > 1 << 62 {
        return Err(TOO_LONG.to_owned());
    }
    Ok(Rate { interval, limit, quantity, peek, report })
}

/// `limit leaseSec holder [FULL]`, and EACH in RL.PEEK.
fn lease(words: &[Vec<u8>], peek: bool, arity: impl Fn() -> String) -> Result<Lease, String> {
    let [limit, seconds, holder, rest @ ..] = words else { return Err(arity()) };
    let limit = within(limit, 0, (1 << 53) - 1).ok_or(LIMIT)?;
    let window = window(seconds).ok_or(LEASE)?;
    let report = match rest {
        [] => Report::Short,
        [word] if word.eq_ignore_ascii_case(b"FULL") => Report::Full,
        [word] if peek && word.eq_ignore_ascii_case(b"EACH") => Report::Each,
        _ => return Err(arity()),
    };
    Ok(Lease { quota: Quota { window, limit }, holder: holder.clone(), peek, report })
}

fn within(text: &[u8], least: i64, most: i64) -> Option<i64> {
    canonical(text).filter(|number| (least..=most).contains(number))
}

/// An integer, if it is written as the server would write it.
pub fn canonical(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// A window in milliseconds.
pub fn window(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let (seconds, places) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(seconds) || !digits(places) || places.len() > 3 || (seconds.len() > 1 && seconds.starts_with('0')) {
        return None;
    }
    let millis: i64 = format!("{seconds}{places:0<3}").parse().ok()?;
    (1..=2_147_483_647_000).contains(&millis).then_some(millis)
}
