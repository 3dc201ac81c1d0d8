//! One call of a command: what it asks for, in the words of each of the three modes, and how far it is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use redis::Cmd;
use smallvec::SmallVec;

use crate::command::Command;
use crate::connection::{Progress, To};
use crate::error::Error;
use crate::mode::{SCRIPT, SCRIPT_SHA};
use crate::rule::{Rule, Use};

/// A list that needs no allocation for one item: most calls are about one key.
pub(crate) type Few<T> = SmallVec<[T; 1]>;

/// A command with its keys, a rule for each, and the words behind them.
#[derive(Debug)]
pub(crate) struct Call {
    pub command: Command,
    /// With the limiter's prefix.
    pub keys: Few<Vec<u8>>,
    pub rules: Few<Rule>,
    words: Vec<Vec<u8>>,
    /// By which calendars are worked out, in unix milliseconds.
    time: AtomicU64,
    /// Whether it belongs to the period of that time, and to no later one.
    stays: bool,
    pub progress: Progress,
}

impl Call {
    /// A call of this command, about keys with a rule for each, or without rules.
    pub fn new(command: Command, keys: Few<Vec<u8>>, rules: Few<Rule>) -> Self {
        let (words, time, progress) = (Vec::new(), AtomicU64::new(now()), Progress::default());
        Self { command, keys, rules, words, time, stays: false, progress }
    }

    /// A call by this command, or by that of the one rule.
    pub fn request(
        rules: impl IntoIterator<Item = (Vec<u8>, Rule)>,
        command: Option<Command>,
        wanted: Use,
    ) -> Result<Self, Error> {
        let given = rules.into_iter();
        let most = given.size_hint().0;
        let (mut keys, mut rules) = (Few::with_capacity(most), Few::with_capacity(most));
        for (key, rule) in given {
            keys.push(key);
            rules.push(rule);
        }
        if !(1..=64).contains(&keys.len()) {
            return Err(Error::Invalid(format!("a call takes 1 to 64 keys, not {}", keys.len())));
        }
        rules.iter().try_for_each(|rule| rule.check(wanted))?;
        let command = command.or(rules.first().map(Rule::command)).unwrap_or(Command::ALL);
        Ok(Self::new(command, keys, rules))
    }

    /// With these words behind the rules.
    pub fn with<W: AsRef<[u8]>>(self, words: impl IntoIterator<Item = W>) -> Self {
        Self { words: words.into_iter().map(|word| word.as_ref().to_vec()).collect(), ..self }
    }

    /// In the periods of the calendar of this time.
    pub fn at(self, time: u64) -> Self {
        Self { time: time.into(), ..self }
    }

    /// The same once more, for what was granted. What is reserved in a period of the calendar stays there.
    pub fn again(&self) -> Self {
        let stays = self.rules.iter().any(|rule| rule.is_reserved() && rule.ends(self.time()).is_some());
        let again = Self::new(self.command, self.keys.clone(), self.rules.clone());
        if stays { Self { stays, ..again.at(self.time()) } } else { again }
    }

    pub fn items(&self) -> impl Iterator<Item = (&Vec<u8>, &Rule)> {
        self.keys.iter().zip(&self.rules)
    }

    pub fn time(&self) -> u64 {
        self.time.load(Relaxed)
    }

    /// Goes on to the earliest end of its periods, as the server's clock is there already. Answers whether there is one.
    pub fn goes_on(&self) -> bool {
        let end = self.rules.iter().filter_map(|rule| rule.ends(self.time())).min().filter(|_| !self.stays);
        end.inspect(|end| self.time.store(*end, Relaxed)).is_some()
    }

    /// Whether it asks for a turn.
    pub fn is_turn(&self) -> bool {
        self.command.decides && !self.words.is_empty()
    }

    /// Whether it can be sent again after its reply was lost: it counts nothing twice.
    pub fn is_repeatable(&self) -> bool {
        self.command.repeatable || self.command.decides && self.rules.iter().any(Rule::is_reserved)
    }

    /// By the module's command.
    pub fn by_module(&self) -> Cmd {
        self.cmd(|cmd| {
            cmd.arg(self.command.names.0);
            if self.command.several {
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
        // A rule's own command needs no word for it.
        let named = self.command.several || !self.command.decides;
        for rule in &self.rules {
            rule.write(&mut cmd, self.time(), named);
        }
        cmd.arg(&*self.words);
        if self.command.in_full {
            match &self.rules[..] {
                [] => {}
                [rule] if !self.command.several && rule.wants_each() => drop(cmd.arg("EACH")),
                _ => drop(cmd.arg("FULL")),
            }
        }
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

/// Milliseconds since the epoch.
pub(crate) fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time by the clock of this process.
fn now() -> u64 {
    #[cfg(test)]
    if let Some(time) = NOW.get() {
        return time;
    }
    unix_millis(SystemTime::now())
}

#[cfg(test)]
thread_local! {
    /// What the clock of this thread shows, for tests.
    pub(crate) static NOW: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}
