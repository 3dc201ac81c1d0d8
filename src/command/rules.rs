//! The list of rules, and one of them as RL.PEEK, RL.REFUND and RL.ALL take it.
//!
//! A rule is added here by its name. Error lines, COMMAND DOCS and INFO are made from the list.

use std::ffi::CString;
use std::sync::LazyLock;

use super::args::{Grammar, Host, Options, takes};
use super::rule::Rule;
use crate::limit::{Decision, Detail, Micros, Refund, Time};
use crate::metrics::Outcomes;
use crate::server::{Args, Call, Command, Context, Error, Mode, ReadOnly, Str};
use crate::state::{Budget, CounterSet, Ended, Fixed, Lease, Log, OpenKeys, Plan, Sliding, State, Stored, Throttle};

macro_rules! rules {
    ($($rule:ident),+ $(,)?) => {
        /// One of the rules.
        pub enum AnyRule {
            $($rule($rule)),+
        }

        /// What it has read of its keys.
        pub enum AnyState<'a, M: Mode> {
            $($rule(<$rule as Stored>::State<'a, M>)),+
        }

        /// All rules, as the tables of commands and counters know them.
        pub const RULES: &[Row] = &[$(Row::of::<$rule>()),+];

        impl AnyRule {
            /// Reads the name of a rule, its words, and the options after them.
            pub fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error> {
                let name = words.next().ok_or(Error::WrongArity)?.as_bytes();
                $(if $rule::GRAMMAR.is_named(name) && const { Row::of::<$rule>() }.is_taken(host) {
                    return $rule::parse(words, host, options).map(Self::$rule);
                })+
                Err(line(None, host))
            }

            /// See [`Rule::forces`].
            pub fn forces(&self) -> bool {
                match self {
                    $(Self::$rule(rule) => Rule::forces(rule)),+
                }
            }

            pub fn grammar(&self) -> Grammar {
                match self {
                    $(Self::$rule(_) => $rule::GRAMMAR),+
                }
            }

            /// See [`Rule::reply_short`].
            pub fn reply_short(&self) -> fn(&Decision, &Context) {
                match self {
                    $(Self::$rule(_) => $rule::reply_short),+
                }
            }
        }

        impl Stored for AnyRule {
            type State<'a, M: Mode> = AnyState<'a, M>;

            fn read<'a, M: Mode>(
                &'a self,
                ctx: &'a Context,
                call: Call<'_>,
                now: Micros,
            ) -> Result<AnyState<'a, M>, Error> {
                match self {
                    $(Self::$rule(rule) => rule.read(ctx, call, now).map(AnyState::$rule)),+
                }
            }

            fn uses_key(&self) -> bool {
                match self {
                    $(Self::$rule(rule) => rule.uses_key()),+
                }
            }

            fn counters<'k>(&self, key: &'k [u8], now: Micros) -> Option<CounterSet<'k>> {
                match self {
                    $(Self::$rule(rule) => rule.counters(key, now)),+
                }
            }

            fn ended(&self, ctx: &Context, call: Call<'_>, now: Micros, budget: &Budget) -> Result<Vec<Ended>, Error> {
                match self {
                    $(Self::$rule(rule) => rule.ended(ctx, call, now, budget)),+
                }
            }

            fn give_back(
                &self,
                ended: Vec<Ended>,
                ctx: &mut Context,
                call: Call<'_>,
                now: Micros,
                budget: &Budget,
            ) -> Result<(), Error> {
                match self {
                    $(Self::$rule(rule) => rule.give_back(ended, ctx, call, now, budget)),+
                }
            }

            fn leave_out_ended<'a>(
                &'a self,
                state: &mut AnyState<'a, ReadOnly>,
                ctx: &Context,
                call: Call<'_>,
                budget: &Budget,
            ) -> Result<(), Error> {
                match (self, state) {
                    $((Self::$rule(rule), AnyState::$rule(state)) => rule.leave_out_ended(state, ctx, call, budget),)+
                    _ => Ok(()),
                }
            }
        }

        impl<'a, M: Mode> State<'a, M> for AnyState<'a, M> {
            fn decide(&self, detail: Detail, may_count: bool, budget: &Budget) -> Result<Decision, Error> {
                match self {
                    $(Self::$rule(state) => state.decide(detail, may_count, budget)),+
                }
            }

            fn plan(&self, decision: &Decision, budget: &Budget) -> Result<Plan, Error> {
                match self {
                    $(Self::$rule(state) => state.plan(decision, budget)),+
                }
            }

            fn check_room(&self, decision: &Decision) -> Result<(), Error> {
                match self {
                    $(Self::$rule(state) => state.check_room(decision)),+
                }
            }

            fn is_nearly_full(&self) -> bool {
                match self {
                    $(Self::$rule(state) => state.is_nearly_full()),+
                }
            }

            fn set_missing_expiry(&self) -> Plan {
                match self {
                    $(Self::$rule(state) => state.set_missing_expiry()),+
                }
            }

            fn refund(&self, at: Option<Time>, budget: &Budget) -> Result<(Refund, Plan), Error> {
                match self {
                    $(Self::$rule(state) => state.refund(at, budget)),+
                }
            }

            fn finds_hold(&self) -> Option<bool> {
                match self {
                    $(Self::$rule(state) => state.finds_hold()),+
                }
            }

            fn has_ended_holds(&self) -> bool {
                match self {
                    $(Self::$rule(state) => state.has_ended_holds()),+
                }
            }

            fn into_keys(self) -> OpenKeys<'a, M> {
                match self {
                    $(Self::$rule(state) => state.into_keys()),+
                }
            }
        }

        $(impl Counts for $rule {
            fn outcomes() -> &'static Outcomes {
                static OUTCOMES: Outcomes = Outcomes::new();
                &OUTCOMES
            }
        })+
    };
}

