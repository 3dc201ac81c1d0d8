//! What the arguments of a call alone say of it, by the words of the contract and not by the module's code: the one line
//! that refuses it, or what it asks for.

pub const WINDOW: &str =
    "ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const LIMIT: &str = "ERR limit must be an integer from 0 to 9007199254740991";
const COST: &str = "ERR COST must be an integer from 1 to 9007199254740991";
const ORDER: &str = "ERR windowSec must increase from one window to the next";
const TOO_MANY: &str = "ERR windowSec and limit can be given for at most 16 windows";
const TOO_MANY_TO_RESET: &str = "ERR windowSec can be given for at most 16 windows";
const OPTION: &str = "ERR syntax error: expected windowSec limit, COST n or FULL";
const ALGORITHM: &str = "ERR algorithm must be SLIDING or FIXED";
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
    pub cost: i64,
    pub full: bool,
}

/// What RL.THROTTLE asks. Times in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    pub interval: i128,
    pub limit: i64,
    pub quantity: i64,
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
}

/// The verdict on a call of one of the five commands.
pub fn verdict(words: &[Vec<u8>]) -> Verdict {
    let name = String::from_utf8_lossy(&words[0]).to_lowercase();
    let arity = || format!("ERR wrong number of arguments for '{name}' command");
    let least = match &*name {
        "rl.reset" => 2,
        "rl.sliding" | "rl.fixed" => 4,
        _ => 5,
    };
    if words.len() < least {
        return Verdict::Uncalled(arity());
    }
    let rest = &words[2..];
    let read = match &*name {
        "rl.sliding" => request(rest, arity).map(|request| Request { sliding: true, ..request }).map(Verdict::Request),
        "rl.fixed" => request(rest, arity).map(Verdict::Request),
        "rl.peek" => match &*rest[0].to_ascii_uppercase() {
            algorithm @ (b"SLIDING" | b"FIXED") => request(&rest[1..], arity)
                .map(|request| Verdict::Request(Request { peek: true, sliding: algorithm == b"SLIDING", ..request })),
            _ => Err(ALGORITHM.to_owned()),
        },
        "rl.reset" => windows(rest).map(Verdict::Reset),
        "rl.throttle" => rate(rest, arity).map(Verdict::Throttle),
        _ => panic!("{name} is none of the five"),
    };
    read.unwrap_or_else(Verdict::Refused)
}

/// `windowSec limit [windowSec limit ...] [COST n] [FULL]`, read from left to right: the first thing that is wrong is
/// what the line says.
fn request(words: &[Vec<u8>], arity: impl Fn() -> String) -> Result<Request, String> {
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
    let (mut cost, mut full) = (None, false);
    loop {
        options = match options {
            [] => break,
            [word, behind @ ..] if word.eq_ignore_ascii_case(b"full") && !full => {
                full = true;
                behind
            }
            [word, units, behind @ ..] if word.eq_ignore_ascii_case(b"cost") && cost.is_none() => {
                cost = Some(within(units, 1, (1 << 53) - 1).ok_or(COST)?);
                behind
            }
            _ => return Err(OPTION.to_owned()),
        };
    }
    Ok(Request { sliding: false, peek: false, quotas, cost: cost.unwrap_or(1), full })
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

/// `max_burst count period [quantity]`
fn rate(words: &[Vec<u8>], arity: impl Fn() -> String) -> Result<Rate, String> {
    let max_burst = within(&words[0], 0, (1 << 53) - 2).ok_or(BURST)?;
    let count = within(&words[1], 1, (1 << 53) - 1).ok_or(COUNT)?;
    let period = within(&words[2], 1, i64::from(i32::MAX)).ok_or(PERIOD)?;
    let quantity = words.get(3).map_or(Some(1), |word| within(word, 0, (1 << 53) - 1)).ok_or(QUANTITY)?;
    if words.len() > 4 {
        return Err(arity());
    }
    let interval = i128::from(period) * 1_000_000_000 / i128::from(count);
    if interval == 0 {
        return Err(TOO_FAST.to_owned());
    }
    let limit = max_burst + 1;
    if interval * i128::from(limit) > 1 << 62 {
        return Err(TOO_LONG.to_owned());
    }
    Ok(Rate { interval, limit, quantity })
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
