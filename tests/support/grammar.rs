//! Reads the words of a call, by the contract and not by the module's code: the error line that refuses them, or the call.

use super::call::{Call, Hold, Quota, Report, Rule};

pub const WINDOW: &str =
    "ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const END: &str = "ERR @ms must be a unix time in milliseconds, an integer from 0 to 9007199254740991";
const LIMIT: &str = "ERR limit must be an integer from 0 to 9007199254740991";
const COST: &str = "ERR COST must be an integer from 1 to 9007199254740991";
const ORDER: &str = "ERR windowSec must increase from one window to the next";
const TOO_MANY: &str = "ERR windowSec and limit can be given for at most 16 windows";
const TOO_MANY_TO_RESET: &str = "ERR windowSec can be given for at most 16 windows";
const COST_OR_NONE: &str = "ERR COST must be an integer from 0 to 9007199254740991";
const ALL_WORDS: &str = "ERR syntax error: expected one rule a key [WITHIN ms] [FULL]";
const WITHIN: &str = "ERR WITHIN must be an integer number of milliseconds from 0 to 3600000";
const WITHIN_ALONE: &str = "ERR WITHIN takes neither FORCE nor HOLD";
const WITHIN_SLIDING: &str = "ERR RL.ALL takes WITHIN where every rule is SLIDING, and none has FORCE or HOLD";
const RULE_OF_REFUND: &str = "ERR rule must be SLIDING, FIXED or THROTTLE";
const AT: &str = "ERR AT must be a unix time in milliseconds, an integer from 0 to 9007199254740991";
const NUMBER: &str = "ERR numkeys must be an integer from 1 to 64";
const TWICE: &str = "ERR RL.ALL takes each key once";
const LEASE: &str =
    "ERR leaseSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const RULE: &str = "ERR rule must be SLIDING, FIXED, THROTTLE or ACQUIRE";
const HOLDER: &str = "ERR holder must be 1 to 256 bytes long";
const ACTUAL: &str = "ERR ACTUAL must be an integer from 0 to 9007199254740991";
const RULE_OF_SETTLE: &str = "ERR rule must be SLIDING or FIXED";
const NO_HOLD: &str = "ERR RL.SETTLE takes a rule with HOLD";
const ANCHORED_END: &str = "ERR ANCHORED takes no @ms";
const BURST: &str = "ERR max_burst must be an integer from 0 to 9007199254740990";
const COUNT: &str = "ERR count must be an integer from 1 to 9007199254740991";
const PERIOD: &str = "ERR period must be an integer number of seconds from 1 to 2147483647";
const QUANTITY: &str = "ERR quantity must be an integer from 0 to 9007199254740991";
const TOO_FAST: &str = "ERR count must be at most one request a nanosecond of the period";
const TOO_LONG: &str =
    "ERR max_burst must be less: at this count and period the burst takes more than 146 years to refill";

/// The words of the rules, as their own commands take them.
const RULES: [&str; 4] = [
    "SLIDING windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec | WITHIN ms] [FORCE] [FULL | EACH]",
    "FIXED windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [HOLD holder leaseSec] [FORCE] [FULL | EACH]",
    "THROTTLE max_burst count period [quantity] [WITHIN ms] [FULL]",
    "ACQUIRE limit leaseSec holder [FULL]",
];

/// The words of a rule after its name, and what its own command takes after them.
fn declared(name: &str) -> (&'static str, &'static str) {
    let words = |rule: &'static str| rule.strip_prefix(name)?.strip_prefix(' ')?.rsplit_once(" [");
    RULES.into_iter().find_map(words).unwrap_or_else(|| panic!("there is no rule {name}"))
}

/// The line for words that a rule does not take.
fn bad_words(name: &str, place: Place) -> String {
    let (mut words, own) = (declared(name).0.to_owned(), declared(name).1);
    let waits = words.contains("WITHIN ms]");
    if place != Place::Command {
        words = words.replace(" | WITHIN ms]", "]").replace(" [WITHIN ms]", "");
    }
    let (name, options) = match place {
        Place::Command => (String::new(), own.trim_end_matches(']')),
        Place::Peek if waits => (format!("{name} "), "WITHIN ms] [FULL | EACH"),
        Place::Peek => (format!("{name} "), "FULL | EACH"),
        Place::Refund => {
            let words = words.replace("[HOLD holder leaseSec] ", "");
            return format!("ERR syntax error: expected {name} {words} [AT ms]");
        }
        Place::Settle => return format!("ERR syntax error: expected {name} {words} ACTUAL n"),
        Place::All => (format!("{name} "), "WITHIN ms] [FULL"),
    };
    format!("ERR syntax error: expected {name}{words} [{options}]")
}

/// The largest limit and cost.
const MOST: i64 = (1 << 53) - 1;

