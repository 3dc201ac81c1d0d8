//! Valgrind's memcheck on a live server: its findings in code of the module.

use std::process::Command;
use std::time::{Duration, Instant};

use super::support::driver::Driver;
use super::support::log::fill_log;
use super::support::server::Module;
use super::support::{Engine, Options, Server};

const CALLS: u64 = 10_000;
const START: i64 = 1_800_000_000_000;

/// With the C library's allocator memcheck sees every block; jemalloc hides them.
fn plain_allocator(engine: &Engine) -> bool {
    let output = engine.program.as_ref().and_then(|program| Command::new(program).arg("--version").output().ok());
    output.is_some_and(|output| String::from_utf8_lossy(&output.stdout).contains("malloc=libc"))
}

/// Every record with a frame of the module anywhere in its stack is counted, but for those of [`kept_by_command_info`]. These must be there:
/// they prove that frames of the module are seen.
pub fn run(seed: u64, findings: &mut Vec<String>) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return println!("memcheck is left out: valgrind is not here");
    }
    let engines: Vec<Engine> = Engine::all().into_iter().filter(|engine| engine.program.is_some()).collect();
    let Some(engine) = engines.iter().find(|engine| plain_allocator(engine)) else {
        return println!("memcheck is left out: no server with the C library's allocator (malloc=libc) is here");
    };

    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.xml");
    let library = super::support::module();
    // A server that shuts down closes the libraries of its modules first. Preloaded, the library stays where it is: memcheck
    // sees what its statics hold, and the names of its functions.
    let through = format!(
        "LD_PRELOAD=\"$LD_PRELOAD:{}\" exec valgrind --trace-children=yes --leak-check=full --num-callers=40 \
         --xml=yes --xml-file='{}' \"$@\"",
        library.display(),
        report.display()
    );
    // The server keeps slow calls in strings with only an interior pointer, which memcheck reports as possibly lost.
    let options =
        Options { frozen_at: Some(START), through: Some(through), module: Module::None, ..Options::default() };
    let mut server = Server::start(engine, &options.with(&["--slowlog-log-slower-than", "-1"]));
    let mut client = server.client();
    client.run::<redis::Value>(&["MODULE", "LOAD", &library.display().to_string()]);
    let mut driver = Driver::new(&server, START, seed, 4);
    driver.run(CALLS);
    driver.clear();
    fill_log(&mut client, "k", START - 70_000, 20_000, 1);
    fill_log(&mut client, "k", START, 3, 1);
    fill_log(&mut client, "all", START - 70_000, 5_000, 1);
    for _ in 0..12 {
        client.sliding_call("k");
        client.sliding_call("all");
    }
    driver.clear();
    drop(driver);
    // Valgrind reports leaks when the server exits normally.
    let _ = client.try_run::<redis::Value>(&["SHUTDOWN", "NOSAVE"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while server.is_running() {
        assert!(Instant::now() < deadline, "the server does not end");
        std::thread::sleep(Duration::from_millis(20));
    }

    let xml = std::fs::read_to_string(&report).expect("valgrind's report");
    assert!(xml.contains("</valgrindoutput>"), "valgrind has not finished its report");
    let errors: Vec<&str> = xml.split("<error>").skip(1).collect();
    let name = library.file_name().expect("a file's name").to_string_lossy();
    let (known, ours): (Vec<&str>, Vec<&str>) =
        errors.iter().filter(|error| error.contains(&*name)).partition(|error| kept_by_command_info(error));
    assert!(!known.is_empty(), "a run that does not see what COMMAND INFO keeps sees nothing");
    findings.extend(ours.iter().map(|error| format!("memcheck: {error}")));
    println!(
        "memcheck on {}: {} findings, {} records without the module",
        super::shared::told(engine),
        ours.len(),
        errors.len() - ours.len() - known.len()
    );
}

/// Whether a record is a string that the server keeps for COMMAND INFO, which the module calls at its load.
fn kept_by_command_info(error: &str) -> bool {
    let has = |function: &str| error.contains(&format!("<fn>{function}</fn>"));
    error.contains("<kind>Leak_PossiblyLost</kind>") && has("commandInfoCommand") && has("RedisModule_OnLoad")
}

impl super::Client {
    fn sliding_call(&mut self, key: &str) {
        self.run::<redis::Value>(&["RL.SLIDING", key, "60", "5"]);
    }
}
