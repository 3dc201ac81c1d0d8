//! `RL.SLIDING key windowSec limit [windowSec limit ...] [COST n] [FORCE] [FULL | EACH]`: an exact sliding window.

use super::algorithm::Algorithm;
use super::args::{self, Kind, Place, Tail};
use crate::config;
use crate::metrics::{Outcomes, SLIDING};
use crate::server::{Args, Error};
use crate::state::Sliding;

impl Algorithm for Sliding {
    const NAME: &'static str = "SLIDING";

    fn outcomes() -> &'static Outcomes {
        &SLIDING
    }

    #[inline(always)]
    fn parse(words: &mut Args<'_>, place: Place) -> Result<(Self, Tail), Error> {
        let (quotas, options) = args::windows_and_options(words, place, Kind::Sliding)?;
        let storage = config::sliding_storage(options.cost.is_some());
        Ok((Self { demand: options.of(quotas), storage }, options.tail))
    }
}
