//! A primary that sentinels name, and a failover.

use std::time::Duration;

use redis_rl_client::redis::sentinel::{SentinelClient, SentinelServerType};
use redis_rl_client::{Limiter, Options, Rule, redis};

use crate::support::{Has, Server, until};

#[tokio::test]
async fn calls_follow_a_failover() {
    let primary = Server::start(Has::Module).await;
    let replica = Server::start(Has::Module).await;
    let _: () = replica.run(&format!("REPLICAOF 127.0.0.1 {}", primary.port)).await;
    until("the replica is in step", || async {
        replica.run::<String>("INFO replication").await.contains("master_link_status:up")
    })
    .await;
    let sentinel = Server::sentinel(primary.port).await;
    let client =
        SentinelClient::build(vec![sentinel.url()], "limits".to_owned(), None, SentinelServerType::Master).unwrap();
    let limiter = Limiter::with_options(client, Options::default().timeout(Duration::from_secs(60)));
    let rule = Rule::sliding("100/hour").unwrap();
    assert_eq!(limiter.hit("k", &rule).await.unwrap().used, 1);
    until("the replica has it", || async { replica.run::<u64>("EXISTS k").await == 1 }).await;
    until("the sentinel knows the replica", || async {
        sentinel.try_run::<redis::Value>("SENTINEL FAILOVER limits").await.is_ok()
    })
    .await;
    until("the replica is the primary", || async { role(&replica).await == "master" }).await;
    until("the old primary is a replica", || async { role(&primary).await == "slave" }).await;
    // Refused by the replica, or broken by it, once; then by way of the sentinel.
    until("calls are answered", || async { limiter.hit("k", &rule).await.is_ok_and(|decision| decision.used >= 2) })
        .await;
    assert_eq!(role(&replica).await, "master");
    let mut connection = replica.connection().await;
    let members: u64 = redis::cmd("STRLEN").arg("k").query_async(&mut connection).await.unwrap();
    assert!(members > 0, "counted elsewhere");
}

/// Over a connection of its own, as a failover closes those that are there, also while they are being made.
async fn role(server: &Server) -> String {
    let Ok(mut connection) = server.try_connect().await else { return String::new() };
    let reply = redis::cmd("ROLE").query_async::<Vec<redis::Value>>(&mut connection).await;
    let role = reply.ok().and_then(|reply| redis::from_redis_value(reply.into_iter().next()?).ok());
    role.unwrap_or_default()
}
