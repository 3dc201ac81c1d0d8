//! The sessions that the README and the pages of docs/ show are real: typed in by hand, they give what stands there. And
//! the links of the pages lead somewhere.
//!
//! A page's fenced blocks with a prompt in them are one session, on a server of its own whose clock stands at [`START`].
//! Two kinds of line are for the test as much as for the reader: `# 10 seconds later` between two commands (or
//! `1 millisecond`) moves the clock, and `$ redis-cli -3` at the top of a block makes it speak RESP3.
//!
//! Valkey 9.1 looks at the clock once a millisecond and counts the microseconds between by itself, so what RL.THROTTLE
//! replies is shown where a millisecond more or less makes no difference.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use redis::Value;

use super::{START, frozen};
use crate::support::server::error_line;
use crate::support::{Engine, Options, Server, root};
use crate::tests;

tests![
    the_sessions_of_the_pages_are_real,
    the_headers_of_http_are_made_of_the_sessions_numbers,
    every_command_has_a_page_that_tells_what_the_server_tells,
    the_links_of_the_pages_lead_somewhere,
];

const PROMPT: &str = "127.0.0.1:6379> ";

/// README.md and every page in the folders of docs that show sessions.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    for folder in ["docs", "docs/commands"] {
        let entries = std::fs::read_dir(root().join(folder)).expect("a folder of pages");
        pages.extend(entries.map(|entry| entry.expect("a page").path()));
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

fn the_sessions_of_the_pages_are_real(engine: &Engine) {
    let mut calls = 0;
    let mut wrong = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("a page");
        let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).filter(|block| block.contains(PROMPT)).collect();
        if !blocks.is_empty() {
            calls += play(engine, &page, &blocks, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(calls >= 60, "{calls} calls: where have the sessions gone?");
}

/// Types in what the blocks of a page show, and compares. Answers how many commands that were.
fn play(engine: &Engine, page: &Path, blocks: &[&str], wrong: &mut Vec<String>) -> usize {
    let options = Options { frozen_at: Some(START), default_storage: true, ..Options::default() };
    let server = Server::start(engine, &options);
    let mut resp2 = server.client();
    resp2.run::<()>(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    let mut resp3 = server.client_resp3();
    let mut now = START;
    let mut calls = 0;
    for block in blocks {
        let client = if block.contains("\n$ redis-cli -3\n") { &mut resp3 } else { &mut resp2 };
        let mut lines = block.lines().skip(1).peekable(); // The first is the language.
        while let Some(line) = lines.next() {
            if let Some(wait) = later(line) {
                now += wait;
                server.set_time(now);
                continue;
            }
            let Some(command) = line.strip_prefix(PROMPT) else {
                assert!(line.starts_with("$ redis-cli"), "{}: what is this? {line}", page.display());
                continue;
            };
            let words: Vec<&str> = command.split(' ').collect();
            let mut expected = String::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with(PROMPT) && later(line).is_none()) {
                expected.push_str(line);
                expected.push('\n');
            }
            let shown = match client.try_run::<Value>(&words) {
                Ok(Value::BulkString(text)) if words[0] == "INFO" => String::from_utf8_lossy(&text).replace('\r', ""),
                Ok(value) => shown(&value, 0),
                Err(error) => format!("(error) {}\n", error_line(&error)),
            };
            if shown != expected {
                wrong.push(format!(
                    "{}: {command}\n---- the page:\n{expected}---- the server:\n{shown}",
                    page.display()
                ));
            }
            calls += 1;
        }
    }
    calls
}

/// The milliseconds of `# 10 seconds later`.
fn later(line: &str) -> Option<i64> {
    let (number, unit) = line.strip_prefix("# ")?.strip_suffix(" later")?.split_once(' ')?;
    let unit = match unit.trim_end_matches('s') {
        "second" => 1000,
        "millisecond" => 1,
        _ => return None,
    };
    Some(number.parse::<i64>().ok()? * unit)
}

/// A reply as redis-cli shows it, every line but the first moved to the right.
fn shown(value: &Value, indent: usize) -> String {
    match value {
        Value::Nil => "(nil)\n".to_owned(),
        Value::Okay => "OK\n".to_owned(),
        Value::Int(integer) => format!("(integer) {integer}\n"),
        Value::SimpleString(text) => format!("{text}\n"),
        Value::BulkString(bytes) => format!("\"{}\"\n", bytes.escape_ascii().to_string().replace("\\'", "'")),
        Value::Array(values) if values.is_empty() => "(empty array)\n".to_owned(),
        Value::Array(values) => listed(values.len(), indent, ')', values.iter().map(|value| (String::new(), value))),
        Value::Map(pairs) => {
            let pairs = pairs.iter().map(|(name, value)| (format!("{} => ", shown(name, 0).trim_end()), value));
            listed(pairs.len(), indent, '#', pairs)
        }
        other => panic!("no session shows such a reply: {other:?}"),
    }
}

/// Numbered entries, the numbers set right.
fn listed<'a>(length: usize, indent: usize, mark: char, entries: impl Iterator<Item = (String, &'a Value)>) -> String {
    let width = length.to_string().len();
    let inner = indent + width + 2;
    let lines = entries.enumerate().map(|(index, (name, value))| {
        let before = if index == 0 { 0 } else { indent };
        format!("{:before$}{:>width$}{mark} {name}{}", "", index + 1, shown(value, inner))
    });
    lines.collect()
}

