//! What operators and clients see of the module besides its decisions.

use std::collections::HashMap;

use redis::Value;

use super::{Reply, START, eventually, frozen, split};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    command_info_and_getkeys,
    command_docs_has_the_arguments,
    info_counts_decisions_and_errors,
    an_unknown_load_argument_is_refused,
    a_server_without_the_plain_commands_is_refused,
    an_unload_is_refused,
    an_unload_is_refused_beside_calls_that_were_sent_ahead,
    a_server_that_ends_unloads_the_module_in_peace,
    pipelines_transactions_scripts_and_functions,
    resp3_has_the_same_reply,
    names_are_read_in_any_case,
    slots_can_be_migrated_with_the_module_loaded,
    memory_stays_flat_under_load,
    the_server_finds_every_key,
    the_server_shows_how_they_are_called,
    transactions_scripts_and_functions_take_them,
    info_counts_them,
];

/// What COMMAND INFO says of a command.
struct Declared {
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    categories: &'static [&'static str],
    /// The flags of its keys.
    key: &'static [&'static str],
    /// A call of it, without its name, and the keys in that.
    call: &'static str,
    keys: &'static [&'static str],
}

const READ: &[&str] = &["RO", "access"];
const UPDATE: &[&str] = &["RW", "access", "update"];
/// As ZREM.
const REMOVE_ELEMENTS: &[&str] = &["RW", "delete"];
const REMOVE: &[&str] = &["RM", "delete"];
const WRITES: &[&str] = &["write", "denyoom", "module", "fast"];
/// Also where memory is short.
const WRITES_ALWAYS: &[&str] = &["write", "module", "fast"];
const WRITES_KEYS_MOVE: &[&str] = &["write", "denyoom", "module", "fast", "movablekeys"];
const WRITE_CATEGORIES: &[&str] = &["@write", "@fast", "@ratelimit"];

const DECLARED: [Declared; 12] = [
    Declared {
        name: "rl.sliding",
        arity: -4,
        flags: WRITES,
        categories: WRITE_CATEGORIES,
        key: UPDATE,
        call: "the-key 60 5",
        keys: &["the-key"],
    },
    Declared {
        name: "rl.fixed",
        arity: -4,
        flags: WRITES,
        categories: WRITE_CATEGORIES,
        key: UPDATE,
        call: "the-key 1 5 60 50 COST 2 FULL",
        keys: &["the-key"],
    },
    Declared {
        name: "rl.peek",
        arity: -5,
        flags: &["readonly", "module", "fast"],
        categories: &["@read", "@fast", "@ratelimit"],
        key: READ,
        call: "the-key SLIDING 60 5 COST 0",
        keys: &["the-key"],
    },
    Declared {
        name: "rl.refund",
        arity: -5,
        flags: WRITES_ALWAYS,
        categories: WRITE_CATEGORIES,
        key: UPDATE,
        call: "the-key SLIDING 60 5 AT 1",
        keys: &["the-key"],
    },
    Declared {
        name: "rl.settle",
        arity: -7,
        flags: WRITES_ALWAYS,
        categories: WRITE_CATEGORIES,
        key: UPDATE,
        call: "the-key SLIDING 60 5 HOLD holder 60 ACTUAL 3",
        keys: &["the-key"],
    },
    Declared {
        name: "rl.reset",
        arity: -2,
        flags: WRITES_ALWAYS,
        categories: WRITE_CATEGORIES,
        key: REMOVE,
        call: "the-key 1 60",
        keys: &["the-key"],
    },
    Declared {
        name: "rl.acquire",
        arity: -5,
        flags: WRITES,
        categories: WRITE_CATEGORIES,
        key: UPDATE,
        call: "leases 2 60 holder FULL",
        keys: &["leases"],
    },
    Declared {
        name: "rl.release",
        arity: -3,
        flags: WRITES_ALWAYS,
        categories: WRITE_CATEGORIES,
        key: REMOVE_ELEMENTS,
        call: "leases holder other",
        keys: &["leases"],
    },
    Declared {
        name: "rl.all",
        arity: -6,
        flags: WRITES_KEYS_MOVE,
        categories: WRITE_CATEGORIES,
        key: UPDATE,
        call: "3 one two three SLIDING 60 5 COST 2 FIXED 1 5 2 9 ACQUIRE 2 60 holder FULL",
        keys: &["one", "two", "three"],
    },
    Declared {
        name: "rl.throttle",
        arity: -5,
        flags: WRITES,
        categories: WRITE_CATEGORIES,
        key: UPDATE,
        call: "the-key 5 1 60 FULL",
        keys: &["the-key"],
    },
    Declared {
        name: "cl.throttle",
        arity: -5,
        flags: WRITES,
        categories: WRITE_CATEGORIES,
        key: UPDATE,
        call: "the-key 5 1 60 2",
        keys: &["the-key"],
    },
    Declared {
        name: "rl.top",
        arity: -1,
        flags: &["admin", "module", "loading", "stale"],
        categories: &["@admin", "@dangerous", "@slow"],
        key: &[],
        call: "COUNT 5 RESET",
        keys: &[],
    },
];

