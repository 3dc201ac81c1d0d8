//! What stands against unloading the module.
//!
//! Most servers keep pointers to the commands of a module that has gone, and crash on them later: in rules of the ACL, in
//! what a client has queued in MULTI, and in what each client has called last. So the module looks for them in `ACL LIST`
//! and `CLIENT LIST`, and does not go while there are any. Where it can't look, it does not go either.

use super::context::Context;

/// Why the module, which has declared these commands, cannot be unloaded without harm, if so.
pub(super) fn reason_to_stay(ctx: &Context, ours: &[String]) -> Option<String> {
    let Some(clients) = ctx.lines(c"CLIENT", c"LIST") else {
        return Some("the list of clients cannot be read".to_owned());
    };
    if !is_asked_to_go(&clients) {
        return None; // Valkey 9 unloads all modules when it ends.
    }
    let Some(rules) = ctx.lines(c"ACL", c"LIST") else {
        return Some("the rules of the ACL cannot be read".to_owned());
    };
    if let Some(command) = named_in(&rules, ours) {
        return Some(format!("a rule of the ACL names {command}, and has to be changed first"));
    }
    let (client, why) = in_use_by(&clients, ours)?;
    Some(format!("client {client} {why}; its connection has to be closed first (CLIENT KILL ID {client})"))
}

/// The first of our commands that one of these lines of `ACL LIST` names by its own name.
///
/// Servers before Valkey 9 do not look there when they unload a module, and fall over the rule afterwards.
fn named_in(lines: &[Vec<u8>], ours: &[String]) -> Option<String> {
    lines.iter().find_map(|line| {
        // Behind the word "user" and the name, which can look like a rule.
        let mut words = line.split(|&byte| byte == b' ').skip(2);
        words.find_map(|word| ours.iter().find(|name| is_rule_for(word, name.as_bytes())).cloned())
    })
}

/// The first client in these lines of `CLIENT LIST` that may make use of a command of ours, by its number, and how.
///
/// What each client called last is kept, too: all servers show it in this very list, and some go on with it.
fn in_use_by(lines: &[Vec<u8>], ours: &[String]) -> Option<(String, String)> {
    lines.iter().find_map(|line| {
        let why = match field(line, b"cmd=") {
            _ if has_queued(line) => "has commands queued in MULTI".to_owned(),
            called => format!("has called {}", ours.iter().find(|name| called.eq_ignore_ascii_case(name.as_bytes()))?),
        };
        Some((String::from_utf8_lossy(field(line, b"id=")).into_owned(), why))
    })
}

/// Whether any of the clients in these lines of `CLIENT LIST` may be the one that unloads the module.
fn is_asked_to_go(lines: &[Vec<u8>]) -> bool {
    lines.iter().any(|line| field(line, b"cmd=") == b"module|unload" || has_queued(line))
}

fn has_queued(line: &[u8]) -> bool {
    !matches!(field(line, b"multi="), b"" | b"-1" | b"0")
}

/// What stands behind a name in a line of `CLIENT LIST`.
fn field<'a>(line: &'a [u8], name: &[u8]) -> &'a [u8] {
    line.split(|&byte| byte == b' ').find_map(|word| word.strip_prefix(name)).unwrap_or_default()
}

/// Whether a word of a line is `+name`, `-name`, or one of these with a subcommand; in brackets or not.
fn is_rule_for(word: &[u8], name: &[u8]) -> bool {
    let word = word.strip_prefix(b"(").unwrap_or(word);
    let rule = word.strip_prefix(b"+").or_else(|| word.strip_prefix(b"-"));
    rule.and_then(|rule| rule.split_at_checked(name.len())).is_some_and(|(rule, rest)| {
        rule.eq_ignore_ascii_case(name) && (rest.is_empty() || rest.starts_with(b"|") || rest.starts_with(b")"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_for_a_command_names_it_and_nothing_more() {
        for word in ["+rl.fixed", "-rl.fixed", "(+rl.fixed", "-RL.Fixed)", "+rl.fixed|sub"] {
            assert!(is_rule_for(word.as_bytes(), b"rl.fixed"), "{word}");
        }
        for word in ["~rl.fixed", "rl.fixed", "+rl.fixed2", "+rl.fix", "+@ratelimit", "", "+", "%R~+rl.fixed"] {
            assert!(!is_rule_for(word.as_bytes(), b"rl.fixed"), "{word}");
        }
    }

    #[test]
    fn a_line_of_client_list_tells_what_a_client_is_about() {
        let line = |fields: &str| format!("id=7 addr=127.0.0.1:1 name=cmd=rl.fixed {fields} user=default").into_bytes();
        assert_eq!(field(&line("multi=-1 cmd=ping"), b"cmd="), b"ping");
        assert!(has_queued(&line("multi=3 cmd=get")));
        for fields in ["multi=-1 cmd=get", "multi=0 cmd=multi", "cmd=get"] {
            assert!(!has_queued(&line(fields)), "{fields}");
        }
    }
}
