//! The words of a call as they are parsed, and the errors for those that are out of range.

use super::grammar::{Grammar, Host, Word};
use crate::config;
use crate::limit::{Cost, Detail, Limit, Quota, Quotas, Refusal, Request, Time, Turn, Window};
use crate::server::{Args, Error, Str, parse_i64, split_i64};
use crate::state::Hold;

pub const BAD_WINDOW: Error = Error::Line(
    c"ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places",
);
const BAD_LEASE: Error =
    Error::Line(c"ERR leaseSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places");
const BAD_LIMIT: Error = Error::Line(c"ERR limit must be an integer from 0 to 9007199254740991");
const BAD_COST: Error = Error::Line(c"ERR COST must be an integer from 1 to 9007199254740991");
const BAD_COST_OR_CHECK: Error = Error::Line(c"ERR COST must be an integer from 0 to 9007199254740991");
const BAD_AT: Error = Error::Line(c"ERR AT must be a unix time in milliseconds, an integer from 0 to 9007199254740991");
const BAD_WITHIN: Error = Error::Line(c"ERR WITHIN must be an integer number of milliseconds from 0 to 3600000");
const WITHIN_ALONE: Error = Error::Line(c"ERR WITHIN takes neither FORCE nor HOLD");
const BAD_HOLDER: Error = Error::Line(c"ERR holder must be 1 to 256 bytes long");
const BAD_ACTUAL: Error = Error::Line(c"ERR ACTUAL must be an integer from 0 to 9007199254740991");
const BAD_END: Error =
    Error::Line(c"ERR @ms must be a unix time in milliseconds, an integer from 0 to 9007199254740991");
const NOT_INCREASING: Error = Error::Line(c"ERR windowSec must increase from one window to the next");
const TOO_MANY: Error = Error::Line(c"ERR windowSec and limit can be given for at most 16 windows");
const TOO_MANY_WINDOWS: Error = Error::Line(c"ERR windowSec can be given for at most 16 windows");

const MOST_HOLDER_BYTES: usize = 256;

#[derive(Default)]
pub struct Options {
    pub cost: Option<Cost>,
    pub force: bool,
    pub hold: Option<Hold>,
    pub anchored: bool,
    detail: Option<Detail>,
    /// For how many milliseconds the request may wait for its turn.
    pub within: Option<i64>,
    /// The time of the request to refund.
    pub at: Option<Time>,
    /// The units to settle.
    pub actual: Option<Cost>,
}

impl Options {
    pub fn detail(&self) -> Detail {
        self.detail.unwrap_or(Detail::Short)
    }
}

/// `windowSec limit [windowSec limit ...]` and options.
#[inline(always)] // Its result is large, and would be copied.
pub fn quotas_and_options(
    grammar: Grammar,
    words: &mut Args<'_>,
    host: Host,
    options: &mut Options,
) -> Result<Request, Error> {
    // The usual call.
    if host == Host::Named
        && let Some([window, limit]) = words.exactly()
    {
        return Ok(Request {
            quotas: Quotas::of(quota(window, limit)?),
            cost: Cost::ONE,
            force: false,
            held: false,
            within: None,
        });
    }
    let quotas = quotas(words)?;
    self::options(grammar, words, host, options)?;
    let (cost, held) = (options.cost.unwrap_or(Cost::ONE), options.hold.is_some());
    if held && cost == Cost::NOTHING {
        return Err(BAD_COST);
    }
    let (force, within) = (options.force, options.within);
    if within.is_some() && (force || held) {
        return Err(WITHIN_ALONE);
    }
    Ok(Request { quotas, cost, force, held, within })
}

/// `ms` behind WITHIN. Where limits are not enforced nobody has to wait.
pub fn wait(word: Str<'_>) -> Result<i64, Error> {
    let millis = self::within(word, 0, Turn::LONGEST_WAIT).ok_or(BAD_WITHIN)?;
    Ok(if config::enforces() { millis } else { 0 })
}

