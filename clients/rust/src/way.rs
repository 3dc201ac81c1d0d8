//! The three ways to ask a server, and how to tell that one is not there.

use std::sync::LazyLock;

use redis::{RedisError, Script, ServerErrorKind};

/// Made of functions/rl.lua in the project's repository; a test holds them to it.
pub(crate) const LIBRARY: &str = include_str!("../functions/rl.library.lua");
pub(crate) const SCRIPT: &str = include_str!("../functions/rl.script.lua");

/// The name under which the server keeps the script.
pub(crate) static SCRIPT_SHA: LazyLock<String> = LazyLock::new(|| Script::new(SCRIPT).get_hash().to_owned());

/// How the server is asked. The answers are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// The module's commands: `RL.SLIDING key …`. The server spends a fraction of the time of the other two.
    Module,
    /// The function library: `FCALL rl_sliding 1 key …`. Redis 7 or later, Valkey.
    Functions,
    /// The script: `EVALSHA … 1 key sliding …`. Any server from Redis 6.2 on.
    Script,
}

impl Way {
    /// Whether the error says that this way is not there, and so that nothing was done.
    pub(crate) fn is_missing(self, error: &RedisError) -> bool {
        match self {
            Self::Module => is_unknown_command(error),
            Self::Functions => is_unknown_command(error) || is_function_not_found(error),
            Self::Script => error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript),
        }
    }
}

pub(crate) fn is_unknown_command(error: &RedisError) -> bool {
    begins(error, "unknown command")
}

pub(crate) fn is_function_not_found(error: &RedisError) -> bool {
    begins(error, "function not found")
}

/// Whether a user of the ACL may not do this. A server says so only of commands that it has.
pub(crate) fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoPerm)
}

/// Whether a key is on its way to another node, and the call has to be asked again.
pub(crate) fn is_try_again(error: &RedisError) -> bool {
    error.code() == Some("TRYAGAIN")
}

fn begins(error: &RedisError, words: &str) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("ERR") && detail.get(..words.len()).is_some_and(|start| start.eq_ignore_ascii_case(words))
}
