//! One call of a command, in the words of each of the three modes.

use std::sync::Arc;

use redis::Cmd;

use crate::clock::Clock;
use crate::command::Command;
use crate::connection::To;
use crate::error::InvalidArgument;
use crate::mode::{SCRIPT, SCRIPT_SHA};
use crate::rule::{Rule, Use};

/// What a request for a decision asks for: keys, with a rule for each.
#[derive(Debug)]
pub(crate) struct Ask {
    /// With the limiter's prefix.
    pub keys: Arc<[Vec<u8>]>,
    pub rules: Vec<Rule>,
    /// Whether by RL.ALL, as those on several keys are.
    pub all: bool,
    /// By which calendars are worked out. Also later: what was counted in a period is settled in it.
    pub clock: Arc<Clock>,
    /// The longest wait for a turn, in milliseconds.
    pub within: Option<u64>,
}

impl Ask {
    pub fn new(keys: Vec<Vec<u8>>, rules: Vec<Rule>, all: bool, wanted: Use) -> Result<Self, InvalidArgument> {
        if !(1..=64).contains(&keys.len()) {
            return Err(InvalidArgument(format!("a call takes 1 to 64 keys, not {}", keys.len())));
        }
        rules.iter().try_for_each(|rule| rule.check(wanted))?;
        Ok(Self { keys: keys.into(), rules, all, clock: Arc::new(Clock::now()), within: None })
    }

    pub fn items(&self) -> impl Iterator<Item = (&Vec<u8>, &Rule)> {
        self.keys.iter().zip(&self.rules)
    }

    /// The call that decides.
    pub fn call(self: &Arc<Self>) -> Call {
        let command = match &self.rules[..] {
            [rule] if !self.all => rule.command(),
            _ => Command::ALL,
        };
        let repeatable = command.repeatable || self.rules.iter().any(Rule::is_reserved);
        let this = Arc::clone(self);
        let words = move |cmd: &mut Cmd, clock: &Clock| {
            for rule in &this.rules {
                rule.write(cmd, clock, this.all);
            }
            if let Some(within) = this.within {
                cmd.arg("WITHIN").arg(within);
            }
            cmd.arg(match &this.rules[..] {
                [rule] if !this.all => rule.form(),
                _ => "FULL",
            });
        };
        let (keys, clock) = (Arc::clone(&self.keys), Arc::clone(&self.clock));
        Call { command: Command { repeatable, ..command }, keys, clock, words: Box::new(words) }
    }
}

type Words = Box<dyn Fn(&mut Cmd, &Clock) + Send + Sync>;

/// A command with its keys and the words behind them.
pub(crate) struct Call {
    pub command: Command,
    pub keys: Arc<[Vec<u8>]>,
    /// By which its words work out the calendars.
    pub clock: Arc<Clock>,
    words: Words,
}

impl Call {
    /// A call about one key.
    pub fn new(command: Command, key: Vec<u8>, words: impl Fn(&mut Cmd, &Clock) + Send + Sync + 'static) -> Self {
        Self { command, keys: [key].into(), clock: Arc::new(Clock::now()), words: Box::new(words) }
    }

    pub fn at(self, clock: Arc<Clock>) -> Self {
        Self { clock, ..self }
    }

    /// By the module's command.
    pub fn by_module(&self) -> Cmd {
        self.cmd(|cmd| {
            cmd.arg(self.command.names.0);
            if self.command.counted {
                cmd.arg(self.keys.len());
            }
            cmd.arg(&*self.keys);
        })
    }

    /// By the function library, in the form that only reads where it does.
    pub fn by_function(&self) -> Cmd {
        let fcall = if self.command.reads { "FCALL_RO" } else { "FCALL" };
        self.cmd(|cmd| {
            cmd.arg(fcall).arg(self.command.names.1).arg(self.keys.len()).arg(&*self.keys);
        })
    }

    /// By the script, `whole` or by its digest. `read_only`: in the form that only reads, which replicas answer.
    pub fn by_script(&self, whole: bool, read_only: bool) -> Cmd {
        let (eval, script) = if whole { ("EVAL", SCRIPT) } else { ("EVALSHA", SCRIPT_SHA.as_str()) };
        let eval = if read_only { format!("{eval}_RO") } else { eval.to_owned() };
        self.cmd(|cmd| {
            cmd.arg(eval).arg(script).arg(self.keys.len()).arg(&*self.keys).arg(self.command.names.2);
        })
    }

    fn cmd(&self, begin: impl FnOnce(&mut Cmd)) -> Cmd {
        // With room for a few words a key, so that it seldom grows.
        let bytes: usize = self.keys.iter().map(|key| key.len() + 40).sum();
        let mut cmd = Cmd::with_capacity(6 + 7 * self.keys.len(), bytes + 32);
        begin(&mut cmd);
        (self.words)(&mut cmd, &self.clock);
        cmd
    }

    /// The key by which it finds its node.
    pub fn key(&self) -> &[u8] {
        self.keys.first().map_or(&[], Vec::as_slice)
    }

    /// `read_only`: a replica can answer it.
    pub fn to(&self, read_only: bool) -> To<'_> {
        if read_only { To::Replica(self.key()) } else { To::Primary(self.key()) }
    }
}