/// Each reply with FULL on the page, which the test above has proven, beside the HTTP response that follows from it.
fn the_headers_of_http_are_made_of_the_sessions_numbers(_engine: &Engine) {
    let page = std::fs::read_to_string(root().join("docs/HTTP.md")).expect("the page");
    let mut replies: Vec<HashMap<&str, i64>> = Vec::new();
    for line in page.lines() {
        let Some((name, value)) = line.split_once(" => (integer) ") else { continue };
        let (place, name) = name.split_once("# ").expect("a number and a name");
        if place == "1" {
            replies.push(HashMap::new());
        }
        let reply = replies.last_mut().expect("a first field");
        reply.insert(name.trim_matches('"'), value.parse().expect("an integer"));
    }
    let expected: Vec<String> = replies.iter().map(response).collect();
    let shown: Vec<&str> =
        page.split("```http\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert_eq!(shown, expected);
    assert_eq!(replies.iter().map(|reply| reply["allowed"]).collect::<Vec<_>>(), [1, 0], "one of each");
}

/// What the table of docs/HTTP.md makes of a reply.
fn response(reply: &HashMap<&str, i64>) -> String {
    let seconds = |field: &str| (reply[field] + 999) / 1000;
    let (status, wait) = match reply["allowed"] {
        1 => ("200 OK".to_owned(), seconds("reset-after-ms")),
        _ => {
            let wait = seconds("retry-after-ms");
            (format!("429 Too Many Requests\nRetry-After: {wait}"), wait)
        }
    };
    let (limit, remaining) = (reply["limit"], reply["remaining"]);
    let lines = [
        format!("HTTP/1.1 {status}"),
        format!("RateLimit-Policy: \"default\";q={limit};w={}", seconds("window-ms")),
        format!("RateLimit: \"default\";r={remaining};t={wait}"),
        format!("X-RateLimit-Limit: {limit}"),
        format!("X-RateLimit-Remaining: {remaining}"),
        format!("X-RateLimit-Reset: {}\n", seconds("reset-after-ms")),
    ];
    lines.join("\n")
}

/// The page of a command has the summary's facts: since when, how much time, how to call it.
fn every_command_has_a_page_that_tells_what_the_server_tells(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let mut commands: Vec<String> = client.run(&["COMMAND", "LIST", "FILTERBY", "MODULE", "rl"]);
    commands.sort();
    assert_eq!(commands, ["rl.fixed", "rl.peek", "rl.reset", "rl.sliding", "rl.throttle"]);
    let index = std::fs::read_to_string(root().join("docs/commands/README.md")).expect("the index");
    for command in commands {
        let page = std::fs::read_to_string(root().join(format!("docs/commands/{command}.md"))).expect("a page");
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let docs: Vec<Value> = client.run(&["COMMAND", "DOCS", &command]);
        let Some(Value::Array(docs)) = docs.get(1) else { panic!("{command}: {docs:?}") };
        let field = |name: &str| {
            let place = docs.iter().position(|word| *word == Value::BulkString(name.into())).expect("a field");
            redis::from_redis_value::<String>(docs[place + 1].clone()).expect("text")
        };
        for told in [format!("since** {}", field("since")), format!("complexity** {}", field("complexity"))] {
            assert!(page.contains(&told), "{command}: the page lacks: {told}");
        }
        assert!(index.contains(&format!("({command}.md)")), "the index lacks {command}");
    }
}

/// Each link from one page to another names a file that exists and, behind a `#`, a heading in it.
fn the_links_of_the_pages_lead_somewhere(_engine: &Engine) {
    let mut pages = pages();
    pages.extend(["CONTRIBUTING.md", "docker/README.md"].map(|page| root().join(page)));
    let mut links = 0;
    let mut broken = Vec::new();
    for page in &pages {
        let text = std::fs::read_to_string(page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("https://") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { page.parent().expect("a folder").join(path) };
            let found = if heading.is_empty() { target.exists() } else { anchors(&target).contains(heading) };
            if !found {
                broken.push(format!("{}: {link}", page.display()));
            }
            links += 1;
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(links >= 60, "{links} links: where have they gone?");
}

/// The names by which a link reaches the headings of a page, as GitHub makes them.
fn anchors(page: &Path) -> HashSet<String> {
    let text = std::fs::read_to_string(page).unwrap_or_default();
    let headings = text.lines().filter_map(|line| Some(line.strip_prefix('#')?.trim_start_matches('#').trim_start()));
    let kept = |letter: char| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    };
    headings.map(|heading| heading.to_lowercase().chars().filter_map(kept).collect()).collect()
}
