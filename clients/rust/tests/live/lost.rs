//! A reply that is lost: through a proxy that takes the call to the server and closes in place of the reply.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use axum::http::{Request, Response};
use redis::cluster::{ClusterClient, NodeAddress};
use redis_rl_client::{Error, Limiter, Mode, Options, RateLimitLayer, Rule};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceExt, service_fn};

use crate::leaving::begin_and_leave;
use crate::support::{Has, Server, patient, until};

struct Proxy {
    port: u16,
    /// How many replies to limiters are still to be lost.
    lose: Arc<AtomicU32>,
    /// Whether every connection is to be closed at its next reply.
    lost: Arc<AtomicBool>,
    /// What becomes of connections that come: 0, they are relayed; 1, they are closed; 2, they are left without an answer.
    door: Arc<AtomicU32>,
}

impl Proxy {
    async fn before(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = Self { port, lose: Arc::default(), lost: Arc::default(), door: Arc::default() };
        let (lose, lost, behind) = (Arc::clone(&proxy.lose), Arc::clone(&proxy.lost), server.port);
        let (door, mut left) = (Arc::clone(&proxy.door), Vec::new());
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                match door.load(SeqCst) {
                    0 => drop(tokio::spawn(relay(client, behind, Arc::clone(&lose), Arc::clone(&lost)))),
                    1 => {}
                    _ => left.push(client),
                }
            }
        });
        proxy
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

async fn relay(mut client: TcpStream, behind: u16, lose: Arc<AtomicU32>, lost: Arc<AtomicBool>) {
    let mut server = TcpStream::connect(("127.0.0.1", behind)).await.unwrap();
    let (mut call, mut reply) = (vec![0; 1 << 17], vec![0; 1 << 17]);
    let mut is_ours = false;
    loop {
        tokio::select! {
            read = client.read(&mut call) => {
                let Ok(1..) = read else { return };
                let call = &call[..read.unwrap()];
                let ours = [&b"RL."[..], b"FCALL", b"EVAL"];
                is_ours = ours.iter().any(|name| call.windows(name.len()).any(|part| part == *name));
                server.write_all(call).await.unwrap();
            }
            read = server.read(&mut reply) => {
                let Ok(1..) = read else { return };
                if is_ours && lose.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                    lost.store(true, SeqCst);
                    return;
                }
                let _ = client.write_all(&reply[..read.unwrap()]).await;
            }
        }
    }
}

fn rule() -> Rule {
    Rule::sliding("100/minute").unwrap().into()
}

async fn used(server: &Server) -> i64 {
    server.limiter().await.peek("k", Rule::sliding("100/minute").unwrap().cost(0)).await.unwrap().used
}

#[tokio::test]
async fn a_call_is_not_sent_twice() {
    for has in Has::EACH {
        let server = Server::start(has).await;
        let proxy = Proxy::before(&server).await;
        let client = redis::Client::open(proxy.url()).unwrap();
        let limiter = Limiter::with_options(client.clone(), patient(Options::default()));
        let before = limiter.hit("k", rule()).await.unwrap().used;
        proxy.lose.store(1, SeqCst);
        let error = limiter.hit("k", rule()).await.unwrap_err();
        assert!(matches!(error, Error::ReplyLost(_)) && error.may_have_counted(), "{error:?}");
        assert_eq!(used(&server).await, before + 1);
        // What counts nothing twice is sent again.
        // In a mode that is given, as a probe would be the call whose reply is lost.
        let limiter = Limiter::with_options(client.clone(), patient(Options::default()).mode(has.mode()));
        let lease = Rule::lease(3, Duration::from_secs(600)).unwrap().holder("a");
        let used = limiter.hit("k", rule()).await.unwrap().used;
        let lose = || proxy.lose.store(1, SeqCst);
        lose();
        assert_eq!(limiter.peek("k", rule()).await.unwrap().used, used + 1);
        lose();
        assert_eq!(limiter.hit("busy", &lease).await.unwrap().used, 1);
        lose();
        // The first has removed it.
        assert_eq!(limiter.release("busy", ["a"]).await.unwrap(), 0);
        lose();
        assert_eq!(limiter.reset("k", rule()).await.unwrap(), 0);
        assert_eq!(proxy.lose.load(SeqCst), 0);
    }
}

