//! `RL.FIXED`: one counter per window.

use super::args::{self, Host, Options};
use super::rule::{Decide, Rule};
use crate::limit::{Micros, Window};
use crate::metrics::Outcomes;
use crate::server::{Access, Args, Call, Command, Context, EntryPoint, Error, Keys, Mode};
use crate::state::{CounterKeys, Counters, Fixed, Suffix};

impl Rule for Fixed {
    const SYNTAX: &'static str =
        "FIXED windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [FORCE] [FULL | EACH]";
    const COMMAND: Command = Command {
        name: c"rl.fixed",
        entry: EntryPoint::to::<Decide<Self>>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        keys: Keys::First,
        arity: -4,
        summary: c"Counts a request in the current window of windowSec seconds and admits it if the count is within the limit.",
        complexity: c"O(W) with W the windows given.",
        since: c"0.1.0",
    };

    type State<'a, M: Mode> = Counters<'a, M>;

    fn outcomes() -> &'static Outcomes {
        static OUTCOMES: Outcomes = Outcomes::new();
        &OUTCOMES
    }

    #[inline(always)] // See `Rule`.
    fn parse(words: &mut Args<'_>, host: Host) -> Result<(Self, Options), Error> {
        let (demand, options) = args::quotas_and_options(&Self::GRAMMAR, words, host)?;
        Ok((Self { demand, anchored: options.anchored }, options))
    }

    #[inline(always)] // See `Rule`.
    fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<Counters<'a, M>, Error> {
        Fixed::read(self, ctx, call, now)
    }

    fn forces(&self) -> bool {
        self.demand.force
    }

    fn counters<'k>(&self, key: &'k [u8], now: Micros) -> Option<CounterKeys<'k>> {
        Some(Fixed::counters(self, key, now))
    }

    fn suffixes(window: Window, now: Micros) -> impl Iterator<Item = Suffix> + Clone {
        Fixed::suffixes(window, now).into_iter()
    }
}