#[derive(Debug, Clone)]
pub enum Verdict {
    /// Refused by the server itself, which checks the arity before it calls the module.
    Uncalled(String),
    Refused(String),
    Call(Call),
}

/// Where a rule is given, which determines the options behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Command,
    Peek,
    Refund,
    Settle,
    All,
}

/// Reads the words of one of the module's commands.
pub fn verdict(words: &[Vec<u8>]) -> Verdict {
    let name = String::from_utf8_lossy(&words[0]).to_lowercase();
    let arity = format!("ERR wrong number of arguments for '{name}' command");
    let least = match &*name {
        "rl.reset" => 2,
        "rl.release" => 3,
        "rl.sliding" | "rl.fixed" => 4,
        "rl.all" => 6,
        "rl.settle" => 7,
        _ => 5,
    };
    if words.len() < least {
        return Verdict::Uncalled(arity);
    }
    let (key, rest) = (words[1].clone(), &words[2..]);
    let mut reading = Reading { words: rest, place: Place::Command, arity: &arity, at: None, actual: None };
    let read = match &*name {
        "rl.sliding" | "rl.fixed" | "rl.throttle" | "rl.acquire" => {
            reading.rule_of(&name.as_bytes()[3..]).map(|(rule, report)| Call::Take { key, rule, report })
        }
        "rl.peek" => {
            reading.place = Place::Peek;
            reading.rule().map(|(rule, report)| Call::Peek { key, rule, report })
        }
        "rl.refund" => {
            reading.place = Place::Refund;
            reading.rule().map(|(rule, _)| Call::Refund { key, rule, at: reading.at })
        }
        "rl.settle" => {
            reading.place = Place::Settle;
            reading.rule().and_then(|(rule, _)| match (rule.hold(), reading.actual) {
                (None, _) => Err(NO_HOLD.to_owned()),
                (_, None) => Err(bad_words(rule.name(), Place::Settle)),
                (_, Some(actual)) => Ok(Call::Settle { key, rule, actual }),
            })
        }
        "rl.all" => all(&words[1..], &arity),
        "rl.reset" => windows(rest).map(|(windows, ends, holds)| Call::Reset { key, windows, ends, holds }),
        "rl.release" => Ok(Call::Release { key, holders: rest.to_vec() }),
        _ => panic!("{name} is not a command of the module"),
    };
    read.map_or_else(Verdict::Refused, Verdict::Call)
}

/// `numkeys key [key ...] rule [rule ...] [WITHIN ms] [FULL]`
fn all(words: &[Vec<u8>], arity: &str) -> Result<Call, String> {
    let number = within(&words[0], 1, 64).ok_or(NUMBER)? as usize;
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for at in 1..=number {
        let key = words.get(at).ok_or(arity)?;
        if keys.contains(key) {
            return Err(TWICE.to_owned());
        }
        keys.push(key.clone());
    }
    let mut reading = Reading { words: &words[number + 1..], place: Place::All, arity, at: None, actual: None };
    let (mut rules, mut last) = (Vec::new(), String::new());
    for _ in &keys {
        if reading.words.is_empty() {
            return Err(ALL_WORDS.to_owned());
        }
        last = String::from_utf8_lossy(&reading.words[0]).to_uppercase();
        rules.push(reading.rule()?.0);
    }
    let (mut full, mut within) = (false, None);
    while let Some((word, rest)) = reading.words.split_first() {
        reading.words = rest;
        if is(word, "FULL") && !full {
            full = true;
        } else if is(word, "WITHIN") && within.is_none() {
            within = Some(wait(reading.words.first().ok_or(ALL_WORDS)?)?);
            reading.words = &reading.words[1..];
        } else if ["SLIDING", "FIXED", "THROTTLE", "ACQUIRE"].iter().any(|name| is(word, name)) {
            return Err(ALL_WORDS.to_owned());
        } else {
            return Err(bad_words(&last, Place::All));
        }
    }
    let may_wait = |rule: &Rule| matches!(rule, Rule::Sliding { force: false, hold: None, .. });
    if within.is_some() && !rules.iter().all(may_wait) {
        return Err(WITHIN_SLIDING.to_owned());
    }
    Ok(Call::All { keys, rules, within, full })
}

/// `ms` behind WITHIN.
fn wait(word: &[u8]) -> Result<i64, String> {
    within(word, 0, 3_600_000).ok_or_else(|| WITHIN.to_owned())
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// A word that begins like a number is read as one.
fn is_number(word: &[u8]) -> bool {
    word.first().is_some_and(|byte| b"0123456789+-.".contains(byte))
}

/// Meant as the end of a window, in place of its length.
fn is_end(word: &[u8]) -> bool {
    word.starts_with(b"@")
}

/// A window without its limit, by its length or its end.
fn window_or_end(word: &[u8]) -> Result<Quota, &'static str> {
    match word.strip_prefix(b"@") {
        Some(end) => within(end, 0, MOST).map(|end| Quota::until(end, 0)).ok_or(END),
        None => window(word).map(|window| Quota::of(window, 0)).ok_or(WINDOW),
    }
}

