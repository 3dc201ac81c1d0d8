//! Three primaries, and where it matters a replica of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redis::ProtocolVersion;
use redis::cluster::ClusterClient;
use redis::cluster_read_routing::RandomReplicaStrategy;
use redis_rl_client::{Connection, Error, Limiter, Options, Rule};

use crate::support::{Has, Server, free_port, patient, until};

struct Cluster {
    /// The primaries, then their replicas.
    nodes: Vec<Server>,
    ids: Vec<String>,
}

impl Cluster {
    async fn start(has: Has, replicas: bool) -> Self {
        let mut nodes = Vec::new();
        let mut buses = Vec::new();
        for _ in 0..if replicas { 6 } else { 3 } {
            let bus = free_port().to_string();
            let mut arguments = has.arguments();
            let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "30000"];
            arguments.extend(cluster.map(str::to_owned));
            arguments.extend(["--repl-diskless-sync-delay", "0"].map(str::to_owned));
            nodes.push(Server::with(&arguments, None).await);
            buses.push(bus);
        }
        let mut ids = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            ids.push(node.run::<String>("CLUSTER MYID").await);
            if let Some((first, last)) = [(0, 5460), (5461, 10922), (10923, 16383)].get(index) {
                let _: () = node.run(&format!("CLUSTER ADDSLOTSRANGE {first} {last}")).await;
                let _: () = node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).await;
            }
            if index > 0 {
                let meet = format!("CLUSTER MEET 127.0.0.1 {} {}", node.port, buses[index]);
                let _: () = nodes[0].run(&meet).await;
            }
        }
        for (index, node) in nodes.iter().enumerate().skip(3) {
            let follow = format!("CLUSTER REPLICATE {}", ids[index - 3]);
            until("a replica finds its primary", || async { node.try_run::<()>(&follow).await.is_ok() }).await;
        }
        for node in &nodes {
            let known = format!("cluster_known_nodes:{}", nodes.len());
            until("a node sees the cluster working", || async {
                let info: String = node.run("CLUSTER INFO").await;
                info.contains("cluster_state:ok") && info.contains(&known)
            })
            .await;
            // A replica is listed once it has been heard of with data.
            until("a node names all nodes to clients", || async {
                let slots: Vec<Vec<redis::Value>> = node.run("CLUSTER SLOTS").await;
                slots.iter().map(|range| range.len() - 2).sum::<usize>() == nodes.len()
            })
            .await;
        }
        for node in &nodes[3..] {
            until("a replica is in step", || async {
                node.run::<String>("INFO replication").await.contains("master_link_status:up")
            })
            .await;
        }
        Self { nodes, ids }
    }

    fn client(&self) -> redis::cluster::ClusterClientBuilder {
        let urls = self.nodes.iter().map(Server::url);
        ClusterClient::builder(urls.collect::<Vec<_>>())
            .min_retry_wait(1)
            .max_retry_wait(20)
            .response_timeout(Duration::from_secs(60))
            .connection_timeout(Duration::from_secs(20))
    }

    async fn limiter(&self) -> Limiter {
        self.limiter_of(self.client().build().unwrap())
    }

    fn limiter_of(&self, connection: impl Into<Connection>) -> Limiter {
        Limiter::with_options(connection, patient(Options::default()))
    }

    async fn errors(&self, code: &str) -> u64 {
        let mut count = 0;
        for node in &self.nodes {
            count += node.errors(code).await;
        }
        count
    }

    fn owner(slot: u64) -> usize {
        usize::from(slot > 5460) + usize::from(slot > 10922)
    }
}

fn all(tag: usize) -> [(String, Rule); 3] {
    [
        (format!("{{{tag}}}:rpm"), Rule::sliding("500/minute").unwrap().into()),
        (format!("{{{tag}}}:tpm"), Rule::fixed("2000/hour").unwrap().cost(18).into()),
        (format!("{{{tag}}}:busy"), Rule::lease(16, Duration::from_secs(120)).unwrap().holder("me").into()),
    ]
}

