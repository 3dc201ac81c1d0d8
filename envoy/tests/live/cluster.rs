//! Three primaries of a Redis Cluster.

use crate::support::{Redis, Service, descriptor, free_port, module, request, said, until};

const CONFIG: &str = "
domain: d
descriptors:
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: five, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: ten, rate_limit: {unit: day, requests_per_unit: 10}}
";

async fn start() -> Vec<Redis> {
    let (module, mut nodes) = (module(), Vec::<Redis>::new());
    for (number, (first, last)) in [("0", "5460"), ("5461", "10922"), ("10923", "16383")].into_iter().enumerate() {
        let bus = free_port().to_string();
        let node = Redis::start(&["--loadmodule", &module, "--cluster-enabled", "yes", "--cluster-port", &bus]);
        node.ask(&["CLUSTER", "ADDSLOTSRANGE", first, last]).unwrap();
        node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).unwrap();
        if let Some(known) = nodes.first() {
            known.ask(&["CLUSTER", "MEET", "127.0.0.1", &node.port.to_string(), &bus]).unwrap();
        }
        nodes.push(node);
    }
    for node in &nodes {
        until("the cluster is up", async || {
            let info = node.ask(&["CLUSTER", "INFO"]).unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        })
        .await;
    }
    nodes
}

fn keys(node: &Redis) -> usize {
    let keys = node.ask(&["KEYS", "*|*"]).unwrap();
    keys.trim_start_matches('*').split("\r\n").next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn limits_of_several_nodes_are_one_answer() {
    let nodes = start().await;
    let tagged = CONFIG.replace("domain: d", "domain: tagged\nhash_tag: true");
    let files = [("a.yaml", CONFIG), ("b.yaml", tagged.as_str())];
    let url = format!("127.0.0.1:{}", nodes[0].port);
    let variables = [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", url.as_str())];
    let mut service = Service::with_files(&nodes[0], &files, &variables).await;
    service.process.says("domains without one: d\"").await;
    // All keys of the tagged domain are on one node; those of the other are spread.
    for (domain, wanted) in [("tagged", 1), ("d", 3)] {
        for client in ["a", "b", "{c}", "d"] {
            let descriptors = ["one", "five", "ten"].map(|key| descriptor(&format!("{key}={client}")));
            let all = || request(domain, descriptors.clone());
            assert_eq!(said(&service.ask(all()).await.unwrap()), "OK: OK 0, OK 4, OK 9", "{domain} {client}");
            let denied = "OVER_LIMIT: OVER_LIMIT 0, OK 4, OK 9";
            assert_eq!(said(&service.ask(all()).await.unwrap()), denied, "{domain} {client}");
            assert_eq!(service.hit(domain, descriptor(&format!("five={client}"))).await, "OK 3", "{domain} {client}");
        }
        assert_eq!(nodes.iter().filter(|node| keys(node) > 0).count(), wanted, "{domain}");
        for node in &nodes {
            node.ask(&["FLUSHALL"]).unwrap();
        }
    }
}

#[tokio::test]
async fn a_node_that_is_gone_takes_only_its_limits_along() {
    let mut nodes = start().await;
    let url = format!("127.0.0.1:{},127.0.0.1:{}", nodes[0].port, nodes[1].port);
    let variables =
        [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", url.as_str()), ("REDIS_DEADLINE", "300ms"), ("LOG_LEVEL", "warn")];
    let mut service = Service::with_files(&nodes[0], &[("a.yaml", CONFIG)], &variables).await;
    // A client whose limit lies on each of the nodes.
    let mut clients = [const { None }; 3];
    for client in 0.. {
        let before: Vec<_> = nodes.iter().map(keys).collect();
        let client = format!("ten={client}");
        assert_eq!(service.hit("d", descriptor(&client)).await, "OK 9");
        let node = nodes.iter().zip(&before).position(|(node, before)| keys(node) > *before).unwrap();
        clients[node].get_or_insert(client);
        if clients.iter().all(Option::is_some) {
            break;
        }
    }
    let [first, _, last] = clients.map(Option::unwrap);
    // The other nodes need not agree that it is gone, and go on.
    nodes[2].kill();
    service.ask(request("d", [descriptor(&last)])).await.unwrap_err();
    assert_eq!(service.hit("d", descriptor(&first)).await, "OK 8");
    nodes[2].again();
    until("it is asked again", async || service.ask(request("d", [descriptor(&last)])).await.is_ok()).await;
}

/// What the other nodes have counted of a request that a node does not decide is given back.
#[tokio::test]
async fn what_a_node_does_not_decide_is_not_charged() {
    let mut nodes = start().await;
    let url = format!("127.0.0.1:{},127.0.0.1:{}", nodes[0].port, nodes[1].port);
    let variables =
        [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", url.as_str()), ("REDIS_DEADLINE", "300ms"), ("LOG_LEVEL", "warn")];
    let mut service = Service::start(&nodes[0], CONFIG, &variables).await;
    let eight = |number: usize| request("d", (0..8).map(|index| descriptor(&format!("ten={number}x{index}"))));
    service.ask(eight(1000)).await.unwrap();
    for node in &nodes {
        node.ask(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap();
        node.ask(&["FLUSHALL"]).unwrap();
    }
    nodes[2].kill();
    let mut undecided = 0;
    for number in 0..40 {
        undecided += usize::from(service.ask(eight(number)).await.is_err());
    }
    assert!(undecided > 20, "{undecided}");
    // Eight keys each of those that no limit on the third node had a part in.
    let decided = 8 * (40 - undecided as u64);
    // Of the others, what could not be given back is counted.
    let charged = || nodes[..2].iter().map(Redis::charged).sum::<u64>();
    until("the others are given back", async || charged() <= decided + service.undecided_units()).await;
    let log = service.process.log();
    assert!(log.lines().count() < 30, "{log}");
}

/// The hash of limits lies on one node, which any of them names.
#[tokio::test]
async fn limits_in_redis_are_found_on_their_node() {
    let nodes = start().await;
    let config = CONFIG.replace("domain: d", "domain: d\noverrides: limits");
    for node in &nodes {
        let url = format!("127.0.0.1:{}", node.port);
        let variables = [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", url.as_str())];
        let mut service = Service::start(node, &config, &variables).await;
        let field = format!("five={}", node.port);
        let set = nodes.iter().filter_map(|node| node.ask(&["HSET", "limits", &field, "7/day"]));
        assert_eq!(set.filter(|reply| reply.starts_with(":1")).count(), 1);
        let line = format!("d.{field}: unit=DAY requests_per_unit=7, overrides: limits");
        until("it is read", async || crate::support::http(service.debug, "GET", "/rlconfig", "").1.contains(&line))
            .await;
        assert_eq!(service.hit("d", descriptor(&field)).await, "OK 6");
    }
}

/// Nothing is there yet when another node gets the slot, so nothing is said of a change.
#[tokio::test]
async fn limits_in_redis_are_found_where_their_slot_has_gone() {
    let nodes = start().await;
    let config = CONFIG.replace("domain: d", "domain: d\noverrides: limits");
    let url = format!("127.0.0.1:{}", nodes[0].port);
    let variables = [("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", url.as_str())];
    let service = Service::start(&nodes[0], &config, &variables).await;
    let set = |rates: &str| {
        let replies = nodes.iter().map(|node| node.ask(&["HSET", "limits", "five=a", rates]).unwrap());
        replies.enumerate().find(|(_, reply)| reply.starts_with(':')).unwrap().0
    };
    let read = async |requests: u32| {
        let line = format!("d.five=a: unit=DAY requests_per_unit={requests}, overrides: limits");
        until("it is read", async || crate::support::http(service.debug, "GET", "/rlconfig", "").1.contains(&line))
            .await;
    };
    let first = set("7/day");
    read(7).await;
    nodes[first].ask(&["DEL", "limits"]).unwrap();
    until("it is gone", async || service.metric("redis_rl_overrides") == 0.0).await;
    let slot = nodes[0].ask(&["CLUSTER", "KEYSLOT", "limits"]).unwrap();
    let slot = slot.lines().next().unwrap().trim_start_matches(':').to_owned();
    let other = (first + 1) % nodes.len();
    let id = nodes[other].ask(&["CLUSTER", "MYID"]).unwrap().lines().nth(1).unwrap().to_owned();
    for node in [other, first, (first + 2) % nodes.len()] {
        nodes[node].ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]).unwrap();
    }
    assert_eq!(set("8/day"), other);
    read(8).await;
}
