//! Two services that use the commands, end to end. The requests that they allowed are counted in a log of their own, and not
//! by what the server says was used.
//!
//! The model gateway asks for requests a minute, tokens a minute and concurrency in one decision, settles what an answer
//! has really cost, and has clients that die. The API edge limits addresses, users and an organisation in a live cluster,
//! while their slot goes to another node and back.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use fastrand::Rng;
use redis::Value;

use super::waits::field;
use super::{START, eventually, frozen, seeded};
use crate::support::cluster::PRIMARIES;
use crate::support::server::error_line;
use crate::support::{Client, Cluster, Engine, Server};
use crate::tests;

tests![
    a_model_gateway_keeps_every_budget: both_storages,
    an_api_edge_keeps_every_limit_while_its_slot_moves: both_storages,
];

const MINUTE: i64 = 60_000;
const LEASE: i64 = 30_000;
const CUSTOMERS: usize = 200;
/// How long the gateway runs.
const UNTIL: i64 = START + 12 * MINUTE;

struct Customer {
    requests: i64,
    tokens: i64,
    at_once: i64,
    admitted: Vec<Admitted>,
    /// When, and how many tokens.
    forced: Vec<(i64, i64)>,
    denied: u64,
}

/// A request that was allowed.
struct Admitted {
    at: i64,
    /// What it was charged with, less what was paid back.
    tokens: i64,
    /// Until when its lease lives, as the client alone counts it.
    ends: i64,
}

/// What happens next, soonest first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask { customer: usize, tokens: i64, tries: u32 },
    Renew { customer: usize, request: usize },
    Finish { customer: usize, request: usize, cost: i64 },
}

struct Gateway {
    server: Server,
    client: Client,
    rng: Rng,
    seed: u64,
    now: i64,
    customers: Vec<Customer>,
    events: BinaryHeap<std::cmp::Reverse<(i64, Event)>>,
    paid_back: i64,
    died: u64,
}

impl Gateway {
    fn plan(&mut self, at: i64, event: Event) {
        self.events.push(std::cmp::Reverse((at, event)));
    }

    fn place(&self, customer: usize) -> String {
        format!("seed {}, at +{} ms, customer {customer}", self.seed, self.now - START)
    }

    fn ask(&mut self, customer: usize, tokens: i64, tries: u32) {
        let Customer { requests, tokens: budget, at_once, .. } = self.customers[customer];
        let request = self.customers[customer].admitted.len();
        let line = format!(
            "RL.ALL 3 {{c{customer}}}:rpm {{c{customer}}}:tpm {{c{customer}}}:busy SLIDING 60 {requests} \
             SLIDING 60 {budget} COST {tokens} ACQUIRE {at_once} {} r{request} FULL",
            LEASE / 1000
        );
        let Value::Array(reply) = self.client.call(&line) else { panic!("{line}") };
        let (place, now) = (self.place(customer), self.now);
        let customer_now = &mut self.customers[customer];
        // From the log alone: how much of each limit is used.
        let used = [
            customer_now.admitted.iter().filter(|admitted| admitted.at > now - MINUTE).count() as i64 + 1,
            customer_now.tokens_since(now - MINUTE) + tokens,
            customer_now.admitted.iter().filter(|admitted| admitted.ends > now).count() as i64 + 1,
        ];
        let over: Vec<usize> = (0..3).filter(|&rule| used[rule] > [requests, budget, at_once][rule]).collect();
        let [Value::Int(allowed), Value::Int(index), _, Value::Int(retry), Value::Array(maps)] = &reply[..] else {
            panic!("{place}: {reply:?}")
        };
        assert_eq!(*allowed == 1, over.is_empty(), "{place}: {line}: {reply:?}, and {used:?} by the log");
        for (rule, map) in maps.iter().enumerate() {
            assert_eq!(field(map, "allowed") == 1, !over.contains(&rule), "{place}: rule {rule} of {line}: {map:?}");
            assert_eq!(field(map, "at-ms"), now, "{place}");
        }
        if *allowed == 0 {
            assert!(over.contains(&(*index as usize)), "{place}: {index} does not deny: {used:?}");
            customer_now.denied += 1;
            let never = tokens > budget || requests == 0 || at_once == 0;
            assert_eq!(*retry == -1, never, "{place}: {reply:?}");
            if *retry > 0 && tries < 4 {
                self.plan(now + retry, Event::Ask { customer, tokens, tries: tries + 1 });
            }
            return;
        }
        customer_now.admitted.push(Admitted { at: now, tokens, ends: now + LEASE });
        let lasts =
            [self.rng.i64(50..3_000), self.rng.i64(50..20_000), self.rng.i64(20_000..70_000)][self.rng.usize(..3)];
        if self.rng.u32(..10) == 0 {
            self.died += 1; // Its lease ends by itself, and what it was charged with stays.
            return;
        }
        // Less than was thought, just that, or more.
        let cost = match self.rng.u32(..6) {
            0 => tokens,
            1 => tokens + self.rng.i64(1..=tokens),
            _ => self.rng.i64(0..=tokens),
        };
        for renewal in (1..).map(|number| number * LEASE / 2).take_while(|&after| after < lasts) {
            self.plan(now + renewal, Event::Renew { customer, request });
        }
        self.plan(now + lasts, Event::Finish { customer, request, cost });
    }

