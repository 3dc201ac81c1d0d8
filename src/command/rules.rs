//! The list of rules, and one of them as RL.PEEK, RL.REFUND and RL.ALL take it.
//!
//! A rule is added here by its name. Error lines, COMMAND DOCS and INFO are made from the list.

use super::args::Options;
use super::grammar::{Grammar, Host, Word, kept};
use super::rule::Rule;
use crate::limit::{Cost, Decision, Detail, Micros, Refund, Request, Time};
use crate::metrics::Outcomes;
use crate::server::{Args, Call, Command, Context, Error, Mode, Str};
use crate::state::{Budget, Fixed, Lease, Log, Plan, Sliding, State, Stored, Throttle};

macro_rules! rules {
    ($($rule:ident),+ $(,)?) => {
        pub enum AnyRule {
            $($rule($rule)),+
        }

        /// What it has read of its keys.
        pub enum AnyState<'a, M: Mode> {
            $($rule(<$rule as Stored>::State<'a, M>)),+
        }

        /// All rules, as the tables of commands and counters know them.
        pub const RULES: &[Row] = &[$(Row::of::<$rule>()),+];

        $(impl From<$rule> for AnyRule {
            fn from(rule: $rule) -> Self {
                Self::$rule(rule)
            }
        })+

        impl AnyRule {
            /// Reads the name of a rule, its words, and the options after them.
            pub fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error> {
                let name = words.next().ok_or(Error::WrongArity)?;
                $(if $rule::GRAMMAR.is_named(name) && const { Row::of::<$rule>() }.is_taken(host) {
                    return $rule::parse(words, host, options).map(Self::$rule);
                })+
                Err(bad_name(host))
            }
        }
    };
}

rules!(Sliding, Fixed, Throttle, Lease);

/// The same for each rule, or for what each has read.
macro_rules! each {
    ($any:expr, $one:ident => $result:expr) => {
        match $any {
            Self::Sliding($one) => $result,
            Self::Fixed($one) => $result,
            Self::Throttle($one) => $result,
            Self::Lease($one) => $result,
        }
    };
}

impl AnyRule {
    /// Whether a request is counted even if it does not fit.
    pub fn forces(&self) -> bool {
        self.request().is_some_and(|request| request.force)
    }

    pub fn grammar(&self) -> Grammar {
        each!(self, rule => grammar_of(rule))
    }

    pub fn reply_short(&self, decision: &Decision, ctx: &Context) {
        each!(self, rule => rule.reply_short(decision, ctx));
    }
}

fn grammar_of<R: Rule>(_: &R) -> Grammar {
    R::GRAMMAR
}

impl Stored for AnyRule {
    type State<'a, M: Mode> = AnyState<'a, M>;

    fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<AnyState<'a, M>, Error> {
        Ok(match self {
            Self::Sliding(rule) => AnyState::Sliding(rule.read(ctx, call, now)?),
            Self::Fixed(rule) => AnyState::Fixed(rule.read(ctx, call, now)?),
            Self::Throttle(rule) => AnyState::Throttle(rule.read(ctx, call, now)?),
            Self::Lease(rule) => AnyState::Lease(rule.read(ctx, call, now)?),
        })
    }

    fn request(&self) -> Option<&Request> {
        each!(self, rule => rule.request())
    }

    fn charging(&self, request: Request) -> Option<Self> {
        each!(self, rule => rule.charging(request).map(Self::from))
    }

    fn givable(&self, units: Cost, ctx: &Context, call: Call<'_>) -> (Cost, i64) {
        each!(self, rule => rule.givable(units, ctx, call))
    }
}

impl<'a, M: Mode> State<'a, M> for AnyState<'a, M> {
    fn decide(&self, detail: Detail, may_count: bool, budget: &Budget) -> Result<Decision, Error> {
        each!(self, state => state.decide(detail, may_count, budget))
    }

    fn plan(self, decision: &Decision, budget: &Budget, plan: &mut Plan<'a, M>) -> Result<(), Error> {
        each!(self, state => state.plan(decision, budget, plan))
    }

    fn check_room(&self, decision: &Decision, budget: &Budget) -> Result<(), Error> {
        each!(self, state => state.check_room(decision, budget))
    }

    fn leave_out(&mut self, request: &Request, at: Time) -> Result<(), Error> {
        each!(self, state => state.leave_out(request, at))
    }

    fn set_missing_expiry(self, plan: &mut Plan<'a, M>) {
        each!(self, state => state.set_missing_expiry(plan));
    }

    fn refund(self, at: Option<Time>, budget: &Budget, plan: &mut Plan<'a, M>) -> Result<Refund, Error> {
        each!(self, state => state.refund(at, budget, plan))
    }
}

impl<'a, M: Mode> AnyState<'a, M> {
    /// The log of a sliding window.
    pub fn log(&self) -> Option<&Log<'a, M>> {
        if let Self::Sliding(log) = self { Some(log) } else { None }
    }
}

#[derive(Clone, Copy)]
pub struct Row {
    pub grammar: Grammar,
    pub command: Command,
    pub server_may_have_it: bool,
    pub outcomes: fn() -> &'static Outcomes,
    pub refundable: bool,
    pub holdable: bool,
}

impl Row {
    const fn of<R: Rule>() -> Self {
        Self {
            grammar: R::GRAMMAR,
            command: R::COMMAND,
            server_may_have_it: R::SERVER_MAY_HAVE_IT,
            outcomes: R::outcomes,
            refundable: R::REFUNDABLE,
            holdable: R::GRAMMAR.takes(Word::Hold),
        }
    }

    pub const fn is_taken(&self, host: Host) -> bool {
        match host {
            Host::Refund => self.refundable,
            Host::Settle => self.holdable,
            Host::Named | Host::Peek | Host::All => true,
        }
    }
}

pub fn is_rule(word: Str<'_>) -> bool {
    RULES.iter().any(|row| row.grammar.is_named(word))
}

/// The reply to a word that is not the name of a rule.
#[cold]
fn bad_name(host: Host) -> Error {
    let names: Vec<_> = RULES.iter().filter(|row| row.is_taken(host)).map(|row| row.grammar.name).collect();
    kept(match names.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("ERR rule must be {} or {last}", others.join(", ")),
        names => format!("ERR rule must be {}", names.concat()),
    })
}
