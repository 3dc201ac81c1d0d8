//! A private cluster: three primaries with a replica each, on the real clock.

use std::time::{Duration, Instant};

use redis::cluster::{ClusterClient, ClusterConnection};

use super::server::free_port;
use super::{Client, Engine, Options, PATIENCE, Server};

/// How many primaries there are at the start. The replica of primary *i* is node *i* + 3.
pub const PRIMARIES: usize = 3;

const SLOTS: usize = 16384;

pub struct Cluster {
    /// `None` for a node that has crashed.
    nodes: Vec<Option<Server>>,
    ids: Vec<String>,
}

impl Cluster {
    pub fn start(engine: &Engine) -> Self {
        let (nodes, buses): (Vec<_>, Vec<_>) = (0..2 * PRIMARIES).map(|_| start_node(engine)).unzip();
        let ids = nodes.iter().map(|node| node.client().run(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { nodes: nodes.into_iter().map(Some).collect(), ids };

        for (node, server) in cluster.running() {
            let mut client = server.client();
            if node < PRIMARIES {
                let first = (node * SLOTS).div_ceil(PRIMARIES).to_string();
                let last = (((node + 1) * SLOTS).div_ceil(PRIMARIES) - 1).to_string();
                client.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
                // A different epoch each, or the nodes would have to agree on them first.
                client.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(node + 1).to_string()]);
            }
            if node > 0 {
                let (port, bus) = (server.port.to_string(), buses[node].to_string());
                cluster.client(0).run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        for node in PRIMARIES..2 * PRIMARIES {
            let mut client = cluster.client(node);
            let primary = cluster.id(node - PRIMARIES);
            // Refused until the two nodes know each other.
            until("a replica finds its primary", || client.try_run::<()>(&["CLUSTER", "REPLICATE", primary]).is_ok());
        }
        cluster.settled();
        cluster
    }

    /// Waits until every node that runs sees a cluster that works, and every replica follows its primary.
    pub fn settled(&self) {
        for (node, server) in self.running() {
            let mut client = server.client();
            until("a node sees the cluster working", || {
                let info: String = client.run(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:6")
            });
            if node >= PRIMARIES {
                until("a replica is linked", || {
                    let info: String = client.run(&["INFO", "replication"]);
                    info.contains("role:master") || info.contains("master_link_status:up")
                });
            }
        }
        // Every node knows the same owners of all slots.
        let replicas = self.running().filter(|(_, server)| !is_primary(&mut server.client())).count();
        for (_, server) in self.running() {
            let mut client = server.client();
            until("a node knows the replicas", || {
                let nodes: String = client.run(&["CLUSTER", "NODES"]);
                // "slave -" is a replica whose primary this node does not know yet. Such a primary sends it no slot moves.
                let known = |line: &&str| line.contains("slave") && !line.contains("slave -") && !line.contains("fail");
                nodes.lines().filter(known).count() == replicas
            });
        }
    }

    /// The nodes that run, with their numbers.
    pub fn running(&self) -> impl Iterator<Item = (usize, &Server)> {
        self.nodes.iter().enumerate().filter_map(|(number, node)| Some((number, node.as_ref()?)))
    }

    pub fn node(&self, node: usize) -> &Server {
        self.nodes[node].as_ref().expect("a node that runs")
    }

    /// A connection to one node, which follows no redirections.
    pub fn client(&self, node: usize) -> Client {
        self.node(node).client()
    }

    /// A client of the whole cluster, which follows `MOVED` and `ASK`.
    pub fn connect(&self) -> ClusterConnection {
        let urls = self.running().map(|(_, server)| format!("redis://127.0.0.1:{}", server.port));
        // By default it waits for seconds between two tries.
        let builder = ClusterClient::builder(urls).retries(8).min_retry_wait(1).max_retry_wait(10);
        let client = builder.build().expect("a cluster client");
        client.get_connection().expect("a connection to the cluster")
    }

    /// The name that the cluster calls a node by.
    pub fn id(&self, node: usize) -> &str {
        &self.ids[node]
    }

    /// The primary that has a slot at the start.
    pub fn first_owner(&self, slot: usize) -> usize {
        slot * PRIMARIES / SLOTS
    }

    /// Sets a directive on every node that runs.
    pub fn configure(&self, directive: &str, value: &str) {
        for (_, server) in self.running() {
            server.client().run::<()>(&["CONFIG", "SET", directive, value]);
        }
    }

    /// Ends a node with SIGKILL.
    pub fn crash(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    /// Has a replica take over from a live primary. A server gives up if it takes long, so it is asked again.
    pub fn give_way_to(&self, node: usize) {
        let mut client = self.client(node);
        until("a replica takes over by hand", || {
            is_primary(&mut client) || {
                let _ = client.try_run::<()>(&["CLUSTER", "FAILOVER"]); // Refused where it is one already.
                std::thread::sleep(Duration::from_secs(1));
                false
            }
        });
        self.promoted(node);
    }

    /// Waits until a replica has taken its primary's place and serves.
    pub fn promoted(&self, node: usize) {
        let mut client = self.client(node);
        until("a replica takes over", || {
            is_primary(&mut client) && client.run::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
        });
    }
}

fn is_primary(client: &mut Client) -> bool {
    client.info_field("replication", "role").trim_end() == "master"
}

/// A node, and its port on the cluster's bus.
fn start_node(engine: &Engine) -> (Server, u16) {
    let mut tries = 5;
    loop {
        // The bus's port would be 10000 above the node's, which may be taken, or no port at all.
        let bus = free_port();
        let options = Options::default().with(&[
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &bus.to_string(),
            // A slow machine must not look like a node that is down. Tests of a crash set it lower.
            "--cluster-node-timeout",
            "30000",
            // A replica may always take over, however long its link to the primary was down.
            "--cluster-replica-validity-factor",
            "0",
            "--repl-diskless-sync-delay",
            "0",
        ]);
        tries -= 1;
        match Server::try_start(engine, &options) {
            Ok(server) => return (server, bus),
            Err(log) if tries == 0 => panic!("{} does not start as a node:\n{log}", engine.name),
            Err(_) => {}
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "the cluster did not come to this: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
