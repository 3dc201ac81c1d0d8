//! Every command, on a stopped clock: the figures, and that the three modes give the same.

use std::time::{Duration, SystemTime};

use redis_rl_client::{Error, Limiter, Options, Rule};

use crate::support::{Has, Server, T0, patient};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + ms(u64::try_from(millis).unwrap())
}

/// A server of each kind with its limiter, the clock stopped at T0.
async fn each() -> Vec<(Has, Server, Limiter)> {
    let mut all = Vec::new();
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        // One speaks RESP3, and so gets maps.
        let url = if has == Has::Functions { format!("{}/?protocol=resp3", server.url()) } else { server.url() };
        let limiter = Limiter::with_options(redis::Client::open(url).unwrap(), patient(Options::default()));
        all.push((has, server, limiter));
    }
    all
}

#[tokio::test]
async fn a_sliding_window_in_figures() {
    for (has, server, limiter) in each().await {
        let rule = Rule::sliding("3/minute").unwrap();
        for used in 1..=3 {
            server.set_time(T0 + used * 1000).await;
            let decision = limiter.hit("user:7", &rule).await.unwrap();
            assert!(decision.allowed);
            assert_eq!((decision.limit, decision.used, decision.remaining), (3, used, 3 - used.unsigned_abs()));
            assert_eq!(decision.retry_after, Some(Duration::ZERO));
            assert_eq!(decision.next_after, Some(ms(60_000 - 1000 * (used.unsigned_abs() - 1))));
            assert_eq!(decision.reset_after, Some(ms(60_000)));
            assert_eq!(decision.window, ms(60_000));
            assert_eq!(decision.at, at(T0 + used * 1000));
        }
        let denied = limiter.hit("user:7", &rule).await.unwrap();
        assert_eq!((denied.allowed, denied.used, denied.remaining), (false, 3, 0));
        assert_eq!(denied.retry_after, Some(ms(58_000)));
        assert_eq!((denied.limit, denied.next_after, denied.reset_after), (3, Some(ms(58_000)), Some(ms(60_000))));
        assert_eq!((denied.window, denied.at), (ms(60_000), at(T0 + 3000)));
        assert_eq!(denied.each(), [denied.state()]);
        // Denied at the last millisecond before, allowed at the one that was named.
        server.set_time(T0 + 3000 + 57_999).await;
        assert!(!limiter.hit("user:7", &rule).await.unwrap().allowed);
        server.set_time(T0 + 3000 + 58_000).await;
        assert!(limiter.hit("user:7", &rule).await.unwrap().allowed);
        assert_eq!(limiter.mode(), Some(has.mode()));
    }
}

