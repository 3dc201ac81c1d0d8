//! The sessions in the README and on the pages of docs/ are real: typed in by hand, they give the replies shown.
//!
//! A page's fenced blocks with commands in them, behind redis-cli's prompt or the shell's (`$ redis-cli …`), are one session, on
//! a server of its own whose clock stands at [`START`].
//! Two kinds of line are for the test as much as for the reader: `# 10 seconds later` between two commands (or
//! `1 millisecond`) moves the clock, and `$ redis-cli -3` at the top of a block makes it speak RESP3.
//!
//! Valkey 9.1 looks at the clock once a millisecond and counts the microseconds between by itself, so what RL.THROTTLE
//! replies is shown where a millisecond more or less makes no difference.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};

use redis::Value;

use super::{START, frozen};
use crate::support::server::error_line;
use crate::support::{Engine, Options, Server, root};
use crate::tests;

tests![
    the_sessions_of_the_pages_are_real if |engine| !engine.counts_microseconds(),
    the_headers_of_http_are_made_of_the_sessions_numbers,
    every_command_has_a_page_that_tells_what_the_server_tells,
];

const PROMPT: &str = "127.0.0.1:6379> ";
/// The README starts its server on a port that is free where a server of the distribution runs.
const PROMPTS: [&str; 2] = [PROMPT, "127.0.0.1:6380> "];

/// README.md, ARCHITECTURE.md and every page in the folders of docs that show sessions.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
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
        let typed = |block: &&str| block.lines().any(|line| typed(line).is_some());
        let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).filter(typed).collect();
        if !blocks.is_empty() {
            calls += play(engine, &page, &blocks, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(calls >= 150, "{calls} calls: where have the sessions gone?");
}

/// The words of a command that a line shows, typed into redis-cli or into a shell.
fn typed(line: &str) -> Option<Vec<String>> {
    let (line, _comment) = line.split_once("  #").unwrap_or((line, ""));
    if let Some(command) = PROMPTS.iter().find_map(|prompt| line.strip_prefix(prompt)) {
        return Some(command.split(' ').map(str::to_owned).collect());
    }
    let command = line.strip_prefix("$ redis-cli ")?;
    let command = command.strip_prefix("-p 6380").unwrap_or(command).trim();
    let words =
        |words: &str| -> Vec<String> { words.split(' ').map(|word| word.trim_matches('\'').to_owned()).collect() };
    match command.strip_prefix("-x ").and_then(|command| command.split_once(" < ")) {
        Some((command, file)) => {
            let last = std::fs::read_to_string(root().join(file)).expect(file);
            Some(words(command).into_iter().chain([last]).collect())
        }
        None if command.is_empty() || command.starts_with('-') => None,
        None => Some(words(command)),
    }
}

/// Types in the sessions of a page, and compares the replies. Returns how many commands these were.
fn play(engine: &Engine, page: &Path, blocks: &[&str], wrong: &mut Vec<String>) -> usize {
    let options = Options { frozen_at: Some(START), default_storage: true, ..Options::default() };
    let server = Server::start(engine, &options);
    let mut resp2 = server.client();
    let mut resp3 = server.client_resp3();
    let mut now = START;
    let mut hash = String::new();
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
            let mut expected = String::new();
            let ends = |line: &&str| line.starts_with("$ ") || typed(line).is_some() || later(line).is_some();
            while let Some(line) = lines.next_if(|line| !ends(line)) {
                expected.push_str(line);
                expected.push('\n');
            }
            let Some(mut words) = typed(line) else {
                assert!(line.starts_with("$ "), "{}: what is this? {line}", page.display());
                continue;
            };
            // The hash that SCRIPT LOAD replies: the page does not show it, as it changes with the script.
            words.iter_mut().filter(|word| *word == "HASH").for_each(|word| word.clone_from(&hash));
            let shown = match client.try_run::<Value>(&words) {
                Ok(Value::BulkString(text)) if words[0] == "INFO" => String::from_utf8_lossy(&text).replace('\r', ""),
                Ok(Value::BulkString(text)) if words[0] == "SCRIPT" => {
                    hash = String::from_utf8_lossy(&text).into_owned();
                    expected.clone()
                }
                Ok(value) => shown(&value, 0),
                Err(error) => format!("(error) {}\n", error_line(&error)),
            };
            if shown != expected {
                wrong.push(format!("{}: {line}\n---- the page:\n{expected}---- the server:\n{shown}", page.display()));
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

/// Numbered entries, with aligned numbers.
fn listed<'a>(length: usize, indent: usize, mark: char, entries: impl Iterator<Item = (String, &'a Value)>) -> String {
    let width = length.to_string().len();
    let inner = indent + width + 2;
    let lines = entries.enumerate().map(|(index, (name, value))| {
        let before = if index == 0 { 0 } else { indent };
        format!("{:before$}{:>width$}{mark} {name}{}", "", index + 1, shown(value, inner))
    });
    lines.collect()
}

/// A quota as a reply on a page has it: the fields of its map.
type Fields<'a> = HashMap<&'a str, i64>;

/// Every HTTP response on the page is made of the reply before it, which the test above has proven, as the page's rules say.
/// The names of the policies, and what they count, are the page's own: they are read from its `RateLimit-Policy`.
fn the_headers_of_http_are_made_of_the_sessions_numbers(_engine: &Engine) {
    let page = std::fs::read_to_string(root().join("docs/HTTP.md")).expect("the page");
    let mut waiting: VecDeque<Vec<Fields<'_>>> = VecDeque::new();
    let mut statuses = HashSet::new();
    let mut responses = 0;
    for block in page.split("```").skip(1).step_by(2) {
        if let Some(shown) = block.strip_prefix("http\n") {
            let quotas = waiting.pop_front().expect("a reply for each response");
            assert_eq!(shown, response(&quotas, shown));
            statuses.insert(shown.lines().next().expect("a status"));
            responses += 1;
        } else if block.contains(PROMPT) {
            assert!(waiting.is_empty(), "a reply without a response before:{block}");
            waiting.extend(block.split(PROMPT).skip(1).map(maps).filter(|maps| !maps.is_empty()));
        }
    }
    assert!(waiting.is_empty(), "{waiting:?}");
    assert!(responses >= 6 && statuses.len() == 2, "{responses} responses with {statuses:?}");
}

/// The maps in a reply as redis-cli shows it over RESP3.
fn maps(reply: &str) -> Vec<Fields<'_>> {
    let mut maps: Vec<Fields<'_>> = Vec::new();
    for line in reply.lines() {
        let Some((name, value)) = line.split_once(" => (integer) ") else { continue };
        let (place, name) = name.rsplit_once("# ").expect("a number and a name");
        if place.split_whitespace().last() == Some("1") {
            maps.push(HashMap::new());
        }
        let map = maps.last_mut().expect("a first field");
        map.insert(name.trim_matches('"'), value.parse().expect("an integer"));
    }
    maps
}

