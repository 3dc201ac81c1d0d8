//! clients/cases, for the tests: see clients/README.md.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::error::Error;
use crate::rates::{Rates, Window};
use crate::rule::Rule;

/// A file of cases.
pub(crate) fn read(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cases").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// The cases of a section, of which each has only fields that the test knows.
pub(crate) fn list<'a>(file: &'a Value, section: &str, fields: &[&str]) -> &'a [Value] {
    let cases = file[section].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        for field in case.as_object().unwrap().keys() {
            assert!(fields.contains(&field.as_str()), "{field} is not known: {case}");
        }
    }
    cases
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not text"))
}

pub(crate) fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|value| text(value).to_owned()).collect()
}

/// The seconds of a number, exactly: by way of its decimal text.
fn duration(seconds: &Value) -> Duration {
    let text = seconds.to_string();
    let (whole, places) = text.split_once('.').unwrap_or((&text, "0"));
    Duration::new(whole.parse().unwrap(), format!("{places:0<9}").parse().unwrap())
}

/// A rate as text, or as a pair of a limit and seconds.
fn windows(rate: &Value) -> Result<Vec<Window>, Error> {
    match rate {
        Value::String(text) => text.as_str().windows(),
        Value::Array(pair) => (pair[0].as_u64().unwrap(), duration(&pair[1])).windows(),
        other => panic!("{other} is not a rate"),
    }
}

pub(crate) fn rates(rates: &Value) -> Result<Vec<Window>, Error> {
    let mut all = Vec::new();
    for rate in rates.as_array().unwrap() {
        all.extend(windows(rate)?);
    }
    Ok(all)
}

/// A rule as the cases describe it.
pub(crate) fn rule(value: &Value) -> Result<Rule, Error> {
    rule_with(value, &Value::Null)
}

/// The same with the options of a call.
pub(crate) fn rule_with(value: &Value, options: &Value) -> Result<Rule, Error> {
    for field in value.as_object().unwrap().keys() {
        let known = [
            "kind", "rates", "rate", "anchored", "burst", "limit", "ttl", "holder", "cost", "force", "name", "unit",
            "zone", "starts", "reserved",
        ];
        assert!(known.contains(&field.as_str()), "{field} is not known: {value}");
    }
    let cost = options.get("cost").or(value.get("cost")).map(|cost| cost.as_u64().unwrap());
    let force = options.get("force").or(value.get("force")).is_some_and(|force| force.as_bool().unwrap());
    // Only where it is given, as a program does.
    macro_rules! dressed {
        ($rule:expr) => {{
            let mut rule = $rule;
            if let Some(name) = value.get("name") {
                rule = rule.name(text(name))?;
            }
            if let Some(unit) = value.get("unit") {
                rule = rule.unit(text(unit))?;
            }
            rule
        }};
    }
    macro_rules! weighed {
        ($rule:expr) => {{
            let rule = dressed!($rule);
            if let Some(cost) = cost { rule.cost(cost) } else { rule }
        }};
    }
    macro_rules! metered {
        ($rule:expr) => {{
            let mut rule = $rule;
            if let Some(units) = value.get("reserved") {
                rule = rule.reserved(units.as_u64().unwrap());
            }
            if force { rule.force().into() } else { rule.into() }
        }};
    }
    Ok(match text(&value["kind"]) {
        "sliding" => {
            let rule = weighed!(Rule::sliding(rates(&value["rates"])?)?);
            metered!(rule)
        }
        "fixed" => {
            let mut rule = weighed!(Rule::fixed(rates(&value["rates"])?)?);
            if value.get("anchored").is_some_and(|anchored| anchored.as_bool().unwrap()) {
                rule = rule.anchored();
            }
            metered!(rule)
        }
        "calendar" => {
            let mut rule = weighed!(Rule::calendar(text(&value["rate"]))?);
            if let Some(zone) = value.get("zone") {
                rule = rule.zone(text(zone))?;
            }
            if let Some(starts) = value.get("starts") {
                rule = rule.starts(u8::try_from(starts.as_u64().unwrap()).unwrap())?;
            }
            metered!(rule)
        }
        "throttle" => {
            let rule = weighed!(Rule::throttle(windows(&value["rate"])?)?);
            match value.get("burst") {
                Some(burst) => rule.burst(burst.as_u64().unwrap()).into(),
                None => rule.into(),
            }
        }
        "lease" => {
            let rule = dressed!(Rule::lease(value["limit"].as_u64().unwrap(), duration(&value["ttl"]))?);
            match options.get("holder").or(value.get("holder")) {
                Some(holder) => rule.holder(text(holder)).into(),
                None => rule.into(),
            }
        }
        other => panic!("{other} is not a kind of rule"),
    })
}