/// What a caller has asked for that has gone meanwhile, nobody else could give back.
#[tokio::test]
async fn what_nobody_has_heard_of_is_given_back() {
    let server = Server::start(Has::Module).await;
    let proxy = Proxy::before(&server).await;
    let client = redis::Client::open(proxy.url()).unwrap();
    let limiter = Limiter::with_options(client, patient(Options::default()));
    let (long, tokens) = (Duration::from_secs(600), Rule::sliding("100/hour").unwrap());
    let lease = Rule::lease(3, long).unwrap();
    let layer = RateLimitLayer::new(limiter.clone(), &lease, |_| Some("layer")).timeout(long);
    let service = layer.layer(service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new()))));
    let sent = async || {
        tokio::time::sleep(Duration::from_millis(20)).await;
        true
    };
    for ask in 0..4 {
        until("it is connected", || async { limiter.hit("k", rule()).await.is_ok() }).await;
        server.hang();
        match ask {
            0 => begin_and_leave(limiter.acquire("busy", &lease), sent).await,
            1 => begin_and_leave(limiter.hold("busy", &lease, long), sent).await,
            2 => begin_and_leave(limiter.reserve("tokens", &tokens, 5, long), sent).await,
            _ => begin_and_leave(service.clone().oneshot(Request::new(())), sent).await,
        }
        proxy.lose.store(1, SeqCst);
        server.resume();
        until("the reply is lost", || async { proxy.lose.load(SeqCst) == 0 }).await;
        until("nothing is held", || async {
            let used = server.limiter().await.peek("tokens", tokens.clone().cost(0)).await.unwrap().used;
            let keys: u64 = server.run("EXISTS busy rl:lease-3/600s:{layer}").await;
            (used, keys) == (0, 0)
        })
        .await;
    }
}

/// A settlement that may have been carried out, and could not be sent again, is no settlement that was never sent.
#[tokio::test]
async fn what_could_not_be_sent_again_may_have_been_counted() {
    let server = Server::start(Has::Module).await;
    for door in [1, 2] {
        let proxy = Proxy::before(&server).await;
        let client = redis::Client::open(proxy.url()).unwrap();
        let limiter = Limiter::with_options(client, Options::default().mode(Mode::Module));
        until("it is connected", || async { limiter.hit("k", rule()).await.is_ok() }).await;
        let (key, tokens) = (format!("tokens{door}"), Rule::sliding("100/hour").unwrap());
        let lease = Duration::from_secs(60);
        let mut reservation = limiter.reserve(&key, &tokens, 5, lease).await.unwrap().unwrap();
        proxy.door.store(door, SeqCst);
        proxy.lose.store(1, SeqCst);
        let error = reservation.settle(3).await.unwrap_err();
        assert!(matches!(error, Error::ReplyLost(_)), "{door}: {error:?}");
        assert_eq!(server.limiter().await.peek(&key, tokens.cost(0)).await.unwrap().used, 3);
    }
}

/// One node that has all slots, behind a proxy.
async fn node() -> (Server, Proxy, ClusterClient) {
    let mut arguments = Has::Module.arguments();
    let bus = crate::support::free_port().to_string();
    arguments.extend(["--cluster-enabled", "yes", "--cluster-port", &bus].map(str::to_owned));
    let server = Server::with(&arguments, None).await;
    let _: () = server.run("CLUSTER ADDSLOTSRANGE 0 16383").await;
    until("the node serves", || async { server.run::<String>("CLUSTER INFO").await.contains("cluster_state:ok") })
        .await;
    let proxy = Proxy::before(&server).await;
    let map = [(NodeAddress::new("127.0.0.1", server.port), NodeAddress::new("127.0.0.1", proxy.port))];
    let builder = ClusterClient::builder([proxy.url()]).min_retry_wait(1).max_retry_wait(10);
    let client = builder.node_address_map(map.into()).build().unwrap();
    (server, proxy, client)
}

#[tokio::test]
async fn nor_in_a_cluster() {
    let (server, proxy, client) = node().await;
    let limiter = Limiter::with_options(client, patient(Options::default()));
    assert_eq!(limiter.hit("k", rule()).await.unwrap().used, 1);
    for round in 1..=3 {
        proxy.lose.store(1, SeqCst);
        let error = limiter.hit("k", rule()).await.unwrap_err();
        assert!(matches!(error, Error::ReplyLost(_)), "{error:?}");
        assert_eq!(used(&server).await, 2 * round);
        // The client has connected again.
        assert_eq!(limiter.hit("k", rule()).await.unwrap().used, 2 * round + 1);
    }
    // A peek changes nothing, and is sent again.
    proxy.lose.store(1, SeqCst);
    assert_eq!(limiter.peek("k", Rule::sliding("100/minute").unwrap().cost(0)).await.unwrap().used, 7);
    assert!(proxy.lose.load(SeqCst) == 0);
}
