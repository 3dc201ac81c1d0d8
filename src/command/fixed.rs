//! `RL.FIXED key windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [FORCE] [FULL | EACH]`: a counter a window.

use super::algorithm::Algorithm;
use super::args::{self, Kind, Place, Tail};
use crate::metrics::{FIXED, Outcomes};
use crate::server::{Args, Error};
use crate::state::Fixed;

impl Algorithm for Fixed {
    const NAME: &'static str = "FIXED";

    fn outcomes() -> &'static Outcomes {
        &FIXED
    }

    #[inline(always)]
    fn parse(words: &mut Args<'_>, place: Place) -> Result<(Self, Tail), Error> {
        let (quotas, options) = args::windows_and_options(words, place, Kind::Fixed)?;
        Ok((Self { demand: options.of(quotas), anchored: options.anchored }, options.tail))
    }
}
