//! What rules of several kinds have in common: a cost, a hold, a name.

use std::sync::Arc;

use redis::Cmd;

use crate::error::Error;
use crate::rates::Seconds;

/// The options of a rule. A kind that has no method for one of these leaves it as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Common {
    /// Units that a request weighs, where they are said.
    pub cost: Option<u64>,
    pub hold: Option<Reserved>,
    pub force: bool,
    /// How it is called in HTTP headers.
    pub name: Option<Arc<str>>,
    pub unit: Option<Arc<str>>,
}

/// Whether units are reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// They are to be.
    Wanted,
    /// By this holder, for a lease.
    By { holder: Arc<str>, millis: u64 },
}

impl Common {
    /// `cost`: as it is sent.
    pub fn write(&self, cmd: &mut Cmd, cost: Option<u64>) {
        if let Some(cost) = cost {
            cmd.arg("COST").arg(cost);
        }
        if let Some(Reserved::By { holder, millis }) = &self.hold {
            cmd.arg("HOLD").arg(&**holder).arg(Seconds(*millis));
        }
        if self.force {
            cmd.arg("FORCE");
        }
    }
}

/// A name or unit, if it can be a string of a structured field.
pub(crate) fn printable(what: &str, text: &str) -> Result<Option<Arc<str>>, Error> {
    if text.is_empty() || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(Error::Invalid(format!("a {what} must be printable ASCII, at least one character, not {text:?}")));
    }
    Ok(Some(text.into()))
}
