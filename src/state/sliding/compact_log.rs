//! The log of a sliding window as a plain string: the bytes that [`compact`](super::super::compact) reads.
//!
//! A call makes one change to the string, which travels as one `SETRANGE` (two where many dead bytes lie before the footer),
//! or as one `SET` where the string is new or is replaced as a whole.

use super::super::compact::{Edit, Flaw};
use super::super::plan::{Change, Changes};
use super::super::{Budget, WRONG_TYPE};
use super::Log;
use crate::limit::Time;
use crate::server::{Error, Mode, OwnedStr};

const OTHER_VERSION: Error =
    Error::Line(c"ERR rl: the log at this key was written by a later version of the module, which alone can read it");
const DAMAGED: Error = Error::Line(c"ERR rl: the log at this key is damaged; RL.RESET removes it");
const LOG_FULL: Error = Error::Line(c"ERR rl: the log at this key is full: it holds at most 16 MiB and 2^53 - 1 units");
const OUT_OF_RANGE: Error = Error::Line(c"ERR rl: the server's clock is before 1970 or after 10889");

impl From<Flaw> for Error {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::NotALog => WRONG_TYPE,
            Flaw::OtherVersion => OTHER_VERSION,
            Flaw::Damaged => DAMAGED,
            Flaw::Full => LOG_FULL,
            Flaw::OutOfRange => OUT_OF_RANGE,
        }
    }
}

impl<M: Mode> Log<'_, M> {
    /// Takes the compaction that an edit makes from the budget. A log in which nothing counts is begun anew.
    pub(super) fn spend(&self, edit: &Option<Edit>, budget: &Budget) {
        if self.units > 0 && matches!(edit, Some(Edit::Replace(_))) {
            budget.has_compacted();
        }
    }

    /// The changes of an edit, with the expiry that the key gets.
    pub(super) fn changes(&self, edit: Option<Edit>, expiry: Option<Time>) -> Changes {
        let mut changes = Changes::new();
        match edit {
            None => {}
            Some(Edit::Write(first, second)) => {
                changes.push(Change::SetRange(first));
                if let Some(second) = second {
                    changes.push(Change::SetRange(second));
                }
            }
            // A SET without an expiry would remove the key's, so it names the one that the key has or gets.
            Some(Edit::Replace(bytes)) => {
                let (until, renewed) = (expiry.or(self.expiry()), expiry.is_some());
                changes.push(Change::Set { value: OwnedStr::new(&bytes), until, renewed, event: c"set" });
                return changes;
            }
            Some(Edit::Remove) => changes.push(Change::Unlink),
        }
        if let Some(at) = expiry {
            changes.push(Change::PexpireAt(at));
        }
        changes
    }
}
