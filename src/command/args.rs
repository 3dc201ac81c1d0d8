//! The grammar of the rules, and the errors for words that do not follow it.

use crate::limit::{Cost, Demand, Detail, Limit, Quota, Quotas, Refusal, Time, Window};
use crate::server::{Args, Error, Str, parse_i64, split_i64};

const BAD_WINDOW: Error = Error::Line(
    c"ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places",
);
const BAD_LEASE: Error =
    Error::Line(c"ERR leaseSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places");
const BAD_LIMIT: Error = Error::Line(c"ERR limit must be an integer from 0 to 9007199254740991");
const BAD_COST: Error = Error::Line(c"ERR COST must be an integer from 1 to 9007199254740991");
const BAD_COST_TO_PEEK: Error = Error::Line(c"ERR COST must be an integer from 0 to 9007199254740991");
const BAD_AT: Error = Error::Line(c"ERR AT must be a unix time in milliseconds, an integer from 0 to 9007199254740991");
const NOT_INCREASING: Error = Error::Line(c"ERR windowSec must increase from one window to the next");
const TOO_MANY: Error = Error::Line(c"ERR windowSec and limit can be given for at most 16 windows");
const TOO_MANY_WINDOWS: Error = Error::Line(c"ERR windowSec can be given for at most 16 windows");
const BAD_SLIDING: Error = Error::Line(c"ERR syntax error: expected windowSec limit, COST n, FORCE, FULL or EACH");
const BAD_FIXED: Error =
    Error::Line(c"ERR syntax error: expected windowSec limit, ANCHORED, COST n, FORCE, FULL or EACH");
const BAD_REFUND: Error = Error::Line(c"ERR syntax error: expected a rule and AT ms");
pub const BAD_ALL: Error = Error::Line(c"ERR syntax error: expected one rule a key and then FULL");

/// Where a rule stands, which says what may be said of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is the command's own.
    Command,
    Peek,
    Refund,
    /// Others follow.
    All,
}

/// What rules take besides `COST n` and `FORCE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sliding,
    /// `ANCHORED`
    Fixed,
    /// Neither this nor that.
    Other,
}

/// The options of a rule, as they were given.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub cost: Option<Cost>,
    pub force: bool,
    pub anchored: bool,
    pub tail: Tail,
}

/// What is said of the reply, or of the request, and not of the rule.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tail {
    detail: Option<Detail>,
    /// When the request was made.
    pub at: Option<Time>,
}

impl Tail {
    pub fn detail(self) -> Detail {
        self.detail.unwrap_or(Detail::Short)
    }
}

impl Options {
    /// The demand for these quotas.
    pub fn of(&self, quotas: Quotas) -> Demand {
        Demand { quotas, cost: self.cost.unwrap_or(Cost::ONE), force: self.force }
    }
}

/// `windowSec limit [windowSec limit ...]` and options.
#[inline(always)]
pub fn windows_and_options(words: &mut Args<'_>, place: Place, kind: Kind) -> Result<(Quotas, Options), Error> {
    // Nearly all there is.
    if place == Place::Command
        && let Some([window, limit]) = words.exactly()
    {
        return Ok((Quotas::of(quota(window, limit)?), Options::default()));
    }
    let quotas = quotas(words)?;
    Ok((quotas, options(words, place, kind)?))
}

/// Options up to a word that is none, which only another rule may be.
#[inline(never)] // The plain form is to be lean.
pub fn options(words: &mut Args<'_>, place: Place, kind: Kind) -> Result<Options, Error> {
    let mut options = Options::default();
    let has_windows = kind != Kind::Other;
    let unknown = match (place, kind) {
        (Place::Refund, _) => BAD_REFUND,
        (Place::All, _) => BAD_ALL,
        (Place::Command | Place::Peek, Kind::Sliding) => BAD_SLIDING,
        (Place::Command | Place::Peek, Kind::Fixed) => BAD_FIXED,
        (Place::Command | Place::Peek, Kind::Other) => Error::WrongArity,
    };
    while let Some(word) = words.peek() {
        let is = |name: &str| word.as_bytes().eq_ignore_ascii_case(name.as_bytes());
        let mut rest = *words;
        rest.next();
        if has_windows && is("COST") && options.cost.is_none() {
            let (least, bad) =
                if place == Place::Peek { (Cost::NOTHING, BAD_COST_TO_PEEK) } else { (Cost::ONE, BAD_COST) };
            let units = parse_i64(rest.next().ok_or(unknown)?.as_bytes());
            options.cost = Some(units.and_then(Cost::new).filter(|&cost| cost >= least).ok_or(bad)?);
        } else if has_windows && is("FORCE") && !options.force {
            options.force = true;
        } else if kind == Kind::Fixed && is("ANCHORED") && !options.anchored {
            options.anchored = true;
        } else if place == Place::Refund && is("AT") && options.tail.at.is_none() {
            let millis = within(rest.next().ok_or(unknown)?, 0, Limit::MAX).ok_or(BAD_AT)?;
            options.tail.at = Some(Time::from_millis(millis));
        } else if let Some(detail) = detail(word, place, kind)
            && options.tail.detail.is_none()
        {
            options.tail.detail = Some(detail);
        } else {
            break;
        }
        *words = rest;
    }
    if place != Place::All && !words.is_empty() { Err(unknown) } else { Ok(options) }
}

/// How much the reply is to say, if the word says that here.
fn detail(word: Str<'_>, place: Place, kind: Kind) -> Option<Detail> {
    let is = |name: &str| word.as_bytes().eq_ignore_ascii_case(name.as_bytes());
    match place {
        Place::Command | Place::Peek if is("FULL") => Some(Detail::Full),
        Place::Command if is("EACH") && kind != Kind::Other => Some(Detail::Each),
        Place::Peek if is("EACH") => Some(Detail::Each),
        _ => None,
    }
}

