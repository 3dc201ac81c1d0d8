//! Live tests: real servers, real sockets, every engine that this machine has.
//!
//! A test is a function of an engine and runs once on each. An engine that is not here shows as one ignored line.
//! `cargo test --test live -- sliding` runs what has "sliding" in its name.

mod live;
mod support;

use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use support::Engine;

/// A test, and where it runs.
pub struct Test {
    pub name: &'static str,
    pub run: fn(&Engine),
    pub storages: Storages,
    /// Whether an engine has what the test is about. If not, the test shows as ignored, not as passed.
    pub applies: fn(&Engine) -> bool,
}

/// How RL.SLIDING stores the logs of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Storages {
    /// As the test says; as sorted sets if it says nothing.
    Own,
    /// The test holds however a log is stored: it runs a second time, with compact storage.
    Both,
}

/// The tests of a file. A function that is left out is dead code, which does not compile.
///
/// - `name`: runs once on each engine.
/// - `name: both_storages`: runs a second time with compact storage.
/// - `name if predicate`: applies to some engines, those for which `fn(&Engine) -> bool` is true. It can follow
///   `: both_storages`.
macro_rules! tests {
    ($($test:ident $(: $storages:ident)? $(if $applies:expr)?),+ $(,)?) => {
        pub const TESTS: &[crate::Test] = &[$(crate::Test {
            name: stringify!($test),
            run: $test,
            storages: tests!(@storages $($storages)?),
            applies: tests!(@applies $($applies)?),
        }),+];
    };
    (@storages) => { crate::Storages::Own };
    (@storages both_storages) => { crate::Storages::Both };
    (@applies) => { |_| true };
    (@applies $applies:expr) => { $applies };
}
use tests;

/// The longest time that a test takes. Only a server that hangs needs more, of which nothing else would tell.
const LONGEST: Duration = support::PATIENCE.saturating_mul(4);

/// Ends the run where a test takes longer.
fn watch(name: &str, ended: &Receiver<()>) {
    if ended.recv_timeout(LONGEST) == Err(RecvTimeoutError::Timeout) {
        eprintln!("{name} has not ended in {} s", LONGEST.as_secs());
        std::process::exit(1);
    }
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Servers are processes of their own and usually wait; a few at a time keep a small machine busy.
    arguments.test_threads.get_or_insert_with(|| 2 * std::thread::available_parallelism().map_or(2, usize::from));

    let mut engines = Engine::all();
    if let Some(wanted) = std::env::var("ENGINES").ok().filter(|wanted| !wanted.trim().is_empty()) {
        engines.retain(|engine| wanted.split_whitespace().any(|name| name == engine.name));
    }
    let named = |there: bool| {
        let names: Vec<&str> =
            engines.iter().filter(|engine| engine.program.is_some() == there).map(|engine| &*engine.name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    println!("engines that run: {}\nengines that are skipped, not being here: {}", named(true), named(false));
    if engines.iter().all(|engine| engine.program.is_none()) {
        eprintln!("there is no such server to test on: install redis-server, or run `make engines`");
        return ExitCode::FAILURE;
    }

    let mut trials = Vec::new();
    for engine in &engines {
        if engine.program.is_none() {
            let count: usize = live::FILES.iter().map(|(_, tests)| tests.len()).sum();
            let trial = Trial::test(format!("{}: {count} tests, not proven here", engine.name), || Ok(()));
            trials.push(trial.with_ignored_flag(true));
            continue;
        }
        for (file, tests) in live::FILES {
            for test in *tests {
                for (subject, storage) in [(engine.clone(), ""), (engine.compact(), "compact::")] {
                    if subject.compact && test.storages != Storages::Both {
                        continue;
                    }
                    let name = format!("{}::{file}::{storage}{}", engine.name, test.name);
                    let trial = Trial::test(name.clone(), move || {
                        // Ends when it is dropped, also by a panic.
                        let (_running, ended) = mpsc::channel::<()>();
                        std::thread::spawn(move || watch(&name, &ended));
                        (test.run)(&subject);
                        Ok(())
                    });
                    trials.push(trial.with_ignored_flag(!(test.applies)(engine)));
                }
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