#[tokio::test]
async fn every_call_goes_to_the_right_node_at_once() {
    for has in Has::EACH {
        let cluster = Cluster::start(has, false).await;
        let plain = cluster.client().use_protocol(ProtocolVersion::RESP3).build().unwrap();
        let limiters = [cluster.limiter().await, cluster.limiter_of(plain)];
        let sliding = Rule::sliding("100/minute").unwrap();
        for limiter in limiters {
            for tag in 0..30 {
                let decision = limiter.all(all(tag)).await.unwrap();
                assert!(decision.allowed, "{has:?}");
                assert!(limiter.hit(format!("k{tag}"), &sliding).await.unwrap().allowed);
                assert!(limiter.hit(format!("k{tag}"), Rule::fixed("9/hour").unwrap()).await.unwrap().allowed);
                assert_eq!(limiter.refund(format!("k{tag}"), &sliding).await.unwrap().refunded, 1);
                assert!(limiter.peek(format!("k{tag}"), &sliding).await.unwrap().allowed);
                assert_eq!(limiter.release(format!("{{{tag}}}:busy"), ["me"]).await.unwrap(), 1);
                // Where each of the keys is looked for by itself, it is found.
                let requests = Rule::sliding("500/minute").unwrap().cost(0);
                let used = limiter.peek(format!("{{{tag}}}:rpm"), requests).await.unwrap().used;
                assert_eq!(used, decision.each()[0].used);
            }
            assert_eq!(limiter.mode(), Some(has.mode()));
        }
        assert_eq!(cluster.errors("MOVED").await, 0, "{has:?}");
        let wrong = cluster.limiter().await.all([("a", sliding.clone().into()), ("b", sliding.into())]).await;
        let Err(Error::Refused(error)) = wrong else { panic!("two slots in one call: {wrong:?}") };
        assert_eq!(error.code(), Some("CROSSSLOT"));
    }
}