/// Options in any order, each once. In RL.ALL they end at the next rule, elsewhere with the call.
pub fn options(grammar: Grammar, words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<(), Error> {
    let bad = || grammar.error(host);
    while let Some(word) = words.peek() {
        let (mut rest, word) = (*words, word.as_bytes());
        rest.next();
        let is = |name: &str, option| word.eq_ignore_ascii_case(name.as_bytes()) && grammar.takes(option);
        let is_of_host = |name: &str, its: Host| host == its && word.eq_ignore_ascii_case(name.as_bytes());
        if options.cost.is_none() && is("COST", Word::Cost) {
            options.cost = Some(cost(rest.next().ok_or_else(bad)?, host)?);
        } else if !options.force && is("FORCE", Word::Force) {
            options.force = true;
        } else if !options.anchored && is("ANCHORED", Word::Anchored) {
            options.anchored = true;
        } else if let Some(detail) = detail(grammar, word, host)
            && options.detail.is_none()
        {
            options.detail = Some(detail);
        } else if options.hold.is_none() && host != Host::Refund && is("HOLD", Word::Hold) {
            let (holder, lease) = rest.next().zip(rest.next()).ok_or_else(bad)?;
            if !(1..=MOST_HOLDER_BYTES).contains(&holder.as_bytes().len()) {
                return Err(BAD_HOLDER);
            }
            options.hold = Some(Hold { holder: holder.retain(), lease: self::lease(lease)? });
        } else if options.within.is_none() && matches!(host, Host::Named | Host::Peek) && is("WITHIN", Word::Within) {
            options.within = Some(wait(rest.next().ok_or_else(bad)?)?);
        } else if options.actual.is_none() && is_of_host("ACTUAL", Host::Settle) {
            let units = parse_i64(rest.next().ok_or_else(bad)?.as_bytes());
            options.actual = Some(units.and_then(Cost::new).ok_or(BAD_ACTUAL)?);
        } else if options.at.is_none() && is_of_host("AT", Host::Refund) {
            let millis = within(rest.next().ok_or_else(bad)?, 0, Limit::MAX).ok_or(BAD_AT)?;
            options.at = Some(Time::from_millis(millis));
        } else {
            break;
        }
        *words = rest;
    }
    if host == Host::All || words.is_empty() { Ok(()) } else { Err(bad()) }
}

/// The units after COST. They may be 0 where a rule can be a check.
fn cost(word: Str<'_>, host: Host) -> Result<Cost, Error> {
    let (least, bad) = match host {
        Host::Peek | Host::All => (Cost::NOTHING, BAD_COST_OR_CHECK),
        Host::Named | Host::Refund | Host::Settle => (Cost::ONE, BAD_COST),
    };
    parse_i64(word.as_bytes()).and_then(Cost::new).filter(|&cost| cost >= least).ok_or(bad)
}

/// How much of a decision the reply shows, if that is what this word says here.
fn detail(grammar: Grammar, word: &[u8], host: Host) -> Option<Detail> {
    let is_full = word.eq_ignore_ascii_case(b"FULL") && matches!(host, Host::Named | Host::Peek);
    let has_each = host == Host::Peek || (host == Host::Named && grammar.takes(Word::Each));
    let is_each = word.eq_ignore_ascii_case(b"EACH") && has_each;
    is_full.then_some(Detail::Full).or(is_each.then_some(Detail::Each))
}

/// `windowSec limit [windowSec limit ...]`
fn quotas(words: &mut Args<'_>) -> Result<Quotas, Error> {
    let next_quota =
        |words: &mut Args<'_>| quota(words.next().ok_or(Error::WrongArity)?, words.next().ok_or(Error::WrongArity)?);
    let mut quotas = Quotas::of(next_quota(words)?);
    while words.peek().is_some_and(|word| is_number(word.as_bytes()) || is_end(word)) {
        quotas.push(next_quota(words)?).map_err(|refusal| match refusal {
            Refusal::NotIncreasing => NOT_INCREASING,
            Refusal::TooMany => TOO_MANY,
        })?;
    }
    Ok(quotas)
}

pub fn lease(word: Str<'_>) -> Result<Window, Error> {
    parse_window(word.as_bytes()).ok_or(BAD_LEASE)
}

pub fn is(word: Str<'_>, name: &str) -> bool {
    word.as_bytes().eq_ignore_ascii_case(name.as_bytes())
}

pub fn within(word: Str<'_>, least: i64, most: i64) -> Option<i64> {
    parse_i64(word.as_bytes()).filter(|value| (least..=most).contains(value))
}

/// A window, and its end if that is given.
type Ending = (Window, Option<Time>);

/// `[windowSec ...] [HOLD]`: the windows, and whether the last word is HOLD.
pub fn windows(mut words: Args<'_>) -> Result<(Vec<Ending>, bool), Error> {
    let mut windows = Vec::new();
    while let Some(word) = words.next() {
        if words.is_empty() && is(word, "HOLD") {
            return Ok((windows, true));
        }
        let next = if is_end(word) { (Window::LONGEST, Some(end(word)?)) } else { (window(word)?, None) };
        if windows.last().is_some_and(|last| next <= *last) {
            return Err(NOT_INCREASING);
        }
        if windows.len() == Quotas::MOST {
            return Err(TOO_MANY_WINDOWS);
        }
        windows.push(next);
    }
    Ok((windows, false))
}

/// Whether a word is meant as a number, in or out of range. All other words are meant as options.
pub fn is_number(word: &[u8]) -> bool {
    word.first().is_some_and(|first| matches!(first, b'0'..=b'9' | b'+' | b'-' | b'.'))
}

/// `windowSec limit` or `@ms limit`
pub fn quota(window: Str<'_>, limit: Str<'_>) -> Result<Quota, Error> {
    match parse_window(window.as_bytes()) {
        None if is_end(window) => Ok(Quota::until(end(window)?, self::limit(limit)?)),
        parsed => Ok(Quota::of(parsed.ok_or(BAD_WINDOW)?, self::limit(limit)?)),
    }
}

/// Whether a word is meant as the end of a window, in place of its length.
fn is_end(word: Str<'_>) -> bool {
    word.as_bytes().starts_with(b"@")
}

/// `@ms`
fn end(word: Str<'_>) -> Result<Time, Error> {
    let millis = word.as_bytes().get(1..).and_then(parse_i64);
    millis.filter(|millis| (0..=Limit::MAX).contains(millis)).map(Time::from_millis).ok_or(BAD_END)
}

pub fn limit(word: Str<'_>) -> Result<Limit, Error> {
    parse_i64(word.as_bytes()).and_then(Limit::new).ok_or(BAD_LIMIT)
}

fn window(word: Str<'_>) -> Result<Window, Error> {
    parse_window(word.as_bytes()).ok_or(BAD_WINDOW)
}

/// Seconds with up to three decimal places, exactly. No floating point: 0.1 has no exact form there.
fn parse_window(text: &[u8]) -> Option<Window> {
    let (seconds, rest) = split_i64(text)?;
    let seconds = Some(seconds).filter(|seconds| (0..=Window::MAX_SECONDS).contains(seconds))?;
    let thousandths = match rest {
        [] => 0,
        [b'.', places @ ..] => parse_thousandths(places)?,
        _ => return None,
    };
    // "-0" is not an integer for the server, so `seconds` had no minus.
    Window::from_millis(seconds.checked_mul(1000)?.checked_add(thousandths)?)
}

/// One to three digits after the point, as thousandths.
fn parse_thousandths(places: &[u8]) -> Option<i64> {
    let digits = (1..=3).contains(&places.len()).then(|| places.iter().chain(b"00").take(3))?;
    digits.into_iter().try_fold(0_i64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte & 0x0f))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests;
