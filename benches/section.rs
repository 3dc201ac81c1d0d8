//! Sections of docs/BENCHMARK.md.

use std::io::Write;
use std::process::{Command, Stdio};

/// Puts the section of this name, which `make COMMAND` writes, into the page.
pub fn put(name: &str, command: &str, text: &str) {
    let mut script = Command::new(super::support::root().join("scripts/page-section.sh"));
    script.args([name, command, "docs/BENCHMARK.md"]).current_dir(super::support::root()).stdin(Stdio::piped());
    let mut script = script.spawn().expect("scripts/page-section.sh");
    script.stdin.take().expect("its input").write_all(text.as_bytes()).expect("a section that is taken");
    assert!(script.wait().expect("its end").success(), "scripts/page-section.sh failed");
}
