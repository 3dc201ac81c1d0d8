//! `RL.ACQUIRE key limit leaseSec holder [FULL]`: so many holders at a time.

use super::algorithm::Algorithm;
use super::args::{self, Kind, Place, Tail};
use crate::metrics::{ACQUIRE, Outcomes};
use crate::server::{Args, Error};
use crate::state::Lease;

impl Algorithm for Lease {
    const NAME: &'static str = "ACQUIRE";

    fn outcomes() -> &'static Outcomes {
        &ACQUIRE
    }

    fn parse(words: &mut Args<'_>, place: Place) -> Result<(Self, Tail), Error> {
        let (Some(limit), Some(lease), Some(holder)) = (words.next(), words.next(), words.next()) else {
            return Err(Error::WrongArity);
        };
        let (limit, lease) = args::lease(limit, lease)?;
        let options = args::options(words, place, Kind::Other)?;
        Ok((Self { limit, lease, holder: holder.retain() }, options.tail))
    }
}