rules!(Sliding, Fixed, Throttle, Lease);

impl<'a, M: Mode> AnyState<'a, M> {
    /// The log of a sliding window.
    pub fn log(&self) -> Option<&Log<'a, M>> {
        if let Self::Sliding(state) = self { Some(state.state()) } else { None }
    }
}

/// A rule whose command counts what it allows and denies, for INFO.
pub trait Counts {
    fn outcomes() -> &'static Outcomes;
}

/// A row of the list.
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
    const fn of<R: Rule + Counts>() -> Self {
        Self {
            grammar: R::GRAMMAR,
            command: R::COMMAND,
            server_may_have_it: R::SERVER_MAY_HAVE_IT,
            outcomes: R::outcomes,
            refundable: R::REFUNDABLE,
            holdable: takes::<R>("[HOLD "),
        }
    }

    /// Whether a command takes it.
    pub const fn is_taken(&self, host: Host) -> bool {
        match host {
            Host::Refund => self.refundable,
            Host::Settle => self.holdable,
            Host::Own | Host::Peek | Host::All => true,
        }
    }
}

/// Whether a word is the name of a rule.
pub fn is_rule(word: Str<'_>) -> bool {
    RULES.iter().any(|row| row.grammar.is_named(word.as_bytes()))
}

/// The reply to words that a rule does not take where it is given.
pub fn bad_words(grammar: Grammar, host: Host) -> Error {
    line(Some(grammar), host)
}

/// The line about the words of a rule, or without one about a word that is not the name of a rule.
fn line(rule: Option<Grammar>, host: Host) -> Error {
    static LINES: LazyLock<Vec<(Option<Grammar>, Host, CString)>> = LazyLock::new(|| {
        let lines = |host| {
            let words = RULES.iter().map(move |row| (Some(row.grammar), row.grammar.line(host)));
            let all = words.chain([(None, names(host))]);
            all.map(move |(rule, line)| (rule, host, CString::new(line).unwrap_or_default()))
        };
        [Host::Own, Host::Peek, Host::Refund, Host::Settle, Host::All].into_iter().flat_map(lines).collect()
    });
    let line = LINES.iter().find(|(about, place, _)| *about == rule && *place == host);
    line.map_or(Error::WrongArity, |(_, _, line)| Error::Line(line))
}

fn names(host: Host) -> String {
    let names: Vec<_> = RULES.iter().filter(|row| row.is_taken(host)).map(|row| row.grammar.name()).collect();
    match names.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("ERR rule must be {} or {last}", others.join(", ")),
        names => format!("ERR rule must be {}", names.concat()),
    }
}