#[tokio::test]
async fn several_windows_bind_as_the_server_says() {
    for (_, server, limiter) in each().await {
        let rule = Rule::sliding("5/minute, 2/second").unwrap().name("api").unwrap();
        for _ in 0..2 {
            assert!(limiter.hit("k", &rule).await.unwrap().allowed);
        }
        let denied = limiter.hit("k", &rule).await.unwrap();
        let per_window: Vec<_> =
            denied.each().iter().map(|state| (state.allowed, state.limit, state.used, state.retry_after)).collect();
        assert_eq!(per_window, [(false, 2, 2, Some(ms(1000))), (true, 5, 2, Some(Duration::ZERO))]);
        assert_eq!((denied.allowed, denied.window, denied.retry_after), (false, ms(1000), Some(ms(1000))));
        assert_eq!(denied.violated_policies(), ["api-1s"]);
        let headers = denied.headers();
        assert_eq!(headers.policy, r#""api-1s";q=2;w=1, "api-60s";q=5;w=60"#);
        assert_eq!(headers.limit, r#""api-1s";r=0;t=1, "api-60s";r=3"#, "a later t than Retry-After is left out");
        assert_eq!(headers.retry_after, Some(1));

        for step in 1..=2 {
            server.set_time(T0 + step * 1000).await;
            let decision = limiter.hit("k", rule.clone().cost(1)).await.unwrap();
            assert!(decision.allowed);
            assert_eq!(decision.window, ms(1000), "fewer are free in the short window");
        }
        server.set_time(T0 + 3000).await;
        let last = limiter.hit("k", &rule).await.unwrap();
        assert_eq!((last.allowed, last.window, last.remaining), (true, ms(60_000), 0));
        server.set_time(T0 + 4000).await;
        let denied = limiter.hit("k", &rule).await.unwrap();
        assert_eq!((denied.window, denied.retry_after), (ms(60_000), Some(ms(56_000))));
        // Forced, with the wait of the whole call.
        let forced = limiter.hit("k", rule.clone().force()).await.unwrap();
        assert_eq!((forced.allowed, forced.used, forced.remaining, forced.each().len()), (false, 6, 0, 1));
        assert_eq!(forced.retry_after, Some(ms(56_000)));
        assert_eq!(forced.headers().limit, r#""api-60s";r=0;t=56"#);
        assert_eq!(forced.headers().policy, headers.policy);
    }
}

#[tokio::test]
async fn the_short_answer_to_one_rule_is_that_of_all() {
    for (_, _server, limiter) in each().await {
        let rule = |cost| Rule::from(Rule::fixed("3/minute").unwrap().cost(cost));
        for cost in [1, 1, 2, 1, 1, 9] {
            let all = limiter.all([("all", rule(cost))]).await.unwrap();
            let short = limiter.admit("short", rule(cost)).await.unwrap();
            let short = (short.allowed, short.remaining, short.retry_after);
            assert_eq!(short, (all.allowed, all.remaining, all.retry_after), "{cost}");
        }
    }
}

#[tokio::test]
async fn fixed_windows_by_the_clock_and_by_the_first_request() {
    for (_, server, limiter) in each().await {
        let rule = Rule::fixed("2/minute").unwrap();
        let first = limiter.hit("login", &rule).await.unwrap();
        assert_eq!((first.allowed, first.used, first.reset_after), (true, 1, Some(ms(40_000))), "T0 is 20 s past");
        assert!(limiter.hit("login", &rule).await.unwrap().allowed);
        let denied = limiter.hit("login", &rule).await.unwrap();
        assert_eq!((denied.allowed, denied.used, denied.retry_after), (false, 3, Some(ms(40_000))));

        let rule = rule.anchored();
        let first = limiter.hit("anchored", &rule).await.unwrap();
        assert_eq!(first.reset_after, Some(ms(60_000)));
        assert_eq!(server.run::<u64>("EXISTS anchored:60s").await, 1);
        assert_eq!(limiter.reset("anchored", &rule).await.unwrap(), 1);
        assert_eq!(server.run::<u64>("EXISTS anchored:60s").await, 0);
        assert_eq!(limiter.reset("login", &rule).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn throttle_in_figures() {
    for (_, server, limiter) in each().await {
        let rule = Rule::throttle("60/minute").unwrap().burst(4);
        let decision = limiter.hit("t", rule.clone().cost(5)).await.unwrap();
        assert_eq!((decision.allowed, decision.limit, decision.used, decision.remaining), (true, 5, 5, 0));
        let denied = limiter.hit("t", &rule).await.unwrap();
        assert_eq!((denied.allowed, denied.retry_after, denied.window), (false, Some(ms(1000)), ms(5000)));
        let refund = limiter.refund("t", rule.clone().cost(2)).await.unwrap();
        assert_eq!((refund.refunded, refund.used, refund.ttl), (2, 3, Duration::from_secs(3)));
        server.set_time(T0 + 3000).await;
        let idle = limiter.peek("t", rule.cost(0)).await.unwrap();
        assert_eq!((idle.used, idle.next_after), (0, Some(Duration::ZERO)));
        assert_eq!(idle.headers().limit, r#""5s";r=5"#);
    }
}

#[tokio::test]
async fn costs_and_never() {
    for (_, _server, limiter) in each().await {
        let rule = Rule::sliding("10/minute").unwrap();
        let denied = limiter.hit("k", rule.clone().cost(11)).await.unwrap();
        assert_eq!((denied.allowed, denied.retry_after, denied.used), (false, None, 0));
        assert_eq!(denied.headers().retry_after, None);
        assert!(limiter.hit("k", rule.clone().cost(10)).await.unwrap().allowed);
        let forced = limiter.hit("k", rule.clone().cost(5).force()).await.unwrap();
        assert_eq!((forced.allowed, forced.used, forced.remaining), (false, 15, 0));
        // 2^53 - 1 is one digit too many for a structured field.
        let most = Rule::fixed("9007199254740991/minute").unwrap();
        let decision = limiter.hit("most", &most).await.unwrap();
        assert_eq!(decision.remaining, (1 << 53) - 2);
        assert_eq!(decision.headers().policy, r#""60s";q=999999999999999;w=60"#);
        assert_eq!(decision.headers().limit, r#""60s";r=999999999999999;t=40"#);
        // A window that is not whole seconds has no w.
        let half = limiter.hit("half", Rule::sliding("1/0.5s").unwrap().unit("content-bytes").unwrap()).await.unwrap();
        assert_eq!(half.headers().policy, r#""0.5s";q=1;qu="content-bytes""#);
    }
}

#[tokio::test]
async fn peek_refund_and_reset() {
    for (_, server, limiter) in each().await {
        let rule = Rule::sliding("5/minute").unwrap();
        let state = limiter.peek("k", rule.clone().cost(0)).await.unwrap();
        assert_eq!((state.allowed, state.used, state.remaining, state.next_after), (true, 0, 5, Some(Duration::ZERO)));
        assert!(limiter.peek("k", &rule).await.unwrap().allowed);
        assert_eq!(server.run::<u64>("EXISTS k").await, 0);

        let first = limiter.hit("k", rule.clone().cost(2)).await.unwrap();
        server.set_time(T0 + 1000).await;
        let _ = limiter.hit("k", rule.clone().cost(3)).await.unwrap();
        let nothing = limiter.refund_at("k", &rule, at(T0 + 500)).await.unwrap();
        assert_eq!((nothing.refunded, nothing.used, nothing.ttl), (0, 5, Duration::from_secs(60)));
        let some = limiter.refund_at("k", rule.clone().cost(2), first.at).await.unwrap();
        assert_eq!((some.refunded, some.used), (2, 3));
        let newest = limiter.refund("k", rule.clone().cost(9)).await.unwrap();
        assert_eq!((newest.refunded, newest.used), (3, 0));
        let _ = limiter.hit("k", &rule).await.unwrap();
        assert_eq!(limiter.reset("k", &rule).await.unwrap(), 1);
        assert_eq!(limiter.reset("k", &rule).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn all_or_nothing() {
    for (_, server, limiter) in each().await {
        let rules = |cost, holder: &str| {
            [
                ("{o}:rpm", Rule::sliding("5/minute").unwrap().name("requests").unwrap().into()),
                ("{o}:tpm", Rule::fixed("100/minute").unwrap().cost(cost).into()),
                ("{o}:steady", Rule::throttle("60/minute").unwrap().into()),
                ("{o}:busy", Rule::lease(2, Duration::from_secs(120)).unwrap().holder(holder).into()),
            ]
        };
        let decision = limiter.all(rules(60, "a")).await.unwrap();
        assert!(decision.allowed);
        assert_eq!((decision.index, decision.remaining, decision.retry_after), (1, 40, Some(Duration::ZERO)));
        let used: Vec<_> = decision.each().iter().map(|each| each.used).collect();
        assert_eq!(used, [1, 60, 1, 1]);
        let headers = decision.headers();
        assert_eq!(
            headers.policy,
            r#""requests";q=5;w=60, "60s";q=100;w=60, "60s-2";q=60;w=60, "120s";q=2;qu="concurrent-requests""#
        );

        let before: Vec<String> = server.run("KEYS *").await;
        let digest = |limiter: Limiter| async move {
            let peek = limiter.peek("{o}:rpm", Rule::sliding("5/minute").unwrap().cost(0)).await.unwrap();
            peek.used
        };
        let denied = limiter.all(rules(50, "b")).await.unwrap();
        assert_eq!((denied.allowed, denied.index, denied.remaining), (false, 1, 40));
        assert_eq!(denied.retry_after, Some(ms(40_000)));
        assert_eq!(denied.each().iter().map(|each| each.allowed).collect::<Vec<_>>(), [true, false, true, true]);
        assert_eq!(denied.violated_policies(), ["60s"]);
        assert_eq!(denied.headers().retry_after, Some(40));
        let after: Vec<String> = server.run("KEYS *").await;
        assert_eq!((before.len(), digest(limiter.clone()).await), (after.len(), 1));
        assert_eq!(server.run::<u64>("ZCARD {o}:busy").await, 1);
        let never = limiter.all(rules(101, "b")).await.unwrap();
        assert_eq!((never.allowed, never.retry_after), (false, None));
    }
}

#[tokio::test]
async fn a_check_denies_and_counts_nothing() {
    for (has, _server, limiter) in each().await {
        let check = || ("{o}:quota", Rule::from(Rule::sliding("2/minute").unwrap().cost(0)));
        let count = || ("{o}:log", Rule::from(Rule::sliding("9/minute").unwrap()));
        for used in 1..=3 {
            let decision = limiter.all([check(), count()]).await.unwrap();
            assert_eq!(
                (decision.allowed, decision.each()[0].used, decision.each()[1].used),
                (true, 0, used),
                "{has:?}"
            );
        }
        let _ = limiter.hit("{o}:quota", Rule::sliding("2/minute").unwrap().cost(2)).await.unwrap();
        let decision = limiter.all([check(), count()]).await.unwrap();
        assert_eq!((decision.allowed, decision.index, decision.each()[1].used), (false, 0, 3), "{has:?}");
        assert_eq!(decision.retry_after, Some(ms(60_000)), "{has:?}");
    }
}

#[tokio::test]
async fn the_three_modes_give_the_same_answers() {
    let each = each().await;
    for step in 0..120_i64 {
        let mut answers = Vec::new();
        for (has, server, limiter) in &each {
            server.set_time(T0 + step * 377).await;
            answers.push((has, turn(limiter, step.unsigned_abs()).await));
        }
        let (_, expected) = &answers[0];
        for (has, answer) in &answers[1..] {
            assert_eq!(answer, expected, "{has:?} at step {step}");
        }
    }
}

/// One of a mixed lot of calls, with whatever it answers.
async fn turn(limiter: &Limiter, step: u64) -> String {
    let key = format!("{{k}}{}", step % 3);
    let weight = step % 7 + 1;
    let sliding = Rule::sliding("4/s, 20/10s").unwrap();
    let fixed = Rule::fixed("9/5s").unwrap();
    let throttle = Rule::throttle("5/10s").unwrap().burst(3);
    let lease = Rule::lease(2, Duration::from_secs(3)).unwrap().holder(format!("h{}", step % 5));
    match step % 13 {
        0 | 1 => format!("{:?}", limiter.hit(format!("{key}s"), &sliding).await),
        2 => format!("{:?}", limiter.hit(format!("{key}s"), sliding.cost(weight)).await),
        3 => format!("{:?}", limiter.hit(format!("{key}s"), sliding.cost(weight).force()).await),
        4 => format!("{:?}", limiter.hit(format!("{key}f"), fixed).await),
        5 => format!("{:?}", limiter.hit(format!("{key}f"), fixed.anchored().cost(weight)).await),
        6 => format!("{:?}", limiter.hit(format!("{key}t"), throttle.cost(weight)).await),
        7 => format!("{:?}", limiter.hit(format!("{key}l"), lease).await),
        8 => format!("{:?}", limiter.peek(format!("{key}f"), fixed.cost(0)).await),
        9 => format!("{:?}", limiter.refund(format!("{key}s"), sliding.cost(weight)).await),
        10 => format!("{:?}", limiter.release(format!("{key}l"), ["h1", "h2", "h2"]).await),
        11 => {
            let rules: [(String, Rule); 4] = [
                (format!("{key}s"), sliding.cost(weight).into()),
                (format!("{key}f"), fixed.into()),
                (format!("{key}t"), throttle.into()),
                (format!("{key}l"), lease.into()),
            ];
            format!("{:?}", limiter.all(rules).await)
        }
        _ => format!("{:?}", limiter.reset(format!("{key}f"), fixed).await),
    }
}

#[tokio::test]
async fn refusals_are_the_servers_own_words() {
    for (_, server, limiter) in each().await {
        let _: () = server.run("LPUSH list x").await;
        let rule = Rule::sliding("5/minute").unwrap();
        let Err(Error::Refused(error)) = limiter.hit("list", &rule).await else { panic!("a list is no log") };
        assert_eq!(error.code(), Some("WRONGTYPE"));
        let twice = [("k", Rule::from(&rule)), ("k", Rule::from(&rule))];
        let Err(Error::Refused(error)) = limiter.all(twice).await else { panic!("a key was taken twice") };
        assert_eq!(error.detail(), Some("RL.ALL takes each key once"));
        assert!(matches!(limiter.hit("k", rule.clone().cost(0)).await, Err(Error::Invalid(_))));
        assert!(matches!(limiter.release("k", [""; 0]).await, Err(Error::Invalid(_))));
        let none: [(&str, Rule); 0] = [];
        assert!(matches!(limiter.all(none).await, Err(Error::Invalid(_))));
        // Any bytes are a key.
        assert!(limiter.hit(b"\xff\0 {", &rule).await.unwrap().allowed);
    }
}