/// A number behind which options may follow, if there is one.
pub fn number_or_option<'a>(words: &mut Args<'a>, place: Place) -> Option<Str<'a>> {
    let word = words.peek()?;
    let is_option = match place {
        Place::All => !is_number(word.as_bytes()),
        Place::Refund => word.as_bytes().eq_ignore_ascii_case(b"AT"),
        Place::Command | Place::Peek => detail(word, place, Kind::Other).is_some(),
    };
    if is_option { None } else { words.next() }
}

/// `windowSec limit [windowSec limit ...]`
fn quotas(words: &mut Args<'_>) -> Result<Quotas, Error> {
    let next_quota =
        |words: &mut Args<'_>| quota(words.next().ok_or(Error::WrongArity)?, words.next().ok_or(Error::WrongArity)?);
    let mut quotas = Quotas::of(next_quota(words)?);
    while words.peek().is_some_and(|word| is_number(word.as_bytes())) {
        quotas.push(next_quota(words)?).map_err(|refusal| match refusal {
            Refusal::NotIncreasing => NOT_INCREASING,
            Refusal::TooMany => TOO_MANY,
        })?;
    }
    Ok(quotas)
}

/// `limit leaseSec`
pub fn lease(limit: Str<'_>, lease: Str<'_>) -> Result<(Limit, Window), Error> {
    Ok((self::limit(limit)?, parse_window(lease.as_bytes()).ok_or(BAD_LEASE)?))
}

/// An integer in a range.
pub fn within(word: Str<'_>, least: i64, most: i64) -> Option<i64> {
    parse_i64(word.as_bytes()).filter(|value| (least..=most).contains(value))
}

/// `[windowSec ...]`, and nothing behind it.
pub fn windows(words: Args<'_>) -> Result<Vec<Window>, Error> {
    let mut windows: Vec<Window> = Vec::new();
    for word in words {
        let window = window(word)?;
        if windows.last().is_some_and(|&shorter| window <= shorter) {
            return Err(NOT_INCREASING);
        }
        if windows.len() == Quotas::MOST {
            return Err(TOO_MANY_WINDOWS);
        }
        windows.push(window);
    }
    Ok(windows)
}

/// Whether a word is meant as a number, be it a good one or not; all the others are meant as options.
fn is_number(word: &[u8]) -> bool {
    word.first().is_some_and(|first| matches!(first, b'0'..=b'9' | b'+' | b'-' | b'.'))
}

#[inline]
fn quota(window: Str<'_>, limit: Str<'_>) -> Result<Quota, Error> {
    Ok(Quota { window: self::window(window)?, limit: self::limit(limit)? })
}

#[inline]
fn limit(word: Str<'_>) -> Result<Limit, Error> {
    parse_i64(word.as_bytes()).and_then(Limit::new).ok_or(BAD_LIMIT)
}

/// `windowSec`
#[inline]
fn window(word: Str<'_>) -> Result<Window, Error> {
    parse_window(word.as_bytes()).ok_or(BAD_WINDOW)
}

/// Seconds with up to three decimal places, exactly. No floating point: 0.1 has no exact form there.
#[inline(always)] // The plain form calls it once.
fn parse_window(text: &[u8]) -> Option<Window> {
    let (seconds, rest) = split_i64(text)?;
    let seconds = Some(seconds).filter(|seconds| (0..=Window::MAX_SECONDS).contains(seconds))?;
    let thousandths = match rest {
        [] => 0,
        [b'.', places @ ..] => parse_thousandths(places)?,
        _ => return None,
    };
    // "-0" is no integer, so a minus never comes this far.
    Window::from_millis(seconds.checked_mul(1000)?.checked_add(thousandths)?)
}

/// One to three digits behind the point, as thousandths.
fn parse_thousandths(places: &[u8]) -> Option<i64> {
    let digits = match *places {
        [tenths] => [tenths, b'0', b'0'],
        [tenths, hundredths] => [tenths, hundredths, b'0'],
        [tenths, hundredths, thousandths] => [tenths, hundredths, thousandths],
        _ => return None,
    };
    digits.iter().try_fold(0_i64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte & 0x0f))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn millis(text: &str) -> Option<i64> {
        parse_window(text.as_bytes()).map(Window::millis)
    }

    #[test]
    fn a_window_is_read_to_the_millisecond() {
        for (text, expected) in [
            ("1", 1_000),
            ("60", 60_000),
            ("0.001", 1),
            ("0.1", 100),
            ("0.10", 100),
            ("1.5", 1_500),
            ("1.050", 1_050),
            ("2147483647", 2_147_483_647_000),
            ("2147483647.000", 2_147_483_647_000),
        ] {
            assert_eq!(millis(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_window() {
        for text in [
            "",
            "0",
            "0.000",
            "-1",
            "-0.5",
            "+1",
            " 1",
            "1 ",
            "1.",
            ".5",
            ".",
            "1.0001",
            "1e3",
            "0x10",
            "01",
            "1,5",
            "1.5.5",
            "inf",
            "nan",
            "2147483647.001",
            "2147483648",
            "9223372036854775807",
            "99999999999999999999",
            "1\0",
        ] {
            assert_eq!(millis(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_window_is_read_back(value in 1i64..=2_147_483_647_000) {
            let text = format!("{}.{:03}", value / 1000, value % 1000);
            prop_assert_eq!(millis(&text), Some(value));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            let _ = parse_window(&bytes);
        }
    }
}
