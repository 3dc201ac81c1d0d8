//! `RL.FIXED key windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [FORCE] [FULL | EACH]`: one counter per window.

use std::ffi::CStr;

use super::args::{self, Grammar, Options, Place, Request, is};
use super::rule::{Decide, Rule};
use super::words::{ANCHORED, COST, DETAIL, FORCE, KEY, QUOTAS};
use crate::limit::{Micros, Window};
use crate::metrics::Outcomes;
use crate::server::{Access, Args, Argument, Call, Command, Context, EntryPoint, Error, Keys, Mode};
use crate::state::{CounterKeys, Counters, Fixed, Suffix};

const SYNTAX: &CStr = c"ERR syntax error: expected windowSec limit, ANCHORED, COST n, FORCE, FULL or EACH";

impl Rule for Fixed {
    const NAME: &'static str = "FIXED";
    const WORDS: Argument = Argument::block(c"fixed", &[Argument::word(c"FIXED"), QUOTAS, ANCHORED, COST, FORCE]);
    const GRAMMAR: Grammar = Grammar { syntax: SYNTAX, peek_syntax: SYNTAX, takes_each: true };
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
        arguments: &[KEY, QUOTAS, ANCHORED, COST, FORCE, DETAIL],
    };

    type State<'a, M: Mode> = Counters<'a, M>;

    fn outcomes() -> &'static Outcomes {
        static OUTCOMES: Outcomes = Outcomes::new();
        &OUTCOMES
    }

    #[inline(always)] // See `Rule`.
    fn parse(words: &mut Args<'_>, place: Place) -> Result<(Self, Options), Error> {
        let mut anchored = false;
        let Request { demand, options, .. } = args::quotas_and_options(&Self::GRAMMAR, words, place, |word| {
            let is_new = is(word, "ANCHORED") && !anchored;
            anchored |= is_new;
            is_new
        })?;
        Ok((Self { demand, anchored }, options))
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
