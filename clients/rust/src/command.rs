//! The commands by their names in each of the three modes.

/// A command by its three names, and what is to be known of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Command {
    /// The module's command, the function, and the script's first word.
    pub names: (&'static str, &'static str, &'static str),
    /// Whether it takes several keys, whose number the module's command has before them.
    pub several: bool,
    /// Whether it changes nothing, so that a replica can answer it.
    pub reads: bool,
    /// Whether it decides on a request.
    pub decides: bool,
    /// Whether it is asked for everything that a decision holds.
    pub in_full: bool,
    /// Whether it can be sent again after its reply was lost: it counts nothing twice.
    pub repeatable: bool,
}

impl Command {
    pub const SLIDING: Self = Self::deciding("RL.SLIDING", "rl_sliding", "sliding");
    pub const FIXED: Self = Self::deciding("RL.FIXED", "rl_fixed", "fixed");
    pub const THROTTLE: Self = Self::deciding("RL.THROTTLE", "rl_throttle", "throttle");
    // A holder that asks again renews its lease.
    pub const ACQUIRE: Self = Self { repeatable: true, ..Self::deciding("RL.ACQUIRE", "rl_acquire", "acquire") };
    pub const ALL: Self = Self { several: true, ..Self::deciding("RL.ALL", "rl_all", "all") };
    /// ALL with the short reply.
    pub const ADMIT: Self = Self { in_full: false, ..Self::ALL };
    pub const PEEK: Self =
        Self { reads: true, in_full: true, repeatable: true, ..Self::of("RL.PEEK", "rl_peek", "peek") };
    pub const REFUND: Self = Self::of("RL.REFUND", "rl_refund", "refund");
    pub const RELEASE: Self = Self { repeatable: true, ..Self::of("RL.RELEASE", "rl_release", "release") };
    pub const RESET: Self = Self { repeatable: true, ..Self::of("RL.RESET", "rl_reset", "reset") };
    pub const SETTLE: Self = Self { repeatable: true, ..Self::of("RL.SETTLE", "rl_settle", "settle") };

    const fn of(module: &'static str, function: &'static str, script: &'static str) -> Self {
        let names = (module, function, script);
        Self { names, several: false, reads: false, decides: false, in_full: false, repeatable: false }
    }

    const fn deciding(module: &'static str, function: &'static str, script: &'static str) -> Self {
        Self { decides: true, in_full: true, ..Self::of(module, function, script) }
    }

    /// What stands before a rule of this command in others.
    pub fn word(self) -> &'static str {
        self.names.0.strip_prefix("RL.").unwrap_or(self.names.0)
    }
}