    fn renew(&mut self, customer: usize, request: usize) {
        let at_once = self.customers[customer].at_once;
        let line = format!("RL.ACQUIRE {{c{customer}}}:busy {at_once} {} r{request}", LEASE / 1000);
        let (allowed, held, _): (i64, i64, i64) = self.client.call(&line);
        let (place, now) = (self.place(customer), self.now);
        let customer = &mut self.customers[customer];
        assert_eq!(allowed, 1, "{place}: the holder of a lease may renew it");
        customer.admitted[request].ends = now + LEASE;
        assert_eq!(held, customer.admitted.iter().filter(|admitted| admitted.ends > now).count() as i64, "{place}");
    }

    fn finish(&mut self, customer: usize, request: usize, cost: i64) {
        let (place, now) = (self.place(customer), self.now);
        let budget = self.customers[customer].tokens;
        let Admitted { at, tokens, .. } = self.customers[customer].admitted[request];
        let more = cost - tokens;
        if more > 0 {
            let line = format!("RL.SLIDING {{c{customer}}}:tpm 60 {budget} COST {more} FORCE FULL");
            let before = self.customers[customer].tokens_since(now - MINUTE);
            let map: Value = self.client.call(&line);
            assert_eq!(field(&map, "allowed") == 1, before + more <= budget, "{place}: {map:?}");
            assert_eq!(field(&map, "used"), before + more, "{place}: forced units count");
            self.customers[customer].forced.push((now, more));
        } else if more < 0 {
            let line = format!("RL.REFUND {{c{customer}}}:tpm SLIDING 60 {budget} COST {} AT {at}", -more);
            let (refunded, left, _): (i64, i64, i64) = self.client.call(&line);
            // Charges of more than a minute ago no longer count, and are not refunded.
            let expected = if at > now - MINUTE { -more } else { 0 };
            assert_eq!(refunded, expected, "{place}: {line}");
            self.customers[customer].admitted[request].tokens -= refunded;
            assert_eq!(left, self.customers[customer].tokens_since(now - MINUTE), "{place}");
            self.paid_back += refunded;
        }
        let released: i64 = self.client.call(&format!("RL.RELEASE {{c{customer}}}:busy r{request}"));
        let admitted = &mut self.customers[customer].admitted[request];
        assert_eq!(released, i64::from(admitted.ends > now), "{place}");
        admitted.ends = admitted.ends.min(now);
        let again: i64 = self.client.call(&format!("RL.RELEASE {{c{customer}}}:busy r{request}"));
        assert_eq!(again, 0, "{place}: once is enough");
    }
}

impl Customer {
    /// Tokens that were charged after a time.
    fn tokens_since(&self, time: i64) -> i64 {
        let admitted = self.admitted.iter().filter(|admitted| admitted.at > time).map(|admitted| admitted.tokens);
        let forced = self.forced.iter().filter(|&&(at, _)| at > time).map(|&(_, tokens)| tokens);
        admitted.chain(forced).sum()
    }