#[tokio::test]
async fn a_slot_that_moves_is_waited_for() {
    let cluster = Cluster::start(Has::Module, false).await;
    let key = "moving";
    let slot: u64 = cluster.nodes[0].run(&format!("CLUSTER KEYSLOT {key}")).await;
    let from = Cluster::owner(slot);
    let to = (from + 1) % 3;
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let limiter = cluster.limiter().await;
    let rule = Rule::fixed("100/hour").unwrap();
    assert!(limiter.hit("other", &rule).await.unwrap().allowed);
    let _: () = target.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.ids[from])).await;
    let _: () = source.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.ids[to])).await;

    // A key that is not there yet: the source points to the target, where the limiter follows.
    let sliding = Rule::sliding("100/minute").unwrap();
    assert!(limiter.hit(key, &sliding).await.unwrap().allowed);
    assert_eq!(target.run::<u64>(&format!("CLUSTER COUNTKEYSINSLOT {slot}")).await, 1);

    // Two keys of which the source still has one: neither node can answer.
    let two = [
        (format!("{{{key}}}:a"), Rule::from(Rule::sliding("9/hour").unwrap())),
        (format!("{{{key}}}:b"), Rule::from(Rule::sliding("9/hour").unwrap())),
    ];
    let _: () = source.run(&format!("CLUSTER SETSLOT {slot} STABLE")).await;
    assert!(limiter.hit(format!("{{{key}}}:a"), Rule::sliding("9/hour").unwrap()).await.unwrap().allowed);
    let _: () = source.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.ids[to])).await;

    let client = cluster.client().build().unwrap();
    let hasty = Limiter::with_options(client.clone(), Options::default().timeout(Duration::from_secs(3)));
    let refused = hasty.all(two.clone()).await;
    let Err(Error::Unavailable(error)) = refused else { panic!("half of the keys are there: {refused:?}") };
    assert_eq!(error.code(), Some("TRYAGAIN"));

    let before = cluster.errors("TRYAGAIN").await;
    assert!(before > 1, "asked again until the deadline");
    let patient = cluster.limiter_of(client);
    let waiting = tokio::spawn(async move { patient.all(two).await });
    until("the call is asked again", || async { cluster.errors("TRYAGAIN").await >= before + 3 }).await;
    let moved = format!("MIGRATE 127.0.0.1 {} {{{key}}}:a 0 60000", target.port);
    let _: redis::Value = source.run(&moved).await;
    for node in [target, source] {
        let _: () = node.run(&format!("CLUSTER SETSLOT {slot} NODE {}", cluster.ids[to])).await;
    }
    let decision = waiting.await.unwrap().unwrap();
    assert!(decision.allowed);
    assert_eq!((decision.each()[0].used, decision.each()[1].used), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_follows_a_slot_that_moves() {
    let cluster = Cluster::start(Has::Module, false).await;
    let slot: u64 = cluster.nodes[0].run("CLUSTER KEYSLOT hot").await;
    follow(&cluster, slot, &cluster.nodes[(Cluster::owner(slot) + 1) % 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_follows_a_slot_to_a_node_that_is_new() {
    let cluster = Cluster::start(Has::Module, false).await;
    let slot: u64 = cluster.nodes[0].run("CLUSTER KEYSLOT hot").await;
    let bus = free_port().to_string();
    let mut arguments = Has::Module.arguments();
    arguments.extend(["--cluster-enabled", "yes", "--cluster-port", &bus].map(str::to_owned));
    let new = Server::with(&arguments, None).await;
    let _: () = cluster.nodes[0].run(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", new.port)).await;
    for node in cluster.nodes.iter().chain([&new]) {
        until("all know each other", || async {
            let info: String = node.run("CLUSTER INFO").await;
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:4")
        })
        .await;
    }
    follow(&cluster, slot, &new).await;
}

/// A hot key whose slot moves: calls may fail for a moment, and are decided again soon after.
async fn follow(cluster: &Cluster, slot: u64, target: &Server) {
    const CALLERS: usize = 64;
    let from = Cluster::owner(slot);
    let (source, to) = (&cluster.nodes[from], target.run::<String>("CLUSTER MYID").await);
    let urls: Vec<String> = cluster.nodes.iter().map(Server::url).collect();
    let limiter = Limiter::new(ClusterClient::new(urls).unwrap());
    let rule = Rule::sliding("1000000/hour").unwrap();
    until("it is connected", || async { limiter.hit("hot", &rule).await.is_ok() }).await;
    let (decided, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (limiter, rule) = (limiter.clone(), rule.clone());
            let (decided, stop) = (Arc::clone(&decided), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    match limiter.hit("hot", &rule).await {
                        Ok(_) => drop(decided.fetch_add(1, Relaxed)),
                        Err(error) if error.is_unavailable() => tokio::time::sleep(Duration::from_millis(5)).await,
                        Err(error) => panic!("{error:?}"),
                    }
                }
            })
        })
        .collect();
    until("the key is hot", || async { decided.load(Relaxed) > 5000 }).await;
    let _: () = target.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.ids[from])).await;
    let _: () = source.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {to}")).await;
    let _: String = source.run(&format!("MIGRATE 127.0.0.1 {} hot 0 5000", target.port)).await;
    for node in [target, source] {
        let _: () = node.run(&format!("CLUSTER SETSLOT {slot} NODE {to}")).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = decided.load(Relaxed);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let later = decided.load(Relaxed) - before;
    stop.store(true, Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert!(later > 500, "{later} calls a second are decided");
}

#[tokio::test]
async fn peeks_go_to_replicas_where_the_client_reads_from_them() {
    for has in Has::EACH {
        let cluster = Cluster::start(has, true).await;
        let peeks = async |replicas: bool| {
            let mut count = 0;
            for node in if replicas { &cluster.nodes[3..] } else { &cluster.nodes[..3] } {
                for command in ["rl.peek", "fcall_ro", "evalsha_ro", "eval_ro"] {
                    count += node.calls(command).await;
                }
            }
            count
        };
        let rule = Rule::sliding("100/minute").unwrap();
        let limiter = cluster.limiter().await;
        for key in 0..12 {
            let _ = limiter.hit(format!("k{key}"), &rule).await.unwrap();
            assert_eq!(limiter.peek(format!("k{key}"), rule.clone().cost(0)).await.unwrap().used, 1);
        }
        assert_eq!(peeks(true).await, 0, "{has:?}");
        assert!(peeks(false).await >= 12, "{has:?}");
        let (primaries, client) =
            (peeks(false).await, cluster.client().read_routing_strategy(RandomReplicaStrategy).build().unwrap());
        let limiter = cluster.limiter_of(client);
        for key in 0..12 {
            let peek = async || limiter.peek(format!("k{key}"), rule.clone().cost(0)).await.unwrap();
            until("the replica has it", || async { peek().await.used == 1 }).await;
            assert!(limiter.hit(format!("k{key}"), &rule).await.unwrap().allowed);
        }
        assert_eq!(peeks(false).await, primaries, "{has:?}");
        assert!(peeks(true).await >= 12, "{has:?}");
    }
}

#[tokio::test]
async fn a_library_that_a_node_lacks_is_loaded_there() {
    let cluster = Cluster::start(Has::Functions, false).await;
    let limiter = cluster.limiter().await;
    let rule = Rule::sliding("100/minute").unwrap();
    for key in 0..20 {
        let _ = limiter.hit(format!("k{key}"), &rule).await.unwrap();
    }
    // As a shard that has just joined.
    let _: () = cluster.nodes[1].run("FUNCTION FLUSH").await;
    for key in 0..20 {
        assert_eq!(limiter.hit(format!("k{key}"), &rule).await.unwrap().used, 2);
    }
    for node in &cluster.nodes {
        assert_eq!(node.run::<Vec<redis::Value>>("FUNCTION LIST").await.len(), 1);
    }
}

#[tokio::test]
async fn a_broken_connection_is_made_anew() {
    let cluster = Cluster::start(Has::Module, false).await;
    let client = cluster.client().use_protocol(ProtocolVersion::RESP3).build().unwrap();
    let limiter = cluster.limiter_of(client);
    let rule = Rule::sliding("1000000/hour").unwrap();
    let _ = limiter.hit("k", &rule).await.unwrap();
    for node in &cluster.nodes {
        let _: u64 = node.run("CLIENT KILL TYPE normal SKIPME yes").await;
    }
    // A call may have been under way in the eyes of the client: that is told, once for each node at most.
    until("calls are answered again", || async {
        match limiter.hit("k", &rule).await {
            Ok(decision) => decision.allowed,
            Err(Error::ReplyLost(_)) => false,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
}

/// One shard of three hangs: calls about its keys fail in time, all others are decided.
#[tokio::test]
async fn a_node_that_hangs_is_one_of_three() {
    let cluster = Cluster::start(Has::Module, false).await;
    let client = cluster.client().response_timeout(Duration::from_millis(500)).build().unwrap();
    let options = Options::default().timeout(Duration::from_millis(500));
    let limiter = Limiter::with_options(client, options);
    let rule = Rule::sliding("1000/hour").unwrap();
    until("it is connected", || async { limiter.hit("k0", &rule).await.is_ok() }).await;
    let mut keys = Vec::new();
    for key in (0..30).map(|key| format!("k{key}")) {
        let slot = cluster.nodes[0].run::<u64>(&format!("CLUSTER KEYSLOT {key}")).await;
        until("each key is decided on", || async { limiter.hit(&key, &rule).await.is_ok() }).await;
        keys.push((key, Cluster::owner(slot)));
    }
    cluster.nodes[1].hang();
    let started = std::time::Instant::now();
    let calls: Vec<_> = keys
        .into_iter()
        .map(|(key, owner)| {
            let (limiter, rule) = (limiter.clone(), rule.clone());
            tokio::spawn(async move { (owner, limiter.hit(key, &rule).await) })
        })
        .collect();
    let mut seen = [0; 2];
    for call in calls {
        match call.await.unwrap() {
            (1, Err(error)) if error.is_unavailable() => seen[0] += 1,
            (0 | 2, Ok(decision)) if decision.allowed => seen[1] += 1,
            (owner, other) => panic!("the node {owner}: {other:?}"),
        }
    }
    assert!(seen[0] > 3 && seen[1] > 10, "{seen:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    cluster.nodes[1].resume();
}
