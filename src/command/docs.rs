//! The arguments of a command as COMMAND DOCS shows them, made of its syntax line.
//!
//! In a line `[word]` may be left out, `word [word ...]` is given once or more, and `|` separates alternatives. A word in capitals
//! is literal. `rule` stands for one of the rules, `refundable` for one of those that
//! RL.REFUND takes, `holdable` for one of those that can be held.

use std::ffi::CString;

use super::grammar::Host;
use super::rules::{RULES, Row};
use crate::server::{ArgKind, Argument};

pub fn arguments(syntax: &str) -> Vec<Argument> {
    let mut arguments: Vec<Argument> = Vec::new();
    let mut rest = syntax;
    while !rest.is_empty() {
        let group = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (item, after) = group.or_else(|| rest.split_once(' ')).unwrap_or((rest, ""));
        rest = after.trim_start();
        match (group.is_some(), item.strip_suffix(" ...")) {
            (false, _) => arguments.push(word(item)),
            (true, None) => arguments.push(Argument { optional: true, ..option(item) }),
            (true, Some(item)) => {
                let more = self::arguments(item);
                // The same arguments once more, or others that may be left out.
                let names = |list: &[Argument]| list.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
                let first = arguments.len().saturating_sub(more.len());
                let is_again = names(arguments.get(first..).unwrap_or_default()) == names(&more);
                if is_again {
                    arguments.truncate(first);
                }
                arguments.push(Argument { optional: !is_again, repeated: true, ..together(more) });
            }
        }
    }
    arguments
}

/// `ONE | OTHER n`, `WORD`, `WORD n`, or a word that is not literal.
fn option(item: &str) -> Argument {
    if item.contains(" | ") {
        return several(ArgKind::OneOf, item.split(" | ").map(option).collect());
    }
    match item.split_once(' ') {
        None => word(item),
        Some((token, rest)) => Argument { token: Some(text(token)), ..together(arguments(rest)) },
    }
}

fn word(name: &str) -> Argument {
    let kind = match name {
        "rule" => return any_rule(Host::Peek),
        "refundable" => return any_rule(Host::Refund),
        "holdable" => return any_rule(Host::Settle),
        "key" => ArgKind::Key,
        "holder" => ArgKind::String,
        _ if name.ends_with("Sec") => ArgKind::Double,
        _ if is_literal(name) => ArgKind::Token,
        _ => ArgKind::Integer,
    };
    let token = (kind == ArgKind::Token).then(|| text(name));
    Argument { token, ..plain(&name_of(name), kind) }
}

/// An argument takes its name from a literal word in small letters.
fn name_of(word: &str) -> String {
    if is_literal(word) { word.to_lowercase() } else { word.to_owned() }
}

fn is_literal(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_uppercase())
}

fn any_rule(host: Host) -> Argument {
    let block = |row: &Row| {
        let words = if host == Host::Refund { row.grammar.refund() } else { row.grammar.rule() };
        Argument { name: text(&row.grammar.name.to_lowercase()), ..several(ArgKind::Block, arguments(&words)) }
    };
    let rules = RULES.iter().filter(|row| row.is_taken(host)).map(block).collect();
    Argument { name: text("rule"), ..several(ArgKind::OneOf, rules) }
}

/// Arguments that are given together, or the only one.
fn together(mut parts: Vec<Argument>) -> Argument {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => several(ArgKind::Block, parts.into_iter().chain(last).collect()),
    }
}

fn several(kind: ArgKind, parts: Vec<Argument>) -> Argument {
    let names: Vec<_> = parts.iter().map(|part| part.name.to_string_lossy()).collect();
    let name = names.join("-");
    Argument { parts, ..plain(&name, kind) }
}

fn plain(name: &str, kind: ArgKind) -> Argument {
    Argument { name: text(name), kind, token: None, optional: false, repeated: false, parts: Vec::new() }
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