    /// The promises, from the log of a whole run.
    fn judge(&self, place: &str) {
        for window in &self.admitted {
            let inside = |at: i64| at > window.at - MINUTE && at <= window.at;
            let requests = self.admitted.iter().filter(|admitted| inside(admitted.at)).count() as i64;
            assert!(requests <= self.requests, "{place}: {requests} requests in a minute");
            let tokens: i64 = self.admitted.iter().filter(|one| inside(one.at)).map(|one| one.tokens).sum();
            assert!(tokens <= self.tokens, "{place}: {tokens} tokens in a minute besides those that were forced");
            let alive = self.admitted.iter().filter(|one| one.at <= window.at && one.ends > window.at).count() as i64;
            assert!(alive <= self.at_once, "{place}: {alive} at once");
        }
    }
}

fn a_model_gateway_keeps_every_budget(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    if !engine.compact {
        client.call::<()>("CONFIG SET rl.sliding-storage auto");
    }
    let (mut rng, seed) = seeded();
    let customers = (0..CUSTOMERS)
        .map(|number| Customer {
            requests: if number == 0 { 0 } else { rng.i64(3..30) },
            tokens: if number == 1 { 0 } else { rng.i64(2_000..60_000) },
            at_once: if number == 2 { 0 } else { rng.i64(1..5) },
            admitted: Vec::new(),
            forced: Vec::new(),
            denied: 0,
        })
        .collect();
    let mut gateway =
        Gateway { server, client, rng, seed, now: START, customers, events: BinaryHeap::new(), paid_back: 0, died: 0 };
    for customer in 0..CUSTOMERS {
        let mut at = START + gateway.rng.i64(0..MINUTE);
        while at < UNTIL {
            let tokens = [gateway.rng.i64(1..500), gateway.rng.i64(500..5_000), gateway.rng.i64(1..90_000)];
            let tokens = tokens[gateway.rng.usize(..3)];
            gateway.plan(at, Event::Ask { customer, tokens, tries: 0 });
            // Some at once, some after a while.
            at += [0, gateway.rng.i64(1..3_000), gateway.rng.i64(1..60_000)][gateway.rng.usize(..3)] * 2;
            at += i64::from(customer % 5 != 0) * gateway.rng.i64(0..20_000);
        }
    }
    let mut handled = 0;
    while let Some(std::cmp::Reverse((at, event))) = gateway.events.pop() {
        if at != gateway.now {
            gateway.now = at;
            gateway.server.set_time(at);
        }
        let customer = match &event {
            Event::Ask { customer, .. } | Event::Renew { customer, .. } | Event::Finish { customer, .. } => *customer,
        };
        match event {
            Event::Ask { customer, tokens, tries } => gateway.ask(customer, tokens, tries),
            Event::Renew { customer, request } => gateway.renew(customer, request),
            Event::Finish { customer, request, cost } => gateway.finish(customer, request, cost),
        }
        handled += 1;
        if handled % 8 == 0 {
            // The page on which the customer sees what is used.
            let look =
                format!("RL.PEEK {{c{customer}}}:tpm SLIDING 60 {} COST 0 FULL", gateway.customers[customer].tokens);
            let map: Value = gateway.client.call(&look);
            let used = gateway.customers[customer].tokens_since(gateway.now - MINUTE);
            assert_eq!(field(&map, "used"), used, "{}: denied calls are charged with nothing", gateway.place(customer));
        }
    }
    let Gateway { mut client, customers, paid_back, died, .. } = gateway;
    for (number, customer) in customers.iter().enumerate() {
        customer.judge(&format!("seed {seed}, customer {number}"));
    }
    let admitted: usize = customers.iter().map(|customer| customer.admitted.len()).sum();
    let denied: u64 = customers.iter().map(|customer| customer.denied).sum();
    let forced: usize = customers.iter().map(|customer| customer.forced.len()).sum();
    assert!(
        admitted > 1_500 && denied > 500 && forced > 100 && paid_back > 100_000 && died > 100,
        "seed {seed}: {admitted} admitted, {denied} denied, {forced} forced, {paid_back} paid back, {died} died"
    );
    assert!(customers[..3].iter().all(|customer| customer.admitted.is_empty() && customer.denied > 0));
    assert_eq!(client.call::<Vec<String>>("KEYS {c0}*").len(), 0, "who is always denied leaves no trace");
    let info = client.info_field("rl", "rl_all_allowed");
    assert_eq!((info, client.info_field("rl", "rl_all_denied")), (admitted.to_string(), denied.to_string()));
}

