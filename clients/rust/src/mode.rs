//! The three ways to call a server, and what they need.

use std::sync::LazyLock;

use redis::Script;

/// Made of functions/ in the project's repository; a test holds them to it.
pub(crate) const LIBRARY: &str = concat!(
    include_str!("../functions/library.head.lua"),
    include_str!("../functions/core.lua"),
    include_str!("../functions/library.tail.lua"),
);
pub(crate) const SCRIPT: &str = concat!(
    include_str!("../functions/script.head.lua"),
    include_str!("../functions/core.lua"),
    include_str!("../functions/script.tail.lua"),
);

/// The name under which the server keeps the script.
pub(crate) static SCRIPT_SHA: LazyLock<String> = LazyLock::new(|| Script::new(SCRIPT).get_hash().to_owned());

/// How the server is called. The answers are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// The best that the server has, in the order of the others. Found out at the first call and kept; found out again
    /// when it is gone, after a reconnection, and once a minute without delaying a call.
    #[default]
    Auto,
    /// The module's commands: `RL.SLIDING key …`. The server spends a fraction of the time of the other two.
    Module,
    /// The function library: `FCALL rl_sliding 1 key …`. Redis 7 or later, Valkey. The library is loaded if it is missing.
    Functions,
    /// The script: `EVALSHA … 1 key sliding …`. Any server from Redis 6.2 on.
    Script,
}

impl Mode {
    /// As it is kept in an atomic integer, and back.
    pub(crate) fn index(self) -> u8 {
        self as u8
    }

    pub(crate) fn of(index: u8) -> Self {
        let found = [Self::Module, Self::Functions, Self::Script].into_iter().find(|mode| mode.index() == index);
        found.unwrap_or(Self::Auto)
    }
}