/// A server that also has CL.THROTTLE.
fn with_all_commands(engine: &Engine) -> (Server, Client) {
    let module_arguments = vec!["cl-throttle".to_owned(), "yes".to_owned()];
    let server = Server::start(engine, &Options { module_arguments, ..Options::default() });
    let client = server.client();
    (server, client)
}

fn words(value: &Value) -> Vec<String> {
    let mut words: Vec<String> = redis::from_redis_value(value.clone()).expect("words");
    words.sort();
    words
}

fn command_info_and_getkeys(engine: &Engine) {
    let (_server, mut client) = with_all_commands(engine);
    let sorted = |words: &[&str]| {
        let mut words: Vec<String> = words.iter().map(ToString::to_string).collect();
        words.sort();
        words
    };
    for Declared { name, arity, flags, categories, key, call, keys: expected } in DECLARED {
        let info: Vec<Vec<Value>> = client.run(&["COMMAND", "INFO", name]);
        let shown: String = redis::from_redis_value(info[0][0].clone()).unwrap();
        assert_eq!(shown, name);
        assert_eq!(info[0][1], Value::Int(arity), "{name}");
        assert_eq!(words(&info[0][2]), sorted(flags), "{name}");
        // One key, directly after the name; or a number of keys, which the legacy positions cannot describe; or none.
        let counted = flags.contains(&"movablekeys");
        assert_eq!(info[0][3..6], [i64::from(!counted && !expected.is_empty()); 3].map(Value::Int), "{name}");
        // Redis 7.0 gives the commands of modules no category at all.
        let mut categories = if engine.is_redis_7_0() { vec![] } else { categories.to_vec() };
        categories.retain(|&category| engine.has_categories_of_modules() || category != "@ratelimit");
        assert_eq!(words(&info[0][6]), sorted(&categories), "{name}");

        // So that client-side caches do not keep a reply that depends on the time.
        let tips: &[&str] = if name == "rl.peek" { &["nondeterministic_output"] } else { &[] };
        assert_eq!(words(&info[0][7]), sorted(tips), "{name}");

        let call: Vec<&str> = [name].into_iter().chain(call.split_whitespace()).collect();
        if expected.is_empty() {
            assert_eq!(flat(&info[0][8]), "", "{name}");
            let line = client.error(&[&["COMMAND", "GETKEYS"], &call[..]].concat());
            assert!(line.contains("no key arguments"), "{name}: {line}");
            continue;
        }
        let (behind_the_name, found) = ("begin_search type index spec index 1 find_keys type", flat(&info[0][8]));
        let (_, found) = found.split_once(behind_the_name).expect("where the keys begin");
        let expected_keys = if counted {
            " keynum spec keynumidx 0 firstkey 1 keystep 1"
        } else {
            " range spec lastkey 0 keystep 1 limit 0"
        };
        assert_eq!(found, expected_keys, "{name}");

        let keys: Vec<String> = client.run(&[&["COMMAND", "GETKEYS"], &call[..]].concat());
        assert_eq!(keys, expected, "{name}");
        let keys: Vec<(String, Value)> = client.run(&[&["COMMAND", "GETKEYSANDFLAGS"], &call[..]].concat());
        let keys: Vec<_> = keys.iter().map(|(name, flags)| (&name[..], words(flags))).collect();
        assert_eq!(keys, expected.iter().map(|&name| (name, sorted(key))).collect::<Vec<_>>(), "{name}");
    }
    let listed: Vec<String> = client.run(&["COMMAND", "LIST", "FILTERBY", "MODULE", "rl"]);
    assert_eq!(listed.len(), DECLARED.len(), "{listed:?}");
}

/// All words and numbers of a reply, however deep, with blanks between.
fn flat(value: &Value) -> String {
    match value {
        Value::Array(values) | Value::Set(values) => values.iter().map(flat).collect::<Vec<_>>().join(" "),
        Value::Map(pairs) => pairs.iter().map(|(name, value)| flat(name) + " " + &flat(value)).collect(),
        other => redis::from_redis_value(other.clone()).expect("a word or a number"),
    }
}

