//! What the live tests and the benchmark share: the engines of this machine, servers, their clocks.

pub mod call;
pub mod clock;
#[allow(dead_code)] // The benchmark measures one server.
pub mod cluster;
pub mod compact;
#[allow(dead_code)] // The tests'.
pub mod draw;
pub mod driver;
pub mod engine;
pub mod grammar;
#[allow(dead_code)] // The tests'.
pub mod holds;
pub mod log;
#[allow(dead_code)] // The tests'.
pub mod memory;
#[allow(dead_code)] // The tests'.
pub mod model;
pub mod server;
pub mod wire;

pub use clock::Clock;
#[allow(unused_imports)]
pub use cluster::Cluster;
pub use engine::Engine;
pub use server::{Client, Options, Server};

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The module under test. `RL_MODULE` names another build.
pub fn module() -> PathBuf {
    let path = std::env::var_os("RL_MODULE").map_or_else(|| target().join("release/libredis_rl.so"), PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `make build` first", path.display());
    path
}

/// What the figures of a page were measured on.
#[allow(dead_code)] // The benchmark's and the soak's.
pub fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{}, {cores} cores", model.unwrap_or("unknown"))
}

/// The load of the last minute, for the reports. Above the number of cores, the machine has other work.
#[allow(dead_code)] // The same.
pub fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// How long tests wait for a server at most. Nothing depends on it but the time that a failure takes: on a machine with much
/// other work a server can get no processor for minutes.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Waits until a condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "this did not happen in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