/// Whether a window may follow another one: those that end at a given time come last.
fn increases(last: Option<&Quota>, next: &Quota) -> bool {
    last.is_none_or(|last| (last.end, last.window) < (next.end, next.window))
}

/// Rules are read from left to right: the line describes the first error.
struct Reading<'a> {
    /// What is left.
    words: &'a [Vec<u8>],
    place: Place,
    arity: &'a str,
    /// The time of RL.REFUND.
    at: Option<i64>,
    /// The units of RL.SETTLE.
    actual: Option<i64>,
}

impl<'a> Reading<'a> {
    fn next(&mut self) -> Result<&'a [u8], String> {
        let (word, rest) = self.words.split_first().ok_or(self.arity)?;
        self.words = rest;
        Ok(word)
    }

    fn rule(&mut self) -> Result<(Rule, Report), String> {
        let name = self.next()?;
        self.rule_of(name)
    }

    fn rule_of(&mut self, name: &[u8]) -> Result<(Rule, Report), String> {
        match &*name.to_ascii_uppercase() {
            b"SLIDING" => self.windows(true),
            b"FIXED" => self.windows(false),
            _ if self.place == Place::Settle => Err(RULE_OF_SETTLE.to_owned()),
            b"THROTTLE" => self.rate(),
            b"ACQUIRE" if self.place != Place::Refund => self.lease(),
            _ if self.place == Place::Refund => Err(RULE_OF_REFUND.to_owned()),
            _ => Err(RULE.to_owned()),
        }
    }

    /// `windowSec limit [windowSec limit ...]` and options.
    fn windows(&mut self, sliding: bool) -> Result<(Rule, Report), String> {
        let mut quotas: Vec<Quota> = Vec::new();
        while quotas.is_empty() || self.words.first().is_some_and(|word| is_number(word) || is_end(word)) {
            let (window, limit) = (self.next()?, self.next()?);
            let window = window_or_end(window)?;
            let limit = within(limit, 0, MOST).ok_or(LIMIT)?;
            if !increases(quotas.last(), &window) {
                return Err(ORDER.to_owned());
            }
            if quotas.len() == 16 {
                return Err(TOO_MANY.to_owned());
            }
            quotas.push(Quota { limit, ..window });
        }
        let (mut cost, mut force, mut anchored, mut hold, mut within) = (None, false, false, None, None);
        let takes_hold = self.place != Place::Refund;
        let waits = sliding && matches!(self.place, Place::Command | Place::Peek);
        let check = matches!(self.place, Place::Peek | Place::All);
        let (least, cost_line) = if check { (0, COST_OR_NONE) } else { (1, COST) };
        let report = self.options(if sliding { "SLIDING" } else { "FIXED" }, true, |word, rest| {
            if is(word, "COST") && cost.is_none() {
                let (units, behind) = rest.split_first().ok_or(None)?;
                cost = Some(self::within(units, least, MOST).ok_or_else(|| Some(cost_line.to_owned()))?);
                *rest = behind;
            } else if is(word, "FORCE") && !force {
                force = true;
            } else if is(word, "ANCHORED") && !anchored && !sliding {
                anchored = true;
            } else if is(word, "WITHIN") && within.is_none() && waits {
                let (millis, behind) = rest.split_first().ok_or(None)?;
                within = Some(wait(millis).map_err(Some)?);
                *rest = behind;
            } else if is(word, "HOLD") && hold.is_none() && takes_hold {
                let [holder, lease, behind @ ..] = *rest else { return Err(None) };
                if !(1..=256).contains(&holder.len()) {
                    return Err(Some(HOLDER.to_owned()));
                }
                let lease = window(lease).ok_or_else(|| Some(LEASE.to_owned()))?;
                hold = Some(Hold { holder: holder.clone(), lease });
                *rest = behind;
            } else {
                return Ok(false);
            }
            Ok(true)
        })?;
        // What the words mean together is judged after each of them.
        let ends = quotas.iter().any(|quota| quota.end.is_some());
        if hold.is_some() && cost == Some(0) {
            return Err(COST.to_owned());
        }
        if within.is_some() && (force || hold.is_some()) {
            return Err(WITHIN_ALONE.to_owned());
        }
        if ends && sliding {
            return Err(WINDOW.to_owned());
        }
        if ends && anchored {
            return Err(ANCHORED_END.to_owned());
        }
        let rule = match sliding {
            true => Rule::Sliding { quotas, cost, force, hold, within },
            false => Rule::Fixed { quotas, anchored, cost, force, hold },
        };
        Ok((rule, report))
    }

    /// `max_burst count period [quantity]` and options.
    fn rate(&mut self) -> Result<(Rule, Report), String> {
        let [max_burst, count, period] = [self.next()?, self.next()?, self.next()?];
        let burst = within(max_burst, 0, MOST - 1).ok_or(BURST)?;
        let count = within(count, 1, MOST).ok_or(COUNT)?;
        let period = within(period, 1, i64::from(i32::MAX)).ok_or(PERIOD)?;
        let mut quantity = None;
        if self.words.first().is_some_and(|word| is_number(word)) {
            quantity = Some(within(self.next()?, 0, MOST).ok_or(QUANTITY)?);
        }
        let (mut wait_for, waits) = (None, matches!(self.place, Place::Command | Place::Peek));
        let report = self.options("THROTTLE", false, |word, rest| {
            if !(is(word, "WITHIN") && wait_for.is_none() && waits) {
                return Ok(false);
            }
            let (millis, behind) = rest.split_first().ok_or(None)?;
            wait_for = Some(wait(millis).map_err(Some)?);
            *rest = behind;
            Ok(true)
        })?;
        if i128::from(count) > i128::from(period) * 1_000_000_000 {
            return Err(TOO_FAST.to_owned());
        }
        let rule = Rule::Throttle { burst, count, period, quantity, within: wait_for };
        if rule.interval() * i128::from(burst + 1) > 1 << 62 {
            return Err(TOO_LONG.to_owned());
        }
        Ok((rule, report))
    }

    /// `limit leaseSec holder` and options.
    fn lease(&mut self) -> Result<(Rule, Report), String> {
        let [limit, seconds, holder] = [self.next()?, self.next()?, self.next()?];
        let limit = within(limit, 0, MOST).ok_or(LIMIT)?;
        let lease = window(seconds).ok_or(LEASE)?;
        let report = self.options("ACQUIRE", false, |_, _| Ok(false))?;
        Ok((Rule::Acquire { limit, lease, holder: holder.to_vec() }, report))
    }

    /// Options in any order, each once, of the rule of this name. In RL.ALL a word that is not an option is left for the next
    /// rule. `own` reads an option of the rule; `Err(None)` stands for the rule's own line.
    fn options(
        &mut self,
        name: &str,
        takes_each: bool,
        mut own: impl FnMut(&[u8], &mut &'a [Vec<u8>]) -> Result<bool, Option<String>>,
    ) -> Result<Report, String> {
        let line = bad_words(name, self.place);
        let mut report = Report::Short;
        while let Some((word, mut rest)) = self.words.split_first() {
            let asked = match self.place {
                Place::Command | Place::Peek if is(word, "FULL") => Some(Report::Full),
                Place::Command if takes_each && is(word, "EACH") => Some(Report::Each),
                Place::Peek if is(word, "EACH") => Some(Report::Each),
                _ => None,
            };
            if let Some(asked) = asked.filter(|_| report == Report::Short) {
                report = asked;
            } else if self.place == Place::Refund && is(word, "AT") && self.at.is_none() {
                let (at, behind) = rest.split_first().ok_or(&*line)?;
                self.at = Some(within(at, 0, MOST).ok_or(AT)?);
                rest = behind;
            } else if self.place == Place::Settle && is(word, "ACTUAL") && self.actual.is_none() {
                let (units, behind) = rest.split_first().ok_or(&*line)?;
                self.actual = Some(within(units, 0, MOST).ok_or(ACTUAL)?);
                rest = behind;
            } else if !own(word, &mut rest).map_err(|error| error.unwrap_or_else(|| line.clone()))? {
                break;
            }
            self.words = rest;
        }
        if self.place == Place::All || self.words.is_empty() { Ok(report) } else { Err(line) }
    }
}

/// `[windowSec ...] [HOLD]`: the windows by their lengths and by their ends, and whether the holds go, too.
fn windows(words: &[Vec<u8>]) -> Result<(Vec<i64>, Vec<i64>, bool), String> {
    let (words, holds) = match words {
        [words @ .., last] if is(last, "HOLD") => (words, true),
        words => (words, false),
    };
    let mut quotas: Vec<Quota> = Vec::new();
    for word in words {
        let quota = window_or_end(word)?;
        if !increases(quotas.last(), &quota) {
            return Err(ORDER.to_owned());
        }
        if quotas.len() == 16 {
            return Err(TOO_MANY_TO_RESET.to_owned());
        }
        quotas.push(quota);
    }
    let ends = quotas.iter().filter_map(|quota| quota.end).collect();
    Ok((quotas.iter().filter(|quota| quota.end.is_none()).map(|quota| quota.window).collect(), ends, holds))
}

fn within(text: &[u8], least: i64, most: i64) -> Option<i64> {
    canonical(text).filter(|number| (least..=most).contains(number))
}

/// An integer, if it is written in the server's own form.
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