/// A window that contains the whole test.
const WINDOW: &str = "1000000000";
const ADDRESSES: usize = 6;
const USERS: usize = 5;
const OF_AN_ADDRESS: u64 = 1_500;
const OF_A_USER: u64 = 1_700;
const OF_ALL: u64 = 8_200;

/// The replies to the clients of the edge.
#[derive(Default)]
struct Edge {
    addresses: [AtomicU64; ADDRESSES],
    users: [AtomicU64; USERS],
    all: AtomicU64,
    denied: AtomicU64,
    tries: AtomicU64,
    sent_on: AtomicU64,
    put_off: AtomicU64,
    over: AtomicBool,
}

fn limits(address: usize, user: usize) -> String {
    format!(
        "RL.ALL 3 {{edge}}:address:{address} {{edge}}:user:{user} {{edge}}:all FIXED {WINDOW} {OF_AN_ADDRESS} ANCHORED \
         SLIDING {WINDOW} {OF_A_USER} SLIDING {WINDOW} {OF_ALL} COST 1"
    )
}

/// A client that follows redirections as the manual of the cluster asks for.
struct Follower {
    nodes: BTreeMap<u16, Client>,
    at: u16,
}

impl Follower {
    fn new(cluster: &Cluster) -> Self {
        let nodes: BTreeMap<u16, Client> =
            (0..PRIMARIES).map(|node| (cluster.node(node).port, cluster.client(node))).collect();
        let at = *nodes.keys().next().expect("a node");
        Self { nodes, at }
    }

    /// The reply; none where the test ended while the call was put off.
    fn call(&mut self, line: &str, edge: &Edge) -> Option<Value> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (mut port, mut asking) = (self.at, false);
        loop {
            edge.tries.fetch_add(1, Relaxed);
            let node = self.nodes.get_mut(&port).expect("a primary");
            if asking {
                node.call::<()>("ASKING");
            }
            let error = match node.try_run::<Value>(&words) {
                Ok(reply) => return Some(reply),
                Err(error) => error_line(&error),
            };
            let to = |error: &str| error.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
            (port, asking) = match error.split(' ').next() {
                Some("MOVED") => {
                    edge.sent_on.fetch_add(1, Relaxed);
                    self.at = to(&error);
                    (self.at, false)
                }
                Some("ASK") => {
                    edge.sent_on.fetch_add(1, Relaxed);
                    (to(&error), true)
                }
                // Some of the keys are here and some there: later.
                Some("TRYAGAIN") => {
                    edge.put_off.fetch_add(1, Relaxed);
                    if edge.over.load(Relaxed) {
                        return None;
                    }
                    std::thread::yield_now();
                    (self.at, false)
                }
                _ => panic!("{line}: {error}"),
            };
        }
    }

    fn ask(&mut self, edge: &Edge, address: usize, user: usize) -> bool {
        let reply = match self.call(&limits(address, user), edge) {
            Some(Value::Array(reply)) => reply,
            Some(other) => panic!("{other:?}"),
            None => return false,
        };
        match reply[0] {
            Value::Int(1) => {
                edge.addresses[address].fetch_add(1, Relaxed);
                edge.users[user].fetch_add(1, Relaxed);
                edge.all.fetch_add(1, Relaxed);
                true
            }
            _ => {
                edge.denied.fetch_add(1, Relaxed);
                false
            }
        }
    }
}

