//! How the mode is found, kept, and found again.

use redis_rl_client::{Error, Limiter, Mode, Options, Rule, redis};

use crate::support::{Has, Server, until};

#[tokio::test]
async fn one_probe_is_enough() {
    let each = [(Has::Module, "rl.sliding", 0), (Has::Functions, "fcall", 2), (Has::Script, "evalsha", 3)];
    for (has, command, probes) in each {
        let server = Server::start(has).await;
        let limiter = server.limiter().await;
        let rule = Rule::sliding("100/minute").unwrap();
        assert_eq!(limiter.mode(), None);
        let failed = async || server.errors("ERR").await + server.errors("NOSCRIPT").await;
        // Connecting may be answered with errors as well: CLIENT SETINFO by Redis 7.0.
        let first = failed().await;
        let _other = server.connection().await;
        let before = 2 * failed().await - first;
        for used in 1..=10 {
            assert_eq!(limiter.clone().hit("k", &rule).await.unwrap().used, used);
        }
        assert_eq!(limiter.mode(), Some(has.mode()));
        assert_eq!(failed().await - before, probes, "{has:?}");
        assert!((10..=11).contains(&server.calls(command).await), "{has:?}");
        if has == Has::Functions {
            assert_eq!(server.calls("function|load").await, 1);
        }
    }
}

#[tokio::test]
async fn a_mode_that_is_gone_is_found_anew() {
    let server = Server::start(Has::Functions).await;
    let limiter = server.limiter().await;
    let rule = Rule::fixed("100/minute").unwrap();
    let used = async || limiter.hit("k", &rule).await.unwrap().used;
    assert_eq!((used().await, limiter.mode()), (1, Some(Mode::Functions)));
    // As after a failover to a server without the library.
    let _: () = server.run("FUNCTION FLUSH").await;
    assert_eq!((used().await, limiter.mode()), (2, Some(Mode::Functions)));
    // As after one to a server with the module and without the library.
    let _: () = server.run("FUNCTION FLUSH").await;
    let module = Has::Module.arguments().pop().unwrap();
    let _: () = server.run(&format!("MODULE LOAD {module}")).await;
    assert_eq!((used().await, limiter.mode()), (3, Some(Mode::Functions)));
    let again = server.limiter().await;
    assert_eq!(again.hit("k", &rule).await.unwrap().used, 4);
    assert_eq!(again.mode(), Some(Mode::Module));
}

#[tokio::test]
async fn a_script_that_is_gone_is_sent_again() {
    let server = Server::start(Has::Script).await;
    let limiter = server.limiter().await;
    let rule = Rule::fixed("100/minute").unwrap();
    for used in 1..=3 {
        assert_eq!(limiter.peek("k", rule.clone().cost(0)).await.unwrap().used, used - 1);
        assert_eq!(limiter.hit("k", &rule).await.unwrap().used, used);
        let _: () = server.run("SCRIPT FLUSH").await;
    }
}

#[tokio::test]
async fn the_library_is_loaded_only_with_leave() {
    let server = Server::start(Has::Functions).await;
    let rule = Rule::sliding("100/minute").unwrap();
    // Who may not load it calls the script, unless the mode is fixed.
    let _: () = server.run("ACL SETUSER caller on >secret ~* +@all -function|load").await;
    let url = format!("redis://caller:secret@127.0.0.1:{}", server.port);
    let limiter = Limiter::open(&url).unwrap();
    assert!(limiter.hit("k", &rule).await.unwrap().allowed);
    assert_eq!(limiter.mode(), Some(Mode::Script));
    assert_eq!(server.run::<Vec<String>>("FUNCTION LIST").await.len(), 0);

    let client = redis::Client::open(url).unwrap();
    let limiter = Limiter::with_options(client, Options::default().mode(Mode::Functions));
    assert!(matches!(limiter.hit("k", &rule).await, Err(Error::Refused(_))));
    let limiter = server.limiter_with(Options::default().mode(Mode::Module)).await;
    assert!(matches!(limiter.hit("k", &rule).await, Err(Error::Refused(_))));
    // A user who may not call functions may still call scripts.
    let _: () = server.run("ACL SETUSER app on >secret ~* +@all -fcall -fcall_ro -function").await;
    let url = format!("redis://app:secret@127.0.0.1:{}", server.port);
    let limiter = Limiter::open(&url).unwrap();
    assert_eq!(limiter.hit("k", &rule).await.unwrap().used, 2);
    assert_eq!(limiter.mode(), Some(Mode::Script));
    // One who may not load functions may call those that are there.
    let admin = server.limiter_with(Options::default().mode(Mode::Functions)).await;
    assert_eq!(admin.hit("k", &rule).await.unwrap().used, 3);
    let _: () = server.run("ACL SETUSER app +fcall +fcall_ro").await;
    let limiter = Limiter::open(&url).unwrap();
    assert_eq!(limiter.hit("k", &rule).await.unwrap().used, 4);
    assert_eq!(limiter.mode(), Some(Mode::Functions));
}

#[tokio::test]
async fn keys_get_their_prefix() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter_with(Options::default().prefix("app:")).await;
    let rule = Rule::sliding("100/minute").unwrap();
    let _ = limiter.hit("k", &rule).await.unwrap();
    let _ = limiter.all([("a", (&rule).into()), ("b", (&rule).into())]).await.unwrap();
    assert_eq!(server.run::<u64>("EXISTS app:k app:a app:b").await, 3);
    assert_eq!(server.run::<u64>("DBSIZE").await, 3);
}

#[tokio::test]
async fn an_older_library_is_replaced_and_a_newer_one_never() {
    let source = concat!(
        include_str!("../../functions/library.head.lua"),
        include_str!("../../functions/core.lua"),
        include_str!("../../functions/library.tail.lua"),
    );
    let version =
        source.lines().find(|line| line.starts_with("-- Version ")).expect("the library's version").to_owned();
    for mode in [Mode::Auto, Mode::Functions] {
        for (other, replaced) in [("-- As it once was", true), ("-- Version 99999", false)] {
            let server = Server::start(Has::Functions).await;
            let mut connection = server.connection().await;
            let theirs = source.replace(&version, other);
            let _: String = redis::cmd("FUNCTION").arg("LOAD").arg(theirs).query_async(&mut connection).await.unwrap();
            let limiter = server.limiter_with(Options::default().mode(mode)).await;
            let rule = Rule::fixed("100/minute").unwrap();
            assert_eq!(limiter.hit("k", &rule).await.unwrap().used, 1);
            let has = async |line: &str| {
                let code = format!("{:?}", server.run::<redis::Value>("FUNCTION LIST WITHCODE").await);
                code.contains(&format!("{line}\\n"))
            };
            if replaced {
                until("it is replaced", || has(&version)).await;
            } else {
                until("it was asked for its version", || async { server.calls("function|list").await >= 1 }).await;
                assert_eq!(limiter.hit("k", &rule).await.unwrap().used, 2);
                assert!(has(other).await);
            }
            assert_eq!(limiter.hit("other", &rule).await.unwrap().used, 1);
        }
    }
}
