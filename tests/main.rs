//! Live tests: real servers, real sockets, every engine that this machine has.
//!
//! A test is a function of an engine and runs once on each. An engine that is not here shows as one ignored line.
//! `cargo test --test live -- sliding` runs what has "sliding" in its name.

mod live;
mod support;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use support::Engine;

/// A test with its name.
pub type Test = (&'static str, fn(&Engine));

/// The tests of a file, by name. A function that is left out is dead code, which does not compile.
macro_rules! tests {
    ($($test:ident),+ $(,)?) => {
        pub const TESTS: &[crate::Test] = &[$((stringify!($test), $test)),+];
    };
}
use tests;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Servers are processes of their own and mostly wait; a few at a time keep a small machine busy.
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
            for &(name, test) in *tests {
                let both = live::holds_for_both_storages(file, name);
                for (subject, storage) in [(engine.clone(), ""), (engine.compact(), "compact::")] {
                    if subject.compact && !both {
                        continue;
                    }
                    let trial = Trial::test(format!("{}::{file}::{storage}{name}", engine.name), move || {
                        test(&subject);
                        Ok(())
                    });
                    trials.push(trial.with_ignored_flag(!live::applies(engine, name)));
                }
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
