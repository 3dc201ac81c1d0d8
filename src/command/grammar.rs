//! The words of the rules, declared once: the parser, the lines of errors, COMMAND DOCS and the functions in Lua go by them.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

use crate::server::{Error, Str};

/// The command that a rule is given in, which determines the options that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// The command of its name.
    Named,
    Peek,
    Refund,
    Settle,
    All,
}

/// An option of a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Word {
    Anchored,
    Cost,
    Hold,
    Within,
    Force,
    Full,
    Each,
}

impl Word {
    const fn text(self) -> &'static str {
        match self {
            Self::Anchored => "ANCHORED",
            Self::Cost => "COST n",
            Self::Hold => "HOLD holder leaseSec",
            Self::Within => "WITHIN ms",
            Self::Force => "FORCE",
            Self::Full => "FULL",
            Self::Each => "EACH",
        }
    }

    fn is_of_reply(self) -> bool {
        matches!(self, Self::Full | Self::Each)
    }
}

/// The words of a rule.
#[derive(Clone, Copy)]
pub struct Grammar {
    /// It begins the rule in RL.PEEK, RL.REFUND, RL.SETTLE and RL.ALL.
    pub name: &'static str,
    /// What comes first, in its own command behind the key.
    pub words: &'static str,
    /// What may follow in its own command, in any order, and of alternatives one.
    pub options: &'static [&'static [Word]],
}

impl Grammar {
    pub fn is_named(self, word: Str<'_>) -> bool {
        word.as_bytes().eq_ignore_ascii_case(self.name.as_bytes())
    }

    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)] // Evaluated by the compiler.
    pub const fn takes(self, option: Word) -> bool {
        let mut group = 0;
        while group < self.options.len() {
            let mut place = 0;
            while place < self.options[group].len() {
                if self.options[group][place] as u8 == option as u8 {
                    return true;
                }
                place += 1;
            }
            group += 1;
        }
        false
    }

    /// What follows the key in its own command.
    pub fn own(self) -> String {
        self.line(|_| true)
    }

    /// Its words where a command takes any rule. How long a request may wait, and what the reply shows, is said behind the rule.
    pub fn rule(self) -> String {
        self.named(|option| option != Word::Within && !option.is_of_reply())
    }

    /// Its words where units are taken back, which needs no holder.
    pub fn refund(self) -> String {
        self.named(|option| !matches!(option, Word::Within | Word::Hold) && !option.is_of_reply())
    }

    fn named(self, shows: impl Fn(Word) -> bool) -> String {
        format!("{} {}", self.name, self.line(shows))
    }

    fn line(self, shows: impl Fn(Word) -> bool) -> String {
        let mut line = self.words.to_owned();
        for group in self.options {
            let shown: Vec<&str> = group.iter().filter(|&&option| shows(option)).map(|option| option.text()).collect();
            if !shown.is_empty() {
                line.push_str(&format!(" [{}]", shown.join(" | ")));
            }
        }
        line
    }

    /// The reply to words that do not follow it.
    #[cold]
    pub fn error(self, host: Host) -> Error {
        let options = match host {
            Host::Named => return kept(format!("ERR syntax error: expected {}", self.own())),
            Host::Refund => return kept(format!("ERR syntax error: expected {} [AT ms]", self.refund())),
            Host::Peek if self.takes(Word::Within) => "[WITHIN ms] [FULL | EACH]",
            Host::Peek => "[FULL | EACH]",
            Host::Settle => "ACTUAL n",
            Host::All => "[WITHIN ms] [FULL]",
        };
        kept(format!("ERR syntax error: expected {} {options}", self.rule()))
    }
}

/// An error whose line is made of the words of rules. There are some dozens of them; each is kept once it was needed.
pub fn kept(line: String) -> Error {
    static LINES: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
    let Ok(line) = CString::new(line) else { return Error::WrongArity };
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = lines.get(&*line).copied().unwrap_or_else(|| Box::leak(line.into_boxed_c_str()));
    lines.insert(kept);
    Error::Line(kept)
}