/// A list of arguments as COMMAND DOCS has it, in one line: `name:type`, the token before it, its flags after it, its
/// parts in parentheses.
fn shown(arguments: &Value) -> String {
    let arguments: Vec<HashMap<String, Value>> = redis::from_redis_value(arguments.clone()).expect("a list of maps");
    let one = |argument: &HashMap<String, Value>| {
        let text = |field: &str| {
            argument.get(field).map(|value| redis::from_redis_value::<String>(value.clone()).expect("a word"))
        };
        let token = text("token").map_or(String::new(), |token| token + " ");
        let flags = argument.get("flags").map_or(String::new(), |flags| format!(" {}", words(flags).join(" ")));
        let parts = argument.get("arguments").map_or(String::new(), |parts| format!("({})", shown(parts)));
        assert_eq!(argument.get("key_spec_index").is_some(), text("type").as_deref() == Some("key"));
        format!("{token}{}:{}{flags}{parts}", text("name").expect("a name"), text("type").expect("a type"))
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn command_docs_has_the_arguments(engine: &Engine) {
    let (_server, mut client) = with_all_commands(engine);
    let quotas = "windowSec-limit:block multiple(windowSec:double, limit:integer)";
    let (cost, force) = ("COST n:integer optional", "FORCE force:pure-token optional");
    let hold = "HOLD holder-leaseSec:block optional(holder:string, leaseSec:double), ";
    let turn = "holder-leaseSec-ms:oneof optional(HOLD holder-leaseSec:block(holder:string, leaseSec:double), WITHIN ms:integer), ";
    let within = "WITHIN ms:integer optional";
    let sliding_with = |hold: &str| format!("{quotas}, {cost}, {hold}{force}");
    let fixed_with = |hold: &str| format!("{quotas}, ANCHORED anchored:pure-token optional, {cost}, {hold}{force}");
    let (sliding, fixed) = (sliding_with(hold), fixed_with(hold));
    let rate = "max_burst:integer, count:integer, period:integer, quantity:integer optional";
    let lease = "limit:integer, leaseSec:double, holder:string";
    let full = "FULL full:pure-token optional";
    let detail = "full-each:oneof optional(FULL full:pure-token, EACH each:pure-token)";
    let rule = |name: &str, words: &str| format!("{0}:block({name} {0}:pure-token, {words})", name.to_lowercase());
    let refundable =
        [rule("SLIDING", &sliding_with("")), rule("FIXED", &fixed_with("")), rule("THROTTLE", rate)].join(", ");
    let holdable = [rule("SLIDING", &sliding), rule("FIXED", &fixed)].join(", ");
    let rules = format!("{holdable}, {}, {}", rule("THROTTLE", rate), rule("ACQUIRE", lease));
    for (command, expected) in [
        ("rl.sliding", format!("key:key, {}, {detail}", sliding_with(turn))),
        ("rl.fixed", format!("key:key, {fixed}, {detail}")),
        ("rl.throttle", format!("key:key, {rate}, {within}, {full}")),
        ("cl.throttle", format!("key:key, {rate}, {full}")),
        ("rl.acquire", format!("key:key, {lease}, {full}")),
        ("rl.release", "key:key, holder:string multiple".to_owned()),
        ("rl.all", format!("numkeys:integer, key:key multiple, rule:oneof multiple({rules}), {within}, {full}")),
        ("rl.peek", format!("key:key, rule:oneof({rules}), {within}, {detail}")),
        ("rl.refund", format!("key:key, rule:oneof({refundable}), AT ms:integer optional")),
        ("rl.settle", format!("key:key, rule:oneof({holdable}), ACTUAL actual:pure-token, n:integer")),
        ("rl.reset", "key:key, windowSec:double multiple optional, HOLD hold:pure-token optional".to_owned()),
        ("rl.top", "COUNT n:integer optional, RESET reset:pure-token optional".to_owned()),
    ] {
        let docs: HashMap<String, HashMap<String, Value>> = client.run(&["COMMAND", "DOCS", command]);
        let docs = &docs[command];
        let since = match command {
            "rl.acquire" | "rl.release" | "rl.all" | "rl.refund" | "rl.settle" | "rl.top" => "0.2.0",
            _ => "0.1.0",
        };
        for (field, holds) in [("summary", ". "), ("complexity", "O("), ("since", since), ("module", "rl")] {
            let text: String = redis::from_redis_value(docs[field].clone()).unwrap();
            assert!(format!("{text} ").contains(holds), "{command}: {field}: {text}");
        }
        assert_eq!(shown(&docs["arguments"]), expected, "{command}");
    }
}

fn info_counts_decisions_and_errors(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for _ in 0..7 {
        client.sliding("k", "60", 5);
        client.fixed("k", "60", 4);
    }
    for step in 0..6 {
        server.set_time(START + 2 * step);
        client.call::<Value>("RL.THROTTLE t 3 1 60");
    }
    for limit in 1..9 {
        client.call::<Value>(&format!("RL.PEEK k SLIDING 60 {limit}"));
    }
    client.call::<Value>("RL.SLIDING k 60 1 COST 7 FULL"); // However heavy: one decision.
    client.call::<Value>("RL.FIXED k 1 1 2 1 3 1 COST 1"); // Over however many windows.
    for holder in 1..6 {
        client.call::<Value>(&format!("RL.ACQUIRE leases 2 60 {holder}"));
    }
    assert_eq!(client.call::<i64>("RL.RELEASE leases 1 2 3"), 2); // Each of the leases counts.
    for _ in 0..3 {
        client.call::<Value>("RL.ALL 2 one two SLIDING 60 2 FIXED 60 9"); // The rules by themselves do not count.
    }
    client.call::<Value>("RL.REFUND one SLIDING 60 2 COST 2"); // However many units.
    client.call::<Value>("RL.REFUND none SLIDING 60 2"); // Even none.
    assert_eq!(client.call::<i64>("RL.RESET k 60 3600"), 2);
    assert_eq!(client.call::<i64>("RL.RESET k 60"), 0);
    for wrong in
        ["RL.SLIDING k 0 5", "RL.PEEK k NEITHER 60 5", "RL.RESET k x", "RL.THROTTLE t 0 0 0", "RL.ALL 0 k SLIDING 60 5"]
    {
        client.refused(wrong);
    }
    let expected = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("sliding_allowed", "5"),
        ("sliding_denied", "3"),
        ("fixed_allowed", "5"),
        ("fixed_denied", "3"),
        ("throttle_allowed", "4"),
        ("throttle_denied", "2"),
        ("acquire_allowed", "2"),
        ("acquire_denied", "3"),
        ("all_allowed", "2"),
        ("all_denied", "1"),
        ("peek_allowed", "3"),
        ("peek_denied", "5"),
        ("reset_keys", "2"),
        ("released_leases", "2"),
        ("refunded_calls", "2"),
        ("settled_calls", "0"),
        ("errors", "5"),
        ("panics", "0"),
    ];
    for (field, value) in expected {
        assert_eq!(client.info_field("rl", &format!("rl_{field}")), value, "{field}");
        assert_eq!(client.info_field("everything", &format!("rl_{field}")), value, "{field} in the whole of INFO");
    }
    let ordinary: String = client.run(&["INFO"]);
    assert!(!ordinary.contains("rl_version"), "the ordinary INFO stays as it was");

    let parts = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    let number = parts.iter().fold(0, |number, part| number * 100 + part.parse::<u32>().expect("a number"));
    let modules: String = client.run(&["INFO", "modules"]);
    assert!(modules.contains(&format!("module:name=rl,ver={number},")), "{modules}");
}

fn an_unknown_load_argument_is_refused(engine: &Engine) {
    let options = Options { module_arguments: vec!["speed".to_owned(), "9".to_owned()], ..Options::default() };
    let log = Server::try_start(engine, &options).err().expect("a server that does not start");
    assert!(log.contains("unknown argument 'speed'"), "{log}");
    // A server that runs stays as it was.
    let options = Options { module: Module::None, frozen_at: Some(START), ..Options::default() };
    let server = Server::start(engine, &options);
    let mut client = server.client();
    let path = crate::support::module().display().to_string();
    assert!(client.try_run::<Value>(&["MODULE", "LOAD", &path, "x"]).is_err());
    client.run::<Value>(&["MODULE", "LOAD", &path]);
    assert_eq!(client.sliding("k", "60", 5), (1, 0, 60));
}

fn a_server_without_the_plain_commands_is_refused(engine: &Engine) {
    // Such a server would drop effects silently, and replicas would diverge. The page lists the commands.
    let page = include_str!("../../docs/OPERATING.md");
    let (_, list) = page.split_once("is renamed or\ndisabled:").expect("the list of commands");
    let (list, _) = list.split_once("The server's log").expect("its end");
    let commands: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert!(["ZADD", "INCR", "COMMAND"].iter().all(|command| commands.contains(command)), "{commands:?}");
    for command in commands {
        let options = Options::default().with(&["--rename-command", command, "other"]);
        let log = Server::try_start(engine, &options).err().expect("a server that does not start");
        assert!(log.contains(&format!("does not know {command}")), "{log}");
    }
}

/// The server unloads the module by itself if a load fails (`loading.rs`) and when it ends. Anything else is refused, whether
/// the module is in use or not.
fn an_unload_is_refused(engine: &Engine) {
    let unload = ["MODULE", "UNLOAD", "rl"];
    for at_start in [true, false] {
        let module = if at_start { Module::UnderTest } else { Module::None };
        let mut server = Server::start(engine, &Options { module, ..Options::default() });
        let mut client = server.client();
        let path = crate::support::module().display().to_string();
        let mut pipeline = redis::pipe();
        if !at_start {
            pipeline.cmd("MODULE").arg("LOAD").arg(&path);
        }
        pipeline.cmd("MODULE").arg("UNLOAD").arg("rl");
        let error = pipeline.query::<Vec<Value>>(&mut client.0).expect_err("a refusal");
        assert!(error.to_string().contains("unloading module"), "{error}");
        assert!(server.log().contains("take the module out of the configuration and restart"), "{}", server.log());
        client.run::<Value>(&["CONFIG", "RESETSTAT"]);
        client.error(&unload);
        assert_eq!(client.fixed("k", "86400", 5).1, 1);
        client.error(&unload);
        client.run::<Value>(&["MULTI"]);
        client.run::<Value>(&unload);
        assert!(client.try_run::<Value>(&["EXEC"]).is_err());
        assert_eq!(client.fixed("k", "86400", 5).1, 2);
        assert!(server.is_running());
    }
}

/// Redis 8.6 and Valkey 9.1 keep pointers to the commands of calls that they have read ahead.
fn an_unload_is_refused_beside_calls_that_were_sent_ahead(engine: &Engine) {
    let (mut server, mut admin) = frozen(engine);
    let mut client = server.client();
    let mut sent = redis::cmd("BLPOP").arg("x").arg(0).get_packed_command();
    sent.extend(redis::cmd("RL.SLIDING").arg("k").arg(60).arg(5).get_packed_command());
    client.0.send_packed_command(&sent).expect("a server that reads");
    eventually("the client is blocked", || admin.info_field("clients", "blocked_clients") == "1");
    admin.error(&["MODULE", "UNLOAD", "rl"]);
    admin.run::<i64>(&["LPUSH", "x", "element"]);
    assert_eq!(
        redis::from_redis_value::<(String, String)>(client.0.recv_response().expect("a reply")).expect("a pair").1,
        "element"
    );
    assert_eq!(
        redis::from_redis_value::<Reply>(client.0.recv_response().expect("a reply")).expect("a decision"),
        (1, 0, 60)
    );

    let mut pipeline = redis::pipe();
    pipeline.cmd("PING").cmd("MODULE").arg("UNLOAD").arg("rl");
    (0..3).for_each(|_| {
        pipeline.cmd("RL.FIXED").arg("k2").arg(60).arg(5);
    });
    client.0.send_packed_command(&pipeline.get_packed_pipeline()).expect("a server that reads");
    let mut replies: Vec<_> = (0..5).map(|_| client.0.recv_response().expect("a reply")).collect();
    assert!(matches!(replies[1], Value::ServerError(_)), "{replies:?}");
    assert_eq!(redis::from_redis_value::<Reply>(replies.remove(4)).expect("a decision"), (1, 3, 60));
    assert!(server.is_running());
}

/// Valkey 9 unloads its modules when it ends, and says which would not go.
fn a_server_that_ends_unloads_the_module_in_peace(engine: &Engine) {
    let (mut server, mut client) = frozen(engine);
    assert_eq!(client.sliding("k", "60", 5), (1, 0, 60));
    let mut queueing = server.client();
    queueing.run::<Value>(&["MULTI"]);
    queueing.run::<Value>(&["RL.FIXED", "k", "60", "5"]);
    let _ = server.client().try_run::<Value>(&["SHUTDOWN", "NOSAVE"]);
    eventually("the server has ended", || !server.is_running());
    assert!(!server.log().contains("not unloaded"));
    assert_eq!(server.log().contains("Module rl unloaded"), engine.name.starts_with("valkey-9"), "{}", server.log());
}

fn pipelines_transactions_scripts_and_functions(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let mut pipeline = redis::pipe();
    for _ in 0..1000 {
        pipeline.cmd("RL.SLIDING").arg("pipe").arg(60).arg(700);
    }
    let replies: Vec<Reply> = pipeline.query(&mut client.0).expect("replies");
    assert_eq!(replies.iter().map(|reply| reply.0).sum::<i64>(), 700);

    client.run::<Value>(&["MULTI"]);
    for _ in 0..3 {
        client.run::<Value>(&["RL.SLIDING", "multi", "60", "2"]);
        client.run::<Value>(&["RL.FIXED", "multi", "60", "2"]);
    }
    let replies: Vec<Reply> = client.run(&["EXEC"]);
    assert_eq!(replies, [(1, 0, 60), (1, 1, 60), (1, 1, 60), (1, 2, 60), (0, 2, 60), (0, 3, 60)]);

    let script = "return {redis.call('RL.SLIDING', KEYS[1], ARGV[1], 1), redis.call('RL.FIXED', KEYS[1], ARGV[1], 1)}";
    let replies: Vec<Reply> = client.run(&["EVAL", script, "1", "lua", "60"]);
    assert_eq!(replies, [(1, 0, 60), (1, 1, 60)]);
    let line = client.error(&["EVAL", script, "1", "lua", "0"]);
    assert!(line.contains("windowSec must be"), "{line}");

    let library = "#!lua name=limits\n
        redis.register_function('ask', function(keys, args) return redis.call('RL.FIXED', keys[1], 60, 5) end)";
    client.run::<Value>(&["FUNCTION", "LOAD", library]);
    assert_eq!(client.run::<Reply>(&["FCALL", "ask", "1", "function"]), (1, 1, 60));
}

fn resp3_has_the_same_reply(engine: &Engine) {
    let (server, _client) = frozen(engine);
    let mut client = server.client_resp3();
    let reply: Value = client.run(&["RL.SLIDING", "k", "60", "5"]);
    assert_eq!(reply, Value::Array(vec![Value::Int(1), Value::Int(0), Value::Int(60)]));
    assert_eq!(client.fixed("k", "60", 5), (1, 1, 60));
    assert_eq!(client.error(&["RL.FIXED", "k", "60", "x"]), "ERR limit must be an integer from 0 to 9007199254740991");
}

fn names_are_read_in_any_case(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (count, name) in ["RL.SLIDING", "rl.sliding", "Rl.Sliding"].iter().enumerate() {
        assert_eq!(client.limiter(name, "k", "60", 5), (1, count as i64, 60));
    }
}

/// Valkey 9 moves slots as a whole, and refuses to while a module has not said that it can bear it.
fn slots_can_be_migrated_with_the_module_loaded(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let modules: String = client.run(&["INFO", "modules"]);
    let modules = modules.lines().find(|line| line.starts_with("module:name=rl,")).expect("the module's line");
    for option in ["handle-io-errors", "handle-repl-async-load", "no-implicit-signal-modified"] {
        assert!(modules.contains(option), "{option} is missing: {modules}");
    }
    if engine.name.starts_with("valkey-9") {
        assert!(modules.contains("handle-atomic-slot-migration"), "{modules}");
    }
}

fn memory_stays_flat_under_load(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let mut now = START;
    let mut load = |client: &mut Client, calls: usize| {
        for _ in 0..calls / 500 {
            let mut pipeline = redis::pipe();
            for index in 0..100 {
                pipeline.cmd("RL.SLIDING").arg(index % 7).arg("0.5").arg(5).ignore();
                pipeline.cmd("RL.FIXED").arg(index % 7).arg("0.5").arg(5).ignore();
                pipeline.cmd("RL.SLIDING").arg("k").arg("0").arg(5).ignore();
                pipeline.cmd("RL.FIXED").arg("k").arg("60").arg("x").ignore();
                pipeline.cmd("EVAL").arg("return redis.call('RL.FIXED', KEYS[1], 60, 5)").arg(1).arg("lua").ignore();
            }
            // Errors are among the replies on purpose.
            let replies = client.send_packed(&pipeline.get_packed_pipeline(), 500);
            assert_eq!(replies.iter().filter(|reply| matches!(reply, Value::ServerError(_))).count(), 200);
            now += 37;
            server.set_time(now);
        }
    };
    let used = |client: &mut Client| client.info_field("memory", "used_memory").parse::<i64>().expect("a number");
    load(&mut client, 20_000);
    client.run::<Value>(&["FLUSHALL"]);
    let before = used(&mut client);
    load(&mut client, 60_000);
    client.run::<Value>(&["FLUSHALL"]);
    let grown = used(&mut client) - before;
    assert!(grown < 200_000, "{grown} bytes more after 60,000 calls");
}

fn the_server_finds_every_key(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (call, keys) in [
        ("RL.ALL 1 a SLIDING 60 5", &["a"][..]),
        ("RL.ALL 3 a b c SLIDING 60 5 FIXED 60 5 ACQUIRE 3 60 h", &["a", "b", "c"]),
        ("RL.ALL 3 a b c SLIDING 60 5 FIXED 60 5 ACQUIRE 3 60 h FULL", &["a", "b", "c"]),
        ("RL.ACQUIRE l 3 60 h FULL", &["l"]),
        ("RL.RELEASE l h g f", &["l"]),
        ("RL.REFUND k SLIDING 60 5 AT 5", &["k"]),
        ("RL.PEEK k ACQUIRE 3 60 h EACH", &["k"]),
        ("RL.THROTTLE k 3 60 1 FULL", &["k"]),
    ] {
        let words: Vec<&str> = ["COMMAND", "GETKEYS"].into_iter().chain(call.split(' ')).collect();
        assert_eq!(client.run::<Vec<String>>(&words), keys, "{call}");
    }
    // Without a valid number of keys there are no keys.
    for call in ["RL.ALL x a b SLIDING 60 5", "RL.ALL -1 a b SLIDING 60 5"] {
        let words: Vec<&str> = ["COMMAND", "GETKEYS"].into_iter().chain(call.split(' ')).collect();
        assert!(client.try_run::<Vec<String>>(&words).is_err(), "{call}");
    }
}

fn the_server_shows_how_they_are_called(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (command, arity, first) in
        [("rl.all", -6, 0), ("rl.acquire", -5, 1), ("rl.release", -3, 1), ("rl.refund", -5, 1)]
    {
        let info: Vec<Vec<Value>> = client.run(&["COMMAND", "INFO", command]);
        let [Value::BulkString(name), Value::Int(there), flags, Value::Int(begins), ..] = &info[0][..] else {
            panic!("{info:?}")
        };
        assert_eq!((&name[..], *there), (command.as_bytes(), arity), "{info:?}");
        let flags = format!("{flags:?}");
        assert!(flags.contains("write") && flags.contains("fast"), "{command}: {flags}");
        assert_eq!(flags.contains("denyoom"), command == "rl.all" || command == "rl.acquire", "{command}: {flags}");
        // A key spec describes where the keys are; the old form cannot describe numkeys.
        assert!(*begins == first || command == "rl.all", "{command}: {begins}");
        let specs = format!("{:?}", info[0][8]);
        if command == "rl.all" {
            assert!(specs.contains("keynum") && flags.contains("movablekeys"), "{flags} {specs}");
        }
        assert!(specs.contains("RW"), "{command}: {specs}");
        let docs: HashMap<String, HashMap<String, Value>> = client.run(&["COMMAND", "DOCS", command]);
        let docs = &docs[command];
        for field in ["summary", "complexity", "since", "group", "arguments"] {
            assert!(docs.contains_key(field), "{command} has no {field}: {docs:?}");
        }
        let arguments = format!("{:?}", docs["arguments"]).to_lowercase();
        let expected: &[&str] = match command {
            "rl.all" => &["numkeys", "key", "sliding", "fixed", "throttle", "acquire", "full"],
            "rl.acquire" => &["key", "limit", "leasesec", "holder", "full"],
            "rl.release" => &["key", "holder"],
            _ => &["key", "sliding", "fixed", "throttle", "at"],
        };
        for word in expected {
            assert!(arguments.contains(word), "{command} does not show {word}: {arguments}");
        }
    }
}

fn transactions_scripts_and_functions_take_them(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let all = "RL.ALL 3 s f l SLIDING 60 3 FIXED 60 3 ANCHORED ACQUIRE 2 60 h";
    let reply: [i64; 4] = client.run(
        &[
            &["EVAL", "return redis.call('RL.ALL', 3, KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))", "3", "s", "f", "l"],
            &split(all)[5..],
        ]
        .concat(),
    );
    assert_eq!(reply, [1, 2, 1, 0]);
    client.run::<Value>(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=limits\nredis.register_function('ask', function(keys, args) \
         return redis.call('RL.ALL', 3, keys[1], keys[2], keys[3], unpack(args)) end)",
    ]);
    let reply: [i64; 4] = client.run(&[&["FCALL", "ask", "3", "s", "f", "l"], &split(all)[5..]].concat());
    assert_eq!(reply, [1, 0, 1, 0]);
    client.run::<()>(&["MULTI"]);
    for line in [all, "RL.REFUND s SLIDING 60 3 COST 2", "RL.RELEASE l h", "RL.ACQUIRE l 2 60 g", all, all] {
        client.call::<Value>(line);
    }
    let replies: Vec<Vec<i64>> = client
        .run::<Vec<Value>>(&["EXEC"])
        .into_iter()
        .map(|reply| match reply {
            Value::Int(integer) => vec![integer],
            reply => redis::from_redis_value(reply).expect("integers"),
        })
        .collect();
    assert_eq!(
        replies,
        [
            vec![1, 0, 0, 0],
            vec![2, 1, 60],
            vec![1],
            vec![1, 1, 60],
            vec![0, 1, 0, 60_000], // The counter is full.
            vec![0, 1, 0, 60_000],
        ]
    );
    // RESP3 within a script.
    let script = "redis.setresp(3) local map = redis.call('RL.ACQUIRE', KEYS[1], 2, 60, 'x', 'FULL').map \
                  return {map['allowed'], map['used'], map['at-ms'] == tonumber(ARGV[1]) and 1 or 0}";
    let mut resp3 = server.client_resp3();
    let reply: Vec<Option<i64>> = resp3.run(&["EVAL", script, "1", "l", &START.to_string()]);
    assert_eq!(reply, [Some(1), Some(2), Some(1)]);
    // A read-only script may call RL.PEEK.
    let looks = "#!lua flags=no-writes\nreturn redis.call('RL.PEEK', KEYS[1], 'ACQUIRE', 2, 60, 'y')";
    assert_eq!(client.run::<[i64; 3]>(&["EVAL", looks, "1", "l"]), [0, 2, 60]);
    let writes = "#!lua flags=no-writes\nreturn redis.call('RL.ACQUIRE', KEYS[1], 2, 60, 'y')";
    assert!(client.error(&["EVAL", writes, "1", "l"]).contains("Write commands are not allowed"));
}