mod tests {
    use redis::Value as Reply;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    use super::*;
    use crate::error::{Meaning, SETTLED, WINDOW_OVER, meaning, says};
    use crate::{Counting, Decision, Headers, Limiter, Mode, Options, Refund, State};

    /// A server of one reply, which tells what it was asked.
    struct Stub {
        port: u16,
        asked: mpsc::UnboundedReceiver<Vec<Vec<u8>>>,
    }

    /// What is answered to these words.
    type Answers = std::sync::Arc<dyn Fn(&[Vec<u8>]) -> Vec<u8> + Send + Sync>;

    impl Stub {
        async fn start(reply: Vec<u8>, resp3: bool) -> Self {
            Self::with(std::sync::Arc::new(move |_| reply.clone()), resp3).await
        }

        async fn with(reply: Answers, resp3: bool) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let (tell, asked) = mpsc::unbounded_channel();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(stream, Answers::clone(&reply), resp3, tell.clone()));
                }
            });
            Self { port, asked }
        }

        fn limiter(&self, prefix: &str, mode: Mode) -> Limiter {
            let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
            let options = Options::default().prefix(prefix).mode(mode).timeout(Duration::from_secs(60));
            Limiter::with_options(client, options)
        }
    }

    async fn answer(mut stream: TcpStream, reply: Answers, resp3: bool, tell: mpsc::UnboundedSender<Vec<Vec<u8>>>) {
        let mut buffer = Vec::new();
        while stream.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {
            while let Some((words, length)) = command(&buffer) {
                buffer.drain(..length);
                let answer = match words[0].as_slice() {
                    b"HELLO" if resp3 => b"%1\r\n$5\r\nproto\r\n:3\r\n".to_vec(),
                    b"HELLO" => b"-ERR unknown command `HELLO`\r\n".to_vec(),
                    b"CLIENT" => b"+OK\r\n".to_vec(),
                    // Whether the library is an older one is asked beside the calls.
                    b"FUNCTION" => b"*0\r\n".to_vec(),
                    _ => {
                        let reply = reply(&words);
                        let _ = tell.send(words);
                        reply
                    }
                };
                stream.write_all(&answer).await.unwrap();
            }
        }
    }

    /// The words of a command that has arrived whole, and its length.
    fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
        let mut place = 0;
        let mut number = |mark: u8| {
            let end = place + bytes[place..].windows(2).position(|pair| pair == b"\r\n")?;
            assert_eq!(bytes[place], mark);
            let number: usize = std::str::from_utf8(&bytes[place + 1..end]).unwrap().parse().unwrap();
            place = end + 2;
            if mark == b'$' {
                place += number + 2;
            }
            (place <= bytes.len()).then_some((number, end + 2))
        };
        let (count, _) = number(b'*')?;
        let mut words = Vec::new();
        for _ in 0..count {
            let (length, start) = number(b'$')?;
            words.push(bytes.get(start..start + length)?.to_vec());
        }
        Some((words, place))
    }

    /// A reply as it goes over the wire.
    fn wire(value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Null => out.extend(b"$-1\r\n"),
            Value::Number(number) => out.extend(format!(":{number}\r\n").bytes()),
            Value::String(text) => out.extend(format!("${}\r\n{text}\r\n", text.len()).bytes()),
            Value::Array(elements) => {
                out.extend(format!("*{}\r\n", elements.len()).bytes());
                elements.iter().for_each(|element| wire(element, out));
            }
            Value::Object(fields) => {
                out.extend(format!("%{}\r\n", fields.len()).bytes());
                for (name, value) in fields {
                    wire(&json!(name), out);
                    wire(value, out);
                }
            }
            Value::Bool(_) => panic!("{value}"),
        }
    }

    enum Answer {
        One(Box<Decision>),
        All(Box<Decision>),
        Refund(Refund),
        Number(u64),
    }

    /// Makes the call of a case.
    async fn call(limiter: &Limiter, case: &Value) -> Result<Answer, Error> {
        let none = Value::Null;
        let options = case.get("options").unwrap_or(&none);
        let key = case.get("key").map_or("k", text);
        let rule = || rule_with(case.get("rule").unwrap_or(&json!({"kind": "sliding", "rates": ["1/s"]})), options);
        let one = |decision| Answer::One(Box::new(decision));
        Ok(match text(&case["call"]) {
            "hit" => one(limiter.hit(key, rule()?).await?),
            "turn" => {
                let within = Duration::from_millis(options.get("within_ms").map_or(5000, |ms| ms.as_u64().unwrap()));
                match rule()? {
                    Rule::Sliding(rule) => one(limiter.turn(key, rule, within).await?),
                    Rule::Throttle(rule) => one(limiter.turn(key, rule, within).await?),
                    _ => panic!("it does not type-check: {case}"),
                }
            }
            "wait" => {
                let timeout = Duration::from_millis(options["timeout_ms"].as_u64().unwrap());
                one(limiter.wait(key, rule()?, timeout).await?)
            }
            "peek" => one(limiter.peek(key, rule()?).await?),
            "refund" => Answer::Refund(match rule()? {
                Rule::Sliding(rule) => refund(limiter, key, rule, options).await?,
                Rule::Fixed(rule) => refund(limiter, key, rule, options).await?,
                Rule::Calendar(rule) => refund(limiter, key, rule, options).await?,
                Rule::Throttle(rule) => refund(limiter, key, rule, options).await?,
                Rule::Lease(_) => panic!("it does not type-check: {case}"),
            }),
            "reset" => Answer::Number(limiter.reset(key, rule()?).await?),
            "acquire" => {
                let Rule::Lease(rule) = rule()? else { panic!("{case}") };
                let attempt = limiter.acquire(key, &rule).await?;
                match attempt {
                    Ok(held) => {
                        let decision = held.decision().clone();
                        // The connection ends with the runtime; nothing is to be given back.
                        std::mem::forget(held);
                        one(decision)
                    }
                    Err(decision) => one(decision),
                }
            }
            "release" => {
                let holders = options.get("holders").map_or_else(|| vec!["h".to_owned()], texts);
                Answer::Number(limiter.release(key, holders).await?)
            }
            "all" => {
                let rules = case["rules"].as_array().unwrap().iter().map(super::rule).collect::<Result<Vec<_>, _>>()?;
                let keys = case.get("keys").map_or_else(|| (0..rules.len()).map(|n| n.to_string()).collect(), texts);
                Answer::All(Box::new(limiter.all(keys.into_iter().zip(rules)).await?))
            }
            "reserve" | "settle" | "cancel" => {
                let (units, lease) = (options["units"].as_u64().unwrap(), lease(options));
                let attempt = match rule()? {
                    Rule::Sliding(rule) => limiter.reserve(key, rule, units, lease).await?,
                    Rule::Fixed(rule) => limiter.reserve(key, rule, units, lease).await?,
                    Rule::Calendar(rule) => limiter.reserve(key, rule, units, lease).await?,
                    _ => panic!("it does not type-check: {case}"),
                };
                let mut reservation = attempt.unwrap();
                let settled = match text(&case["call"]) {
                    "reserve" => Ok(()),
                    "settle" => reservation.settle(options["actual"].as_u64().unwrap()).await,
                    _ => reservation.cancel().await,
                };
                // So that nothing is sent but what the case says.
                std::mem::forget(reservation);
                settled?;
                Answer::Number(0)
            }
            "reserve_all" => {
                let rules = case["rules"].as_array().unwrap().iter().map(super::rule).collect::<Result<Vec<_>, _>>()?;
                let keys = texts(&case["keys"]);
                std::mem::forget(limiter.reserve_all(keys.into_iter().zip(rules), lease(options)).await?);
                Answer::Number(0)
            }
            other => panic!("{other} is not a call"),
        })
    }

    fn lease(options: &Value) -> Duration {
        options.get("lease").map_or(Duration::from_secs(60), super::duration)
    }

    /// What a server answers that grants everything, and has settled what it is told to.
    fn granting() -> Answers {
        std::sync::Arc::new(|words| {
            let is = |text: &str| words.iter().any(|word| word == text.as_bytes());
            let fields = ["allowed", "limit", "used", "remaining", "retry-after-ms", "next-after-ms", "reset-after-ms"];
            let mut state: Vec<_> = fields.iter().flat_map(|name| [json!(name), json!(1)]).collect();
            state.extend([json!("window-ms"), json!(1), json!("at-ms"), json!(1)]);
            let reply = if is("RL.SETTLE") || is("rl_settle") || is("settle") {
                json!([1, 5, 60])
            } else if is("RL.ALL") {
                let number: usize = std::str::from_utf8(&words[1]).unwrap().parse().unwrap();
                json!([1, 0, 5, 0, vec![state; number]])
            } else if is("EACH") {
                json!([state, state])
            } else {
                json!(state)
            };
            let mut bytes = Vec::new();
            wire(&reply, &mut bytes);
            bytes
        })
    }

    /// The words of a case with the holder as it was made up, which is checked.
    fn with_holder(case: &Value, expected: &Value, sent: &[String]) -> Vec<String> {
        let holders: Vec<_> = sent.windows(2).filter(|pair| pair[0] == "HOLD").map(|pair| pair[1].clone()).collect();
        for holder in &holders {
            assert!(holder.len() == 32 && holder.bytes().all(|byte| byte.is_ascii_hexdigit()), "{holder}: {case}");
            assert_eq!(holder, &holders[0], "{case}");
        }
        let holder = holders.first().cloned().unwrap_or_default();
        texts(expected).iter().map(|word| if word == "HOLDER" { holder.clone() } else { word.clone() }).collect()
    }

    fn set_now(case: &Value) {
        crate::call::NOW.set(case.get("now_ms").map(|time| time.as_u64().unwrap()));
    }

    #[tokio::test]
    async fn cases_of_reservations() {
        let file = read("words");
        let fields = ["call", "key", "keys", "rule", "rules", "prefix", "options", "words"];
        for case in list(&file, "reserve", &fields) {
            let mut stub = Stub::with(granting(), false).await;
            let limiter = stub.limiter(case.get("prefix").map_or("", text), Mode::Module);
            call(&limiter, case).await.unwrap_or_else(|error| panic!("{error}: {case}"));
            let mut words = sent(&mut stub).await;
            if ["settle", "cancel"].contains(&text(&case["call"])) {
                words = sent(&mut stub).await;
            }
            assert_eq!(words, with_holder(case, &case["words"], &words), "{case}");
        }
        let fields = ["call", "key", "rule", "options", "module", "functions", "script"];
        for case in list(&file, "reserve_modes", &fields) {
            for (mode, name) in [(Mode::Module, "module"), (Mode::Functions, "functions"), (Mode::Script, "script")] {
                let mut stub = Stub::with(granting(), false).await;
                call(&stub.limiter("", mode), case).await.unwrap_or_else(|error| panic!("{error}: {case}"));
                let mut words = sent(&mut stub).await;
                if text(&case["call"]) == "settle" {
                    words = sent(&mut stub).await;
                }
                let digest = crate::mode::SCRIPT_SHA.as_str();
                let expected = with_holder(case, &case[name], &words);
                let expected: Vec<_> = expected.iter().map(|word| word.replace("SHA1", digest)).collect();
                assert_eq!(words, expected, "{case}");
            }
        }
        let fields = ["call", "key", "keys", "rule", "rules", "options", "error", "typed"];
        for case in list(&file, "reserve_invalid", &fields) {
            // A rule of a hit can be a reserved one in Rust.
            if is_typed(case) && case["rule"].get("reserved").is_none() {
                continue;
            }
            let stub = Stub::with(granting(), false).await;
            let Err(Error::Invalid(error)) = call(&stub.limiter("", Mode::Module), case).await else {
                panic!("it was sent: {case}")
            };
            assert_holds(&error.to_string(), case);
        }
    }

    #[tokio::test]
    async fn cases_of_settlements() {
        let file = read("replies");
        let rule = Rule::sliding("100/minute").unwrap();
        let settle = async |reply: &Value| {
            let (granted, mut bytes) = (granting(), Vec::new());
            wire(reply, &mut bytes);
            let answers =
                move |words: &[Vec<u8>]| if words[0] == b"RL.SETTLE" { bytes.clone() } else { granted(words) };
            let stub = Stub::with(std::sync::Arc::new(answers), false).await;
            let attempt = stub.limiter("", Mode::Module).reserve("k", &rule, 5, Duration::from_secs(60)).await;
            let mut reservation = attempt.unwrap().unwrap();
            let settled = reservation.settle(3).await;
            std::mem::forget(reservation);
            settled
        };
        for case in list(&file, "settle", &["name", "reply", "result"]) {
            let result = match settle(&case["reply"]).await {
                Ok(()) => "done",
                Err(Error::Invalid(_)) => "error",
                Err(error) => panic!("{error}: {case}"),
            };
            assert_eq!(result, case["result"], "{case}");
        }
        for case in list(&file, "settle_invalid", &["name", "reply"]) {
            let error = settle(&case["reply"]).await.err();
            assert!(matches!(error, Some(Error::Unexpected(_))), "{error:?}: {case}");
        }
    }

    #[tokio::test]
    async fn cases_of_the_words_of_calendars() {
        let file = read("words");
        let fields = ["call", "key", "keys", "rule", "rules", "options", "now_ms", "words"];
        for case in list(&file, "calendar", &fields) {
            set_now(case);
            let mut stub = Stub::with(granting(), false).await;
            // The answer is not always one to this call.
            let _ = call(&stub.limiter("", Mode::Module), case).await;
            let mut words = sent(&mut stub).await;
            if text(&case["call"]) == "settle" {
                words = sent(&mut stub).await;
            }
            assert_eq!(words, with_holder(case, &case["words"], &words), "{case}");
        }
        for case in list(&file, "calendar_ended", &fields) {
            set_now(case);
            let mut stub = Stub::start(b"-ERR the window has ended\r\n".to_vec(), false).await;
            assert!(matches!(call(&stub.limiter("", Mode::Module), case).await, Err(Error::Refused(_))), "{case}");
            sent(&mut stub).await;
            assert_eq!(sent(&mut stub).await, texts(&case["words"]), "{case}");
            assert!(stub.asked.try_recv().is_err(), "it is asked once more, and not again");
        }
        set_now(&Value::Null);
        for case in list(&file, "calendar_invalid", &["rule", "error", "typed"]).iter().filter(|case| !is_typed(case)) {
            let error = super::rule(&case["rule"]).expect_err(&case.to_string());
            assert_holds(&error.to_string(), case);
        }
    }

    async fn refund(limiter: &Limiter, key: &str, rule: impl Counting, options: &Value) -> Result<Refund, Error> {
        match options.get("at_ms") {
            Some(at) => {
                let at = std::time::SystemTime::UNIX_EPOCH + Duration::from_millis(at.as_u64().unwrap());
                limiter.refund_at(key, rule, at).await
            }
            None => limiter.refund(key, rule).await,
        }
    }

    #[test]
    fn cases_of_rates() {
        let file = read("rates");
        for case in list(&file, "valid", &["rates", "windows"]) {
            let rule = Rule::sliding(rates(&case["rates"]).unwrap()).unwrap();
            let windows: Vec<_> = rule.windows().iter().map(|window| json!([window.limit, window.millis])).collect();
            assert_eq!(json!(windows), case["windows"], "{case}");
        }
        for case in list(&file, "invalid", &["rates", "error", "typed"]).iter().filter(|case| !is_typed(case)) {
            let error = rates(&case["rates"]).and_then(Rule::sliding).expect_err(&case.to_string());
            assert_holds(&error.to_string(), case);
        }
    }

    fn is_typed(case: &Value) -> bool {
        case.get("typed").is_some_and(|typed| typed.as_bool().unwrap())
    }

    fn assert_holds(message: &str, case: &Value) {
        for part in texts(&case["error"]) {
            // As Rust writes text in a message.
            let quoted = format!("{part:?}");
            let held = message.contains(&part) || message.contains(quoted.trim_matches('"'));
            assert!(held, "{message:?} does not say {part:?}: {case}");
        }
    }

    #[tokio::test]
    async fn cases_of_words() {
        let file = read("words");
        let fields = ["call", "key", "keys", "rule", "rules", "prefix", "options", "words"];
        let mut stub = Stub::start(b"-ERR no\r\n".to_vec(), false).await;
        for case in list(&file, "valid", &fields) {
            let limiter = stub.limiter(case.get("prefix").map_or("", text), Mode::Module);
            assert!(matches!(call(&limiter, case).await, Err(Error::Refused(_))), "{case}");
            assert_eq!(sent(&mut stub).await, texts(&case["words"]), "{case}");
        }
        let fields = ["call", "key", "keys", "rule", "rules", "options", "module", "functions", "script"];
        for case in list(&file, "modes", &fields) {
            for (mode, name) in [(Mode::Module, "module"), (Mode::Functions, "functions"), (Mode::Script, "script")] {
                assert!(call(&stub.limiter("", mode), case).await.is_err());
                let digest = crate::mode::SCRIPT_SHA.as_str();
                let words: Vec<_> = texts(&case[name]).iter().map(|word| word.replace("SHA1", digest)).collect();
                assert_eq!(sent(&mut stub).await, words, "{case}");
            }
        }
        let fields = ["call", "key", "keys", "rule", "rules", "options", "error", "typed"];
        // No Duration is less than zero.
        let below_zero = |case: &Value| case["options"]["within_ms"].as_i64().is_some_and(|within| within < 0);
        let invalid = list(&file, "invalid", &fields).iter();
        for case in invalid.filter(|case| !is_typed(case) && !below_zero(case)) {
            let Err(Error::Invalid(error)) = call(&stub.limiter("", Mode::Module), case).await else {
                panic!("it was sent: {case}")
            };
            assert_holds(&error.to_string(), case);
        }
        assert!(stub.asked.try_recv().is_err());
    }

    async fn sent(stub: &mut Stub) -> Vec<String> {
        stub.asked.recv().await.unwrap().into_iter().map(|word| String::from_utf8(word).unwrap()).collect()
    }

    /// A window as the cases write it.
    fn state(state: &State) -> Value {
        let millis = |wait: Option<Duration>| wait.map(|wait| u64::try_from(wait.as_millis()).unwrap());
        let seconds = |wait: Option<Duration>| wait.map(crate::headers::whole_seconds);
        json!({
            "allowed": state.allowed, "limit": state.limit, "used": state.used, "remaining": state.remaining,
            "retry_after_ms": millis(state.retry_after), "retry_after": seconds(state.retry_after),
            "next_after_ms": millis(state.next_after), "next_after": seconds(state.next_after),
            "reset_after_ms": millis(state.reset_after), "reset_after": seconds(state.reset_after),
            "window_ms": millis(Some(state.window)), "at_ms": crate::call::unix_millis(state.at),
            "wait_ms": millis(Some(state.wait)),
        })
    }

    fn fields(headers: &Headers) -> Value {
        let mut fields = json!({"RateLimit-Policy": headers.policy, "RateLimit": headers.limit});
        if let Some(seconds) = headers.retry_after {
            fields["Retry-After"] = json!(seconds.to_string());
        }
        fields
    }

    fn problem(problem: Option<String>) -> Value {
        problem.map_or(Value::Null, |problem| serde_json::from_str(&problem).unwrap())
    }

    #[tokio::test]
    async fn cases_of_replies() {
        let file = read("replies");
        let known = ["name", "call", "rule", "rules", "resp2", "resp3", "result", "headers", "problem"];
        for case in list(&file, "valid", &known).iter().chain(list(&file, "calendar", &known)) {
            for protocol in ["resp2", "resp3"] {
                let mut reply = Vec::new();
                wire(&case[protocol], &mut reply);
                let stub = Stub::start(reply, protocol == "resp3").await;
                let (mut result, mut each, headers, body, more) = match call(&stub.limiter("", Mode::Module), case)
                    .await
                    .unwrap_or_else(|error| panic!("{error}: {case}"))
                {
                    Answer::One(decision) => {
                        let each: Vec<_> = decision.each().iter().map(state).collect();
                        (state(&decision.state()), each, decision.headers(), decision.problem(), Value::Null)
                    }
                    Answer::All(decision) => {
                        let each: Vec<_> = decision.each().iter().map(state).collect();
                        (state(&decision.state()), each, decision.headers(), decision.problem(), json!(decision.index))
                    }
                    _ => panic!("{case}"),
                };
                if text(&case["call"]) != "turn" {
                    for state in std::iter::once(&mut result).chain(&mut each) {
                        assert_eq!(state.as_object_mut().unwrap().remove("wait_ms"), Some(json!(0)), "{case}");
                    }
                }
                result["each"] = json!(each);
                if !more.is_null() {
                    result["index"] = more;
                }
                assert_eq!(result, case["result"], "{case}");
                assert_eq!(fields(&headers), case["headers"], "{case}");
                assert_eq!(problem(body), case["problem"], "{case}");
            }
        }
        for case in list(&file, "numbers", &["name", "call", "reply", "result"]) {
            let mut reply = Vec::new();
            wire(&case["reply"], &mut reply);
            let stub = Stub::start(reply, false).await;
            let result = match call(&stub.limiter("", Mode::Module), case).await.unwrap() {
                Answer::Refund(Refund { refunded, used, ttl }) => {
                    json!({"refunded": refunded, "used": used, "ttl": ttl.as_secs()})
                }
                Answer::Number(number) => json!(number),
                _ => panic!("{case}"),
            };
            assert_eq!(result, case["result"], "{case}");
        }
        for case in list(&file, "invalid", &["name", "call", "rule", "rules", "reply"]) {
            let mut reply = Vec::new();
            wire(&case["reply"], &mut reply);
            let stub = Stub::start(reply, true).await;
            let error = call(&stub.limiter("", Mode::Module), case).await.err();
            assert!(matches!(error, Some(Error::Unexpected(_))), "{error:?}: {case}");
        }
    }

    /// Each row of a section, of which the test knows all.
    fn rows<'a>(file: &'a Value, section: &str, known: &[&str]) -> &'a Value {
        let rows = file[section].as_object().unwrap();
        assert_eq!(rows.keys().map(String::as_str).collect::<Vec<_>>(), known, "the rows of {section}");
        &file[section]
    }

    #[test]
    fn cases_of_defaults() {
        use crate::{breaker, denials, held, identity, layer, limiter, local, options, reservation, waits};

        let file = read("defaults");
        let known = [
            "about",
            "adapter",
            "breaker",
            "caller_leaves",
            "deny_cache",
            "headers",
            "hold",
            "hook",
            "identity",
            "limiter",
            "local",
            "mode",
            "problem",
            "reservation",
            "wait",
        ];
        assert_eq!(file.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>(), known);
        let ms = |time: Duration| json!(u64::try_from(time.as_millis()).unwrap());
        let is = |section: &str, expected: Value| {
            let keys: Vec<_> = expected.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(rows(&file, section, &keys), &expected, "{section}");
        };
        let options = options::Options::default();
        is(
            "limiter",
            json!({
                "name": options.name,
                "prefix": String::from_utf8(options.prefix.clone()).unwrap(), "mode": format!("{:?}", options.mode).to_lowercase(),
                // There is no option for it.
                "timeout_ms": ms(options.timeout), "deny_cache": false,
            }),
        );
        let status = |status: http::StatusCode| status.as_u16();
        is(
            "adapter",
            json!({
                "prefix": std::str::from_utf8(layer::PREFIX).unwrap(), "timeout_ms": ms(layer::TIMEOUT),
                "when_unavailable": format!("{:?}", crate::WhenUnavailable::default()).to_lowercase(),
                "ipv6_prefix": identity::IPV6_PREFIX, "deny_cache": layer::DENY_CACHE,
                "without_identity": if layer::WITHOUT_IDENTITY { "allowed" } else { "refused" },
                "status": {
                    "denied": status(layer::DENIED), "unavailable": status(layer::UNAVAILABLE),
                    "without_identity": status(layer::NO_IDENTITY),
                },
            }),
        );
        let believed = ms(denials::LONGEST);
        is(
            "deny_cache",
            json!({"entries": denials::ENTRIES, "bytes": denials::BYTES, "believed_at_most_ms": believed}),
        );
        is(
            "identity",
            json!({"longest_bytes": identity::LONGEST, "kept_bytes": identity::KEPT, "mark": identity::MARK}),
        );
        // As the redis crate reports what TLS says.
        let failed = std::io::Error::new(std::io::ErrorKind::InvalidData, "invalid peer certificate: UnknownIssuer");
        let certificate = if meaning(&failed.into(), false) == Meaning::Lost { "unavailable" } else { "permanent" };
        is("breaker", json!({"pause_ms": ms(breaker::PAUSE), "certificate_that_fails": certificate}));
        is("local", json!({"counters": local::MOST}));
        let modes = [Mode::Auto, Mode::Module, Mode::Functions, Mode::Script];
        let modes: Vec<_> = modes.map(|mode| format!("{mode:?}").to_lowercase()).into();
        is("mode", json!({"modes": modes, "probed_again_ms": ms(options.probe_every)}));
        let (outage, share) = (ms(waits::OUTAGE_POLL), 1.0 / f64::from(limiter::LAST_CALL_SHARE));
        is(
            "wait",
            json!({
                "outage_poll_ms": outage, "turn_at_most_ms": ms(limiter::LONGEST_TURN),
                "last_call_share_of_timeout": share,
            }),
        );
        is(
            "hold",
            json!({
                "first_poll_ms": ms(waits::FIRST_POLL), "longest_poll_ms": ms(waits::LONGEST_POLL),
                "outage_poll_ms": outage, "last_call_share_of_timeout": share, "renewals_a_lease": held::RENEWALS,
            }),
        );
        let pattern = &file["reservation"]["holder"];
        assert_eq!(pattern, "^[0-9a-f]{32}$");
        let holder = crate::lease::random_holder();
        assert!(holder.len() == 32 && holder.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{holder}");
        // A lease has to be said, and the cases say it.
        is(
            "reservation",
            json!({
                "lease_ms": 60_000, "remembered_at_least_ms": ms(reservation::SHORTEST_MEMORY),
                "renewals_a_lease": held::RENEWALS, "holder": pattern,
            }),
        );
        // What the live tests and clients/faults play.
        is("caller_leaves", json!({"hit": "stays charged", "turn": "given back"}));
        is("hook", json!({"key": "without the prefix"}));
        let headers = Headers { policy: "p".to_owned(), limit: "l".to_owned(), retry_after: Some(1) };
        let mut names: Vec<_> = headers.fields().map(|(name, _)| name).collect();
        names.sort_unstable();
        let expected = texts(&file["headers"]).iter().map(|name| name.to_lowercase()).collect::<Vec<_>>();
        assert_eq!(names, expected);
        let problem: Value = serde_json::from_str(&crate::headers::problem(&[])).unwrap();
        is("problem", json!({"type": problem["type"], "title": problem["title"], "content_type": layer::PROBLEM}));
    }

    #[test]
    fn cases_of_errors() {
        let fields = ["line", "unavailable", "retry", "permanent", "probe", "cluster"];
        for case in list(&read("errors"), "lines", &fields) {
            let reply = redis::parse_redis_value(format!("-{}\r\n", text(&case["line"])).as_bytes());
            let error = reply.and_then(Reply::extract_error).unwrap_err();
            let cluster = case.get("cluster").is_some_and(|cluster| cluster.as_bool().unwrap());
            let meaning = meaning(&error, cluster);
            let unavailable = matches!(meaning, Meaning::Unavailable | Meaning::TryAgain);
            assert_eq!(json!(unavailable), case["unavailable"], "{case}");
            assert_eq!(json!(meaning == Meaning::TryAgain), case["retry"], "{case}");
            assert_eq!(json!(meaning == Meaning::Missing), case["probe"], "{case}");
            let permanent = matches!(meaning, Meaning::Permanent | Meaning::Unexpected);
            assert_eq!(json!(permanent), case["permanent"], "{case}");
        }
        for case in list(&read("errors"), "meanings", &["line", "means"]) {
            let reply = redis::parse_redis_value(format!("-{}\r\n", text(&case["line"])).as_bytes());
            let error = reply.and_then(Reply::extract_error).unwrap_err();
            let means = match (says(&error, WINDOW_OVER), says(&error, SETTLED)) {
                (true, false) => json!("ended"),
                (false, true) => json!("settled"),
                _ => Value::Null,
            };
            assert_eq!(means, case["means"], "{case}");
        }
    }
}
