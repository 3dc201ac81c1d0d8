//! What the kernel knows of a server's memory. The server's own figures are taken between commands: they miss what a call
//! takes and gives back.

use std::path::PathBuf;

use super::Server;

/// What to write into `clear_refs`, as proc(5) has it.
const REFERENCED: &str = "1";
const HIGHEST: &str = "5";

/// How many bytes of its memory the server touches meanwhile, in whole pages.
pub fn touched(server: &Server, body: impl FnOnce()) -> u64 {
    clear(server, REFERENCED);
    body();
    sum(server, "smaps", "Referenced:")
}

/// How many bytes the server's resident memory rises at most meanwhile. Memory that the allocator has kept does not show:
/// use a server that has done little before.
pub fn highest_rise(server: &Server, body: impl FnOnce()) -> u64 {
    clear(server, HIGHEST);
    let before = sum(server, "status", "VmRSS:");
    body();
    sum(server, "status", "VmHWM:").saturating_sub(before)
}

fn clear(server: &Server, what: &str) {
    let path = file(server, "clear_refs");
    std::fs::write(&path, what).unwrap_or_else(|error| panic!("{}, of Linux: {error}", path.display()));
}

/// The sum of the lines that begin so, in bytes.
fn sum(server: &Server, name: &str, field: &str) -> u64 {
    let path = file(server, name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}, of Linux: {error}", path.display()));
    let kilobytes = text.lines().filter_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB"));
    kilobytes.map(|number| number.parse::<u64>().expect("a number") * 1024).sum()
}

fn file(server: &Server, name: &str) -> PathBuf {
    format!("/proc/{}/{name}", server.pid()).into()
}
