//! One call, in the words of each of the three modes.

use redis::Cmd;

use crate::calendar::Clock;
use crate::connection::To;
use crate::mode::{Mode, SCRIPT, SCRIPT_SHA};

/// A command with its keys and the words behind them.
pub(crate) struct Call<'a> {
    /// The module's command, the function, and the script's first word.
    pub command: (&'static str, &'static str, &'static str),
    /// Whether the module's command has the number of keys before them.
    pub counted: bool,
    /// Whether it changes nothing, so that a replica can answer it.
    pub reads: bool,
    /// Whether it decides on a request.
    pub decides: bool,
    /// Whether it can be sent again after its reply was lost: it counts nothing twice.
    pub repeatable: bool,
    /// By which its words work out the calendars, if there can be any.
    pub clock: Option<&'a Clock>,
    pub keys: &'a [&'a [u8]],
    pub words: &'a (dyn Fn(&mut Cmd) + Send + Sync),
}

impl Call<'_> {
    /// The command. `read_only`: in the form that only reads, which replicas answer.
    pub fn cmd(&self, mode: Mode, read_only: bool) -> Cmd {
        let (command, function, word) = self.command;
        let mut cmd = self.room();
        match mode {
            Mode::Module | Mode::Auto => {
                cmd.arg(command);
                if self.counted {
                    cmd.arg(self.keys.len());
                }
                cmd.arg(self.keys);
            }
            Mode::Functions => {
                let fcall = if read_only { "FCALL_RO" } else { "FCALL" };
                cmd.arg(fcall).arg(function).arg(self.keys.len()).arg(self.keys);
            }
            Mode::Script => {
                let eval = if read_only { "EVALSHA_RO" } else { "EVALSHA" };
                cmd.arg(eval).arg(SCRIPT_SHA.as_str()).arg(self.keys.len()).arg(self.keys).arg(word);
            }
        }
        (self.words)(&mut cmd);
        cmd
    }

    /// An empty command with room for a few words a key, so that it seldom grows.
    fn room(&self) -> Cmd {
        let bytes: usize = self.keys.iter().map(|key| key.len() + 40).sum();
        Cmd::with_capacity(6 + 7 * self.keys.len(), bytes + 32)
    }

    /// The script sent whole, for a server that does not have it.
    pub fn whole_script(&self, read_only: bool) -> Cmd {
        let mut cmd = Cmd::new();
        let eval = if read_only { "EVAL_RO" } else { "EVAL" };
        cmd.arg(eval).arg(SCRIPT).arg(self.keys.len()).arg(self.keys).arg(self.command.2);
        (self.words)(&mut cmd);
        cmd
    }

    /// The key by which it finds its node.
    pub fn key(&self) -> &[u8] {
        self.keys.first().copied().unwrap_or_default()
    }

    pub fn to(&self) -> To<'_> {
        if self.reads { To::Replica(self.key()) } else { To::Primary(self.key()) }
    }

    pub fn to_primary(&self) -> To<'_> {
        To::Primary(self.key())
    }
}