fn info_counts_them(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let names = [
        "sliding_allowed",
        "sliding_denied",
        "fixed_allowed",
        "fixed_denied",
        "throttle_allowed",
        "throttle_denied",
        "acquire_allowed",
        "acquire_denied",
        "peek_allowed",
        "peek_denied",
        "all_allowed",
        "all_denied",
        "reset_keys",
        "released_leases",
        "refunded_calls",
        "settled_calls",
        "errors",
        "panics",
    ];
    for (line, moved) in [
        ("RL.ACQUIRE l 2 60 a", "acquire_allowed"),
        ("RL.ACQUIRE l 2 60 b FULL", "acquire_allowed"),
        ("RL.ACQUIRE l 2 60 a", "acquire_allowed"),
        ("RL.ACQUIRE l 2 60 c", "acquire_denied"),
        ("RL.PEEK l ACQUIRE 2 60 c", "peek_denied"),
        ("RL.PEEK l ACQUIRE 2 60 a EACH", "peek_allowed"),
        ("RL.ALL 3 s f l SLIDING 60 5 FIXED 60 5 ACQUIRE 2 60 a", "all_allowed"),
        ("RL.ALL 3 s f l SLIDING 60 5 FIXED 60 5 ACQUIRE 2 60 d FULL", "all_denied"),
        ("RL.ALL 1 s SLIDING 60 1 FORCE", "all_allowed"),
        ("RL.SLIDING s 60 1 FORCE", "sliding_denied"),
        ("RL.FIXED f 60 1 ANCHORED COST 1", "fixed_allowed"),
        ("RL.FIXED f 60 1 ANCHORED EACH", "fixed_denied"),
        ("RL.PEEK s SLIDING 60 1 COST 0", "peek_denied"),
        ("RL.PEEK t THROTTLE 5 1 60", "peek_allowed"),
        ("RL.THROTTLE t 5 1 60 FULL", "throttle_allowed"),
        ("RL.THROTTLE t 5 1 60 0 FULL", "peek_allowed"),
        ("RL.REFUND s SLIDING 60 1", "refunded_calls"),
        ("RL.FIXED f 60 9 HOLD h 60", "fixed_allowed"),
        ("RL.SETTLE f FIXED 60 9 HOLD h 60 ACTUAL 3", "settled_calls"),
        ("RL.RELEASE l a nobody a", "released_leases"),
    ] {
        let mut counters =
            || names.map(|name| client.info_field("rl", &format!("rl_{name}")).parse::<i64>().expect("a number"));
        let before = counters();
        client.call::<Value>(line);
        let after = names.map(|name| client.info_field("rl", &format!("rl_{name}")).parse::<i64>().expect("a number"));
        for ((name, before), after) in names.iter().zip(before).zip(after) {
            assert_eq!(after - before, i64::from(*name == moved), "{line}: {name}");
        }
    }
    let errors: i64 = client.info_field("rl", "rl_errors").parse().expect("a number");
    for line in ["RL.ALL 0 k SLIDING 60 5", "RL.REFUND s ACQUIRE 5 60 h", "RL.ACQUIRE s x 60 h", "RL.PEEK s X 1 1"] {
        client.error(&split(line));
    }
    assert_eq!(client.info_field("rl", "rl_errors"), (errors + 4).to_string());
}