/// Moves a slot key by key, as `redis-cli --cluster reshard` does, while clients go on.
fn reshard(cluster: &Cluster, slot: usize, source: usize, target: usize, edge: &Edge) {
    let slot = slot.to_string();
    let port = cluster.node(target).port.to_string();
    let (mut from, mut to) = (cluster.client(source), cluster.client(target));
    let set = |client: &mut Client, state: &str, node: &str| {
        let words = ["CLUSTER", "SETSLOT", &slot, state, node];
        eventually("the slot is set", || client.try_run::<()>(&words).is_ok());
    };
    let goes_on = |tries: u64| {
        let wanted = edge.tries.load(Relaxed) + tries;
        eventually("the clients go on", || edge.tries.load(Relaxed) >= wanted);
    };
    set(&mut to, "IMPORTING", cluster.id(source));
    set(&mut from, "MIGRATING", cluster.id(target));
    goes_on(100);
    loop {
        let keys: Vec<String> = from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
        let Some(key) = keys.first() else { break };
        from.run::<Value>(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", key]);
        goes_on(60);
    }
    for client in [&mut to, &mut from] {
        set(client, "NODE", cluster.id(target));
    }
    goes_on(100);
}

fn an_api_edge_keeps_every_limit_while_its_slot_moves(engine: &Engine) {
    let cluster = Cluster::start(engine);
    if !engine.compact {
        cluster.configure("rl.sliding-storage", "auto");
    }
    let slot: usize = cluster.client(0).run(&["CLUSTER", "KEYSLOT", "{edge}"]);
    let here = cluster.first_owner(slot);
    let there = (here + 1) % PRIMARIES;
    let edge = Edge::default();
    /// Ends the clients, also when a check has failed.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let (mut rng, _) = seeded();
    std::thread::scope(|scope| {
        let _over = Over(&edge.over);
        for _ in 0..8 {
            let (mut rng, edge, cluster) = (rng.fork(), &edge, &cluster);
            scope.spawn(move || {
                let mut client = Follower::new(cluster);
                while !edge.over.load(Relaxed) {
                    client.ask(edge, rng.usize(..ADDRESSES), rng.usize(..USERS));
                }
            });
        }
        eventually("clients are let in", || edge.all.load(Relaxed) > 200);
        reshard(&cluster, slot, here, there, &edge);
        reshard(&cluster, slot, there, here, &edge);
        eventually("clients are denied", || edge.denied.load(Relaxed) > 200);
    });
    assert!(edge.sent_on.load(Relaxed) > 10 && edge.put_off.load(Relaxed) > 10, "the move was not met");

    // Until every call is denied.
    let mut client = Follower::new(&cluster);
    let mut let_in = true;
    while let_in {
        let_in = false;
        for (address, user) in (0..ADDRESSES).flat_map(|address| (0..USERS).map(move |user| (address, user))) {
            let_in |= client.ask(&edge, address, user);
        }
    }
    let totals = |counts: &[AtomicU64]| counts.iter().map(|count| count.load(Relaxed)).collect::<Vec<u64>>();
    let (addresses, users, all) = (totals(&edge.addresses), totals(&edge.users), edge.all.load(Relaxed));
    let shown = format!("{addresses:?} by address, {users:?} by user, {all} in all");
    assert!(addresses.iter().all(|&count| count <= OF_AN_ADDRESS), "{shown}");
    assert!(users.iter().all(|&count| count <= OF_A_USER), "{shown}");
    assert!(all <= OF_ALL, "{shown}");
    // Every denial has a reason in the log.
    for (address, user) in (0..ADDRESSES).flat_map(|address| (0..USERS).map(move |user| (address, user))) {
        let is_full = addresses[address] == OF_AN_ADDRESS || users[user] == OF_A_USER || all == OF_ALL;
        assert!(is_full, "address {address} and user {user} are denied for nothing: {shown}");
    }
    // And none was lost: each limit is at the clients' own count.
    let mut look = |line: String| -> u64 {
        let Some(Value::Array(reply)) = client.call(&line, &edge) else { panic!("{line}") };
        match reply[1] {
            Value::Int(count) => count as u64,
            _ => panic!("{line}: {reply:?}"),
        }
    };
    for (address, &count) in addresses.iter().enumerate() {
        let line = format!("RL.PEEK {{edge}}:address:{address} FIXED {WINDOW} {OF_AN_ADDRESS} ANCHORED COST 0");
        assert_eq!(look(line), count, "address {address}: {shown}");
    }
    for (user, &count) in users.iter().enumerate() {
        assert_eq!(
            look(format!("RL.PEEK {{edge}}:user:{user} SLIDING {WINDOW} 1 COST 0")),
            count,
            "user {user}: {shown}"
        );
    }
    assert_eq!(look(format!("RL.PEEK {{edge}}:all SLIDING {WINDOW} 1 COST 0")), all, "{shown}");
}
