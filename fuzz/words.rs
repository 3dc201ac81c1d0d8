//! The words of the commands: each call is accepted, or refused with the very line, as tests/support/grammar.rs has it.

use super::all;
use super::args::{self, Options};
use super::grammar::Host;
use super::rule::Rule;
use super::rules::AnyRule;
use super::settle::NO_HOLD;
use crate::fuzzing::Input;
use crate::server::{Args, Error, with_words};
use crate::state::{Fixed, Lease, Sliding, Throttle};
use grammar::Verdict;

#[path = "../tests/support/call.rs"]
#[allow(dead_code)]
mod call;
#[path = "../tests/support/grammar.rs"]
#[allow(dead_code)]
mod grammar;

/// What calls are made of, and what looks like it.
const VOCABULARY: &[&str] = &[
    "SLIDING",
    "FIXED",
    "THROTTLE",
    "ACQUIRE",
    "ANCHORED",
    "COST",
    "FORCE",
    "FULL",
    "EACH",
    "AT",
    "HOLD",
    "ACTUAL",
    "WITHIN",
    "0",
    "1",
    "2",
    "5",
    "9",
    "60",
    "3600",
    "0.001",
    "0.25",
    "1.0",
    "60.000",
    "-1",
    "+1",
    "01",
    "-0",
    "1e3",
    ".5",
    "5.",
    "0.0001",
    "2147483647",
    "2147483648",
    "2147483647.001",
    "9007199254740990",
    "9007199254740991",
    "9007199254740992",
    "9223372036854775807",
    "9223372036854775808",
    "1000000000",
    "1000000001",
    "64",
    "65",
    "16",
    "",
    "k",
    "holder",
    "key:60s",
    "sliding",
    "Full",
    "force",
    "cost",
    "each",
    "anchored",
    "at",
    "hold",
    "actual",
    "FULLY",
    "@1800000060000",
    "@1800000060001",
    "@9007199254740991",
    "@9007199254740992",
    "@01",
    "@",
];

/// Any command with any words.
pub fn words(input: &[u8]) {
    let mut input = Input(input);
    let commands = [
        "RL.SLIDING",
        "RL.FIXED",
        "RL.THROTTLE",
        "RL.ACQUIRE",
        "RL.RELEASE",
        "RL.PEEK",
        "RL.REFUND",
        "RL.SETTLE",
        "RL.RESET",
        "RL.ALL",
    ];
    let command = commands[usize::from(input.choice(commands.len() as u8))];
    let mut words = vec![command.as_bytes().to_vec(), b"key".to_vec()];
    while !input.is_empty() && words.len() < 200 {
        words.push(word(&mut input));
    }
    check(&words);
}

/// RL.ALL with keys and rules that are right, but for some words.
pub fn all_keys(input: &[u8]) {
    let mut input = Input(input);
    let number = 1 + input.choice(6);
    let mut words = vec![b"RL.ALL".to_vec(), number.to_string().into_bytes()];
    for key in 0..number {
        // Now and then twice, or where another's counter lies.
        let name = ["a", "b", "c", "a:60s", "b:30000000", "a:held", "b:@1800000060000", "d"];
        words.push(name[usize::from((key + input.choice(8)) % 8)].as_bytes().to_vec());
    }
    for _ in 0..number {
        let rule = [
            "SLIDING 60 5",
            "FIXED 60 5",
            "FIXED 1 5 60 9 ANCHORED",
            "THROTTLE 4 1 60",
            "ACQUIRE 5 60 h",
            "SLIDING 60 5 HOLD h 5",
            "FIXED 60 5 @1800000060000 9",
            "FIXED 60 5 COST 2 HOLD h 5",
        ];
        let rule = rule[usize::from(input.choice(8))];
        words.extend(rule.split(' ').map(|word| word.as_bytes().to_vec()));
        for _ in 0..input.choice(3) {
            words.push(word(&mut input));
        }
    }
    while !input.is_empty() && words.len() < 200 {
        let at = usize::from(input.byte()) % words.len();
        match input.choice(3) {
            0 => words[at] = word(&mut input),
            1 => words.insert(at, word(&mut input)),
            _ => drop((at > 0).then(|| words.remove(at))),
        }
        if words.len() < 2 || words[0] != b"RL.ALL" {
            return;
        }
    }
    check(&words);
}

fn word(input: &mut Input<'_>) -> Vec<u8> {
    match input.byte() {
        0..=199 => VOCABULARY[usize::from(input.byte()) % VOCABULARY.len()].as_bytes().to_vec(),
        200..=229 => input.integer().to_string().into_bytes(),
        _ => {
            let length = usize::from(input.choice(12));
            input.take(length).to_vec()
        }
    }
}

fn check(words: &[Vec<u8>]) {
    let right = match grammar::verdict(words) {
        Verdict::Uncalled(_) => return, // The server counts the words.
        Verdict::Refused(line) => Err(line),
        _ => Ok(()),
    };
    let name = String::from_utf8_lossy(&words[0]).to_lowercase();
    let told = with_words(words, |args| read(&name, args)).map_err(|error| match error {
        Error::WrongArity => format!("ERR wrong number of arguments for '{name}' command"),
        Error::Line(line) => line.to_str().expect("lines are text").to_owned(),
    });
    let shown: Vec<_> = words.iter().map(|word| word.escape_ascii().to_string()).collect();
    assert_eq!(told, right, "{shown:?}");
}

/// Reads the words as the command does.
fn read(name: &str, words: Args<'_>) -> Result<(), Error> {
    let (mut rest, mut options) = (words, Options::default());
    rest.next();
    rest.next();
    match name {
        "rl.sliding" => Sliding::parse(&mut rest, Host::Named, &mut options).map(drop),
        "rl.fixed" => Fixed::parse(&mut rest, Host::Named, &mut options).map(drop),
        "rl.throttle" => Throttle::parse(&mut rest, Host::Named, &mut options).map(drop),
        "rl.acquire" => Lease::parse(&mut rest, Host::Named, &mut options).map(drop),
        "rl.peek" => AnyRule::parse(&mut rest, Host::Peek, &mut options).map(drop),
        "rl.refund" => AnyRule::parse(&mut rest, Host::Refund, &mut options).map(drop),
        "rl.settle" => match AnyRule::parse(&mut rest, Host::Settle, &mut options)? {
            _ if options.hold.is_none() => Err(NO_HOLD),
            rule => options.actual.map(drop).ok_or_else(|| rule.grammar().error(Host::Settle)),
        },
        "rl.reset" => args::windows(rest).map(drop),
        "rl.all" => all::parse(words).map(drop),
        _ => Ok(()), // RL.RELEASE takes any holders.
    }
}