/// What the rules of docs/HTTP.md make of the quotas in a reply. From the response that is shown only the names of the
/// policies and the parameters that say what they count are taken.
fn response(quotas: &[Fields<'_>], shown: &str) -> String {
    let seconds = |millis: i64| (millis + 999) / 1000;
    let capped = |units: i64| units.min(999_999_999_999_999);
    let listed = shown.lines().find_map(|line| line.strip_prefix("RateLimit-Policy: ")).expect("policies");
    let policies: Vec<Vec<&str>> = listed.split(", ").map(|item| item.split(';').collect()).collect();
    assert_eq!(policies.len(), quotas.len(), "a policy for each quota");

    let denies = |quota: &Fields<'_>| quota["allowed"] == 0;
    let denied = quotas.iter().any(denies);
    let mut lines = vec![if denied { "HTTP/1.1 429 Too Many Requests" } else { "HTTP/1.1 200 OK" }.to_owned()];
    let waits: Vec<i64> = quotas.iter().filter(|quota| denies(quota)).map(|quota| quota["retry-after-ms"]).collect();
    let retry_after = if waits.contains(&-1) { None } else { waits.iter().max().map(|wait| seconds(*wait)) };
    if let Some(retry_after) = retry_after {
        lines.push(format!("Retry-After: {retry_after}"));
    }
    let policy = |(quota, words): (&Fields<'_>, &Vec<&str>)| {
        let unit = words.iter().find(|word| word.contains("qu=") || word.contains("-unit="));
        let unit = unit.map_or(String::new(), |unit| format!(";{unit}"));
        // The fields cannot describe a lease, nor a window with a fraction of a second.
        let window = match quota["window-ms"] {
            window if window % 1000 == 0 && !unit.contains("concurrent-requests") => format!(";w={}", window / 1000),
            _ => String::new(),
        };
        format!("{};q={}{unit}{window}", words[0], capped(quota["limit"]))
    };
    let limit = |(quota, words): (&Fields<'_>, &Vec<&str>)| {
        let wait = match seconds(quota["next-after-ms"]) {
            next if next > 0 && retry_after.is_none_or(|retry_after| next <= retry_after) => format!(";t={next}"),
            _ => String::new(),
        };
        format!("{};r={}{wait}", words[0], capped(quota["remaining"]))
    };
    let pairs = || quotas.iter().zip(&policies);
    lines.push(format!("RateLimit-Policy: {}", pairs().map(policy).collect::<Vec<_>>().join(", ")));
    lines.push(format!("RateLimit: {}", pairs().map(limit).collect::<Vec<_>>().join(", ")));
    if denied && shown.contains("application/problem+json") {
        let violated: Vec<&str> = pairs().filter(|(quota, _)| denies(quota)).map(|(_, words)| words[0]).collect();
        lines.extend([
            "Content-Type: application/problem+json".to_owned(),
            String::new(),
            "{".to_owned(),
            "  \"type\": \"https://iana.org/assignments/http-problem-types#quota-exceeded\",".to_owned(),
            "  \"title\": \"Request cannot be satisfied as assigned quota has been exceeded\",".to_owned(),
            "  \"status\": 429,".to_owned(),
            format!("  \"violated-policies\": [{}]", violated.join(", ")),
            "}".to_owned(),
        ]);
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The page of a command has the summary's facts: since when, how much time, how to call it.
fn every_command_has_a_page_that_tells_what_the_server_tells(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let mut commands: Vec<String> = client.run(&["COMMAND", "LIST", "FILTERBY", "MODULE", "rl"]);
    commands.sort();
    let all = ["acquire", "all", "fixed", "peek", "refund", "release", "reset", "settle", "sliding", "throttle", "top"];
    assert_eq!(commands, all.map(|name| format!("rl.{name}")));
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
