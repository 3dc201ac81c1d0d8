//! The grammar of the rules of windows: `windowSec limit [windowSec limit ...] [COST n] [FULL]`, and the errors for words
//! that do not follow it.

use crate::limit::{Cost, Demand, Limit, Quota, Quotas, Refusal, Window};
use crate::server::{Args, Error, Str, parse_i64, split_i64};

const BAD_WINDOW: Error = Error::Line(
    c"ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places",
);
const BAD_LIMIT: Error = Error::Line(c"ERR limit must be an integer from 0 to 9007199254740991");
const BAD_COST: Error = Error::Line(c"ERR COST must be an integer from 1 to 9007199254740991");
const NOT_INCREASING: Error = Error::Line(c"ERR windowSec must increase from one window to the next");
const TOO_MANY: Error = Error::Line(c"ERR windowSec and limit can be given for at most 16 windows");
const TOO_MANY_WINDOWS: Error = Error::Line(c"ERR windowSec can be given for at most 16 windows");
const BAD_OPTION: Error = Error::Line(c"ERR syntax error: expected windowSec limit, COST n or FULL");

/// `windowSec limit [windowSec limit ...] [COST n] [FULL]`, and nothing behind it.
#[inline]
pub fn demand(mut words: Args<'_>) -> Result<Demand, Error> {
    // Nearly all there is.
    if let Some([window, limit]) = words.exactly() {
        return Ok(Demand { quotas: Quotas::of(quota(window, limit)?), cost: Cost::ONE, full: false });
    }
    demand_with_options(&mut words)
}

#[inline(never)] // The plain form is to be lean.
fn demand_with_options(words: &mut Args<'_>) -> Result<Demand, Error> {
    let (quotas, mut option) = quotas(words)?;
    let (mut cost, mut full) = (None, false);
    while let Some(word) = option {
        if word.as_bytes().eq_ignore_ascii_case(b"COST") && cost.is_none() {
            let units = words.next().ok_or(BAD_OPTION)?;
            cost = Some(parse_i64(units.as_bytes()).and_then(Cost::new).ok_or(BAD_COST)?);
        } else if word.as_bytes().eq_ignore_ascii_case(b"FULL") && !full {
            full = true;
        } else {
            return Err(BAD_OPTION);
        }
        option = words.next();
    }
    Ok(Demand { quotas, cost: cost.unwrap_or(Cost::ONE), full })
}

/// `windowSec limit [windowSec limit ...]`, and the word behind it.
fn quotas<'a>(words: &mut Args<'a>) -> Result<(Quotas, Option<Str<'a>>), Error> {
    let next_quota = |window, words: &mut Args<'a>| quota(window, words.next().ok_or(Error::WrongArity)?);
    let first = words.next().ok_or(Error::WrongArity)?;
    let mut quotas = Quotas::of(next_quota(first, words)?);
    let mut word = words.next();
    while let Some(window) = word.filter(|word| is_number(word.as_bytes())) {
        quotas.push(next_quota(window, words)?).map_err(|refusal| match refusal {
            Refusal::NotIncreasing => NOT_INCREASING,
            Refusal::TooMany => TOO_MANY,
        })?;
        word = words.next();
    }
    Ok((quotas, word))
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
    Ok(Quota {
        window: self::window(window)?,
        limit: parse_i64(limit.as_bytes()).and_then(Limit::new).ok_or(BAD_LIMIT)?,
    })
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
