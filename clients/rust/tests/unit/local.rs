use super::*;
use crate::call::NOW;
use crate::cases;
use crate::command::Command;
use crate::rule::Use;

const DAY: Duration = Duration::from_secs(86_400);

fn asked(rules: impl IntoIterator<Item = (&'static str, Rule)>) -> Call {
    let rules = rules.into_iter().map(|(key, rule)| (key.into(), rule));
    Call::request(rules, Some(Command::ALL), Use::Check).unwrap()
}

fn one(rule: impl Into<Rule>) -> Call {
    asked([("k", rule.into())])
}

fn allowed(local: &Local, ask: &Call, times: usize) -> usize {
    (0..times).filter(|_| local.decide(ask).0.allowed).count()
}

#[tokio::test(start_paused = true)]
async fn cases_of_local() {
    for case in cases::list(&cases::read("local"), "cases", &["name", "processes", "steps"]) {
        let local = Local::new(case["processes"].as_u64().unwrap().try_into().unwrap());
        for step in cases::list(case, "steps", &["rules", "times", "result"]) {
            if step.to_string().contains("calendar") && cfg!(not(feature = "calendar")) {
                continue;
            }
            let mut rules = Vec::new();
            for described in step["rules"].as_array().unwrap() {
                let mut described = described.as_object().unwrap().clone();
                let key = cases::text(&described.remove("key").unwrap()).into();
                rules.push((key, cases::rule(&described.into()).unwrap()));
            }
            let all = (rules.len() > 1).then_some(Command::ALL);
            let ask = Call::request(rules, all, Use::Check).unwrap();
            for _ in 0..step["times"].as_u64().unwrap_or(1) {
                let (state, _) = local.decide(&ask);
                let retry = match state.retry_after {
                    _ if state.allowed => "none",
                    None => "never",
                    Some(_) => "later",
                };
                // The result of a middleware has no figures.
                let expected = &step["result"];
                assert_eq!(
                    (retry, retry == "none"),
                    (cases::text(&expected["retry"]), expected["allowed"] == true),
                    "{step}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_divided_by_the_processes() {
    for (processes, expected) in [(1, 100), (3, 33), (1000, 1)] {
        let local = Local::new(processes);
        assert_eq!(allowed(&local, &one(Rule::sliding("100/hour").unwrap()), 200), expected);
    }
    // A cost has to fit into the part of the process.
    let costs = one(Rule::sliding("200/hour").unwrap().cost(50));
    assert_eq!(allowed(&Local::new(4), &costs, 5), 1);
    assert_eq!(Local::new(5).decide(&costs).0.retry_after, None);
}

#[tokio::test(start_paused = true)]
async fn it_says_what_denied_and_for_how_long() {
    let local = Local::new(1);
    let rule = one(Rule::sliding("2/hour, 100/day").unwrap().name("api").unwrap());
    assert_eq!(allowed(&local, &rule, 2), 2);
    tokio::time::advance(Duration::from_secs(600)).await;
    let (state, violated) = local.decide(&rule);
    assert_eq!((violated, state.retry_after), (vec!["api-3600s".to_owned()], Some(DAY / 24 * 5 / 6)));
    assert_eq!((state.allowed, state.limit, state.used, state.remaining), (false, 2, 2, 0));
    assert_eq!((state.reset_after, state.source), (Some(DAY / 24 * 5 / 6), Source::Local));
    // What can never fit, and what always passes.
    for never in [Rule::sliding("0/s").unwrap(), Rule::sliding("5/s").unwrap().cost(6)] {
        assert_eq!(Local::new(1).decide(&one(never)).0.retry_after, None);
    }
    let lease = Rule::lease(1, DAY).unwrap().holder("h");
    assert_eq!(allowed(&Local::new(1), &one(lease), 3), 3);
}

/// A request that another window, or another rule, denies is counted nowhere.
#[tokio::test(start_paused = true)]
async fn several_windows_count_together() {
    let local = Local::new(1);
    let rule = one(Rule::sliding("2/second, 13/minute").unwrap());
    let mut let_in = 0;
    for _ in 0..20 {
        let_in += allowed(&local, &rule, 10);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(let_in, 13);
    let local = Local::new(1);
    let rule = |rate| Rule::from(Rule::fixed(rate).unwrap());
    assert_eq!(allowed(&local, &asked([("one", rule("5/hour")), ("other", rule("2/hour"))]), 9), 2);
    assert_eq!(allowed(&local, &asked([("one", rule("5/hour"))]), 9), 3);
}

#[tokio::test(start_paused = true)]
async fn a_window_begins_with_its_first_request() {
    let local = Local::new(1);
    let rule = one(Rule::sliding("3 per 60 days").unwrap());
    assert_eq!(allowed(&local, &rule, 20), 3);
    tokio::time::advance(DAY * 59).await;
    assert_eq!(allowed(&local, &rule, 20), 0);
    tokio::time::advance(DAY).await;
    assert_eq!(allowed(&local, &rule, 20), 3);
}

/// To its end.
#[tokio::test(start_paused = true)]
async fn a_period_of_the_calendar_ends_where_it_does_elsewhere() {
    // An hour before the end of a day.
    NOW.set(Some(86_400_000 * 20_000 - 3_600_000));
    let (local, rule) = (Local::new(1), one(Rule::calendar("3/day").unwrap().name("budget").unwrap()));
    NOW.set(None);
    assert_eq!(allowed(&local, &rule, 9), 3);
    let (state, violated) = local.decide(&rule);
    assert_eq!((state.retry_after, violated), (Some(DAY / 24), vec!["budget".to_owned()]));
    tokio::time::advance(DAY / 24).await;
    assert_eq!(allowed(&local, &rule, 9), 3);
}

/// As a window in which its bucket fills.
#[tokio::test(start_paused = true)]
async fn a_throttle_is_a_window() {
    let local = Local::new(1);
    let throttle = one(Rule::throttle("1/hour").unwrap().burst(4));
    assert_eq!(allowed(&local, &throttle, 9), 5);
    assert_eq!(local.decide(&throttle).0.retry_after, Some(DAY / 24 * 5));
    tokio::time::advance(DAY / 24 * 5).await;
    assert_eq!(allowed(&local, &throttle, 9), 5);
}

#[tokio::test(start_paused = true)]
async fn keys_are_counted_apart_in_bounded_room() {
    let local = Local::new(1);
    let rule = Rule::from(Rule::sliding("1/hour").unwrap());
    for key in ["one", "other"] {
        assert_eq!(allowed(&local, &asked([(key, rule.clone())]), 9), 1);
    }
    for number in 0..2 * MOST {
        let key = number.to_string().into_bytes();
        let _ = local.decide(&Call::request([(key, rule.clone())], None, Use::Check).unwrap());
    }
    assert!(local.counters.lock().unwrap().len() <= MOST);
}
