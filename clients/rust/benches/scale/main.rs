//! What a server, a cluster and blocks take, and what is lost when something fails. `make bench-scale` runs all of it in ten
//! minutes and writes the tables of docs/SCALE.md; the names of sections run these alone.
//!
//! What is measured is processor time of the servers and counts, so that a machine that is busy elsewhere changes little.
//! Nothing is asserted but what must hold everywhere: no window of blocks over its limit.

#[path = "../../tests/live/support.rs"]
#[allow(dead_code)]
mod support;

mod blocks;
mod cluster;
mod commands;
mod failures;
mod load;
mod partition;
mod savings;
mod service;

use std::fmt::Write;
use std::path::PathBuf;

/// The engines whose commands are measured, where they are installed (`make engines`).
const ENGINES: [&str; 2] = ["redis-8.2", "valkey-9.1"];
const SECTIONS: [&str; 9] =
    ["commands", "savings", "growth", "cluster", "service", "blocks", "failover", "slot", "partition"];

fn main() {
    // `cargo bench` adds a word of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", ref work @ ..] => return runtime.block_on(blocks::worker(work)),
        ["engine", name] => return print!("{}", runtime.block_on(commands::run(name))),
        _ => {}
    }
    let chosen = if words.is_empty() { SECTIONS.map(str::to_owned).to_vec() } else { words };
    for section in chosen {
        eprintln!("measuring: {section}");
        let table = match &*section {
            "commands" => each_engine(),
            "savings" => runtime.block_on(savings::run()),
            "growth" => runtime.block_on(savings::growth()),
            "cluster" => runtime.block_on(cluster::run()),
            "service" => runtime.block_on(service::run()),
            "blocks" => runtime.block_on(blocks::run()),
            "failover" => runtime.block_on(failures::failover()),
            "slot" => runtime.block_on(cluster::slot()),
            "partition" => runtime.block_on(partition::run()),
            other => {
                eprintln!("there is no section {other}: {}", SECTIONS.join(", "));
                std::process::exit(2);
            }
        };
        println!("{table}");
        write_section(&section, &table);
    }
}

/// In a process of its own each, which takes its server from the environment.
fn each_engine() -> String {
    let home = std::env::var("XDG_CACHE_HOME")
        .map_or_else(|_| PathBuf::from(std::env::var("HOME").unwrap_or_default()).join(".cache"), PathBuf::from);
    let engines = std::env::var("REDIS_RL_ENGINES").map_or_else(|_| home.join("redis-rl/engines"), PathBuf::from);
    let mut text = String::new();
    for name in ENGINES {
        let program = engines.join(name).join("server");
        if !program.exists() {
            writeln!(text, "{name} is not installed here: `make engines ENGINES={name}` fetches it.\n").unwrap();
            continue;
        }
        let mut process = std::process::Command::new(std::env::current_exe().unwrap());
        let output = process.args(["engine", name]).env("REDIS_SERVER", program).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        text += &String::from_utf8(output.stdout).unwrap();
    }
    text
}

/// Puts the table between the marks of its section.
fn write_section(section: &str, table: &str) {
    let path = support::root().join("docs/SCALE.md");
    let page = std::fs::read_to_string(&path).expect("docs/SCALE.md");
    let (begin, end) = (format!("<!-- {section}: written by make bench-scale -->\n"), "<!-- end -->");
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no mark of {section} in docs/SCALE.md"));
    let (_, after) = rest.split_once(end).expect("the end of a section");
    std::fs::write(&path, format!("{before}{begin}{}\n{end}{after}", table.trim_end())).unwrap();
}
