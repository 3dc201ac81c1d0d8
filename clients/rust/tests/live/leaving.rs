//! Callers that leave, short deadlines beside long ones, dead connections, and several runtimes.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::Poll;
use std::time::{Duration, Instant};

use redis_rl_client::{Error, Limiter, Options, Rule, Sliding, redis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Has, Server, patient, until};

fn rule() -> Sliding {
    Rule::sliding("1000000/hour").unwrap()
}

fn client(port: u16) -> redis::Client {
    redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap()
}

/// A way to a server. Connections from before a point of time can be made to swallow everything.
pub struct Way {
    pub port: u16,
    /// How many connections were made, and how many of the first of them are dead.
    made: Arc<AtomicU64>,
    dead: Arc<AtomicU64>,
}

impl Way {
    /// `refuses`: a word at which the connection is closed.
    pub async fn to(server: &Server, refuses: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = Self { port: listener.local_addr().unwrap().port(), made: Arc::default(), dead: Arc::default() };
        let (made, dead, behind) = (Arc::clone(&way.made), Arc::clone(&way.dead), server.port);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (number, dead) = (made.fetch_add(1, SeqCst), Arc::clone(&dead));
                tokio::spawn(async move {
                    let server = TcpStream::connect(("127.0.0.1", behind)).await.unwrap();
                    let ((mut from, mut to), (mut back_from, mut back_to)) = (client.into_split(), server.into_split());
                    let swallows = move || number < dead.load(SeqCst);
                    let there = async {
                        let mut bytes = vec![0; 1 << 16];
                        while let Ok(read @ 1..) = from.read(&mut bytes).await {
                            let bytes = &bytes[..read];
                            if !refuses.is_empty() && String::from_utf8_lossy(bytes).contains(refuses) {
                                return;
                            }
                            if !swallows() {
                                back_to.write_all(bytes).await.unwrap();
                            }
                        }
                    };
                    let back = async {
                        let _ = tokio::io::copy(&mut back_from, &mut to).await;
                    };
                    tokio::select! { () = there => {} () = back => {} }
                });
            }
        });
        way
    }

    pub fn break_connections(&self) {
        self.dead.store(self.made.load(SeqCst), SeqCst);
    }
}

/// Callers that give up before the limiter does still tell that their connection is dead.
#[tokio::test]
async fn a_dead_connection_is_left_by_callers_that_never_wait_for_long() {
    let server = Server::start(Has::Module).await;
    let way = Way::to(&server, "").await;
    let limiter = Limiter::with_options(client(way.port), Options::default().timeout(Duration::from_millis(250)));
    until("it is connected", || async { limiter.hit("k", rule()).await.is_ok() }).await;
    way.break_connections();
    let started = Instant::now();
    until("calls are answered", || async {
        let hit = tokio::time::timeout(Duration::from_millis(100), limiter.hit("k", rule())).await;
        hit.is_ok_and(|hit| hit.is_ok())
    })
    .await;
    // A second for the connection, one for the pause; alone it takes 0.4 s.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// A deadline of one handle says nothing about the server.
#[tokio::test]
async fn a_very_short_deadline_fails_by_itself() {
    let server = Server::start(Has::Module).await;
    let limiter = Limiter::with_options(client(server.port), patient(Options::default()));
    assert!(limiter.hit("k", rule()).await.unwrap().allowed);
    let hasty = limiter.with_timeout(Duration::from_micros(1));
    server.hang();
    assert!(hasty.hit("hasty", rule()).await.is_err());
    server.resume();
    for _ in 0..300 {
        // A busy machine may have the reply by then.
        let _ = hasty.hit("hasty", rule()).await;
        assert!(limiter.hit("k", rule()).await.unwrap().allowed);
        assert!(limiter.is_available());
    }
    assert_eq!(limiter.connections(), 1);
}

/// Polls a future once, which sends its call, and drops it.
pub async fn begin_and_leave<T>(future: impl Future<Output = T>, sent: impl AsyncFn() -> bool) {
    let mut future = pin!(future);
    loop {
        poll_fn(|context| {
            assert!(future.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        if sent().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// While the server hangs, callers ask for something and go. What it grants later is given back.
#[tokio::test]
async fn nothing_is_kept_by_callers_that_have_gone() {
    let server = Server::start(Has::Module).await;
    let limiter = Limiter::with_options(client(server.port), patient(Options::default()));
    let (lease, tokens) = (Rule::lease(8, Duration::from_secs(60)).unwrap(), rule());
    assert!(limiter.hit("k", rule()).await.unwrap().allowed);
    // Some turns are enough to write to a socket that takes it.
    let sent = async || {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        true
    };
    for _ in 0..3 {
        server.hang();
        begin_and_leave(limiter.acquire("busy", &lease), sent).await;
        begin_and_leave(limiter.hold("busy", &lease, Duration::from_secs(9)), sent).await;
        begin_and_leave(limiter.reserve("tokens", &tokens, 50_000, Duration::from_secs(60)), sent).await;
        // One that comes to its own deadline.
        let late = limiter.with_timeout(Duration::from_millis(50)).acquire("busy", &lease).await;
        assert!(matches!(late, Err(Error::ReplyLost(_))), "{late:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.resume();
        until("all four were decided on", || async {
            server.calls("rl.acquire").await % 3 == 0 && server.calls("rl.acquire").await > 0
        })
        .await;
        until("nothing is held", || async { server.run::<u64>("ZCARD busy").await == 0 }).await;
        until("nothing is charged", || async {
            limiter.peek("tokens", tokens.clone().cost(0)).await.is_ok_and(|state| state.used == 0)
        })
        .await;
    }
    assert_eq!((server.calls("rl.acquire").await, server.calls("rl.release").await), (9, 9));
}

/// What was not sent before its caller left never is.
#[tokio::test]
async fn a_call_that_waits_for_a_connection_is_not_sent_for_nobody() {
    let server = Server::start(Has::Module).await;
    server.hang();
    let limiter = Limiter::with_options(client(server.port), Options::default().timeout(Duration::from_secs(1)));
    let hit = tokio::time::timeout(Duration::from_millis(50), limiter.hit("k", rule())).await;
    assert!(hit.is_err());
    server.resume();
    until("it is connected", || async { limiter.hit("other", rule()).await.is_ok() }).await;
    assert_eq!(server.run::<u64>("EXISTS k").await, 0);
}

/// Each runtime has a connection of its own, so that none depends on another that has ended or stands still.
#[test]
fn a_limiter_works_on_several_runtimes() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let main = runtime();
    let server = main.block_on(Server::start(Has::Module));
    let limiter = Limiter::with_options(client(server.port), patient(Options::default()));
    for used in 1..=5 {
        assert_eq!(runtime().block_on(limiter.hit("k", rule())).unwrap().used, used);
    }
    // One that stands still between its calls.
    let idle = runtime();
    assert_eq!(idle.block_on(limiter.hit("k", rule())).unwrap().used, 6);
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let limiter = limiter.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                for _ in 0..100 {
                    assert!(runtime.block_on(limiter.hit("k", rule())).unwrap().allowed);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(idle.block_on(limiter.hit("k", rule())).unwrap().used, 307);
    assert_eq!(limiter.connections(), 9);
    main.block_on(async move { drop(server) });
}

#[tokio::test]
async fn a_server_that_hangs_up_on_hello_is_reached() {
    let server = Server::start(Has::Module).await;
    let way = Way::to(&server, "HELLO").await;
    let limiter = Limiter::with_options(client(way.port), patient(Options::default()));
    assert!(limiter.hit("k", rule()).await.unwrap().allowed);
}

#[test]
fn a_url_that_cannot_be_read_is_an_argument() {
    for url in ["nonsense", "redis://me:s3cret@host:65536/", "redis://me:s3cret@host/x", "redis://:s3cret@:6379:1"] {
        let error = Limiter::open(url).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && !format!("{error} {error:?}").contains("s3cret"), "{error}");
    }
    // Without a feature of the redis crate it could be read, and not be reached.
    let error = Limiter::open("rediss://me:s3cret@host/").unwrap_err().to_string();
    assert!(error.contains("TLS") && !error.contains("s3cret"), "{error}");
    let limiter = Limiter::open("redis://me:s3cret@127.0.0.1:1/").unwrap();
    assert!(!format!("{limiter:?}").contains("s3cret"), "{limiter:?}");
}

/// A place that is given back before the lease ends is taken by those that wait, to the last moment.
#[tokio::test]
async fn waiting_for_a_lease_is_not_waiting_for_its_end() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let lease = Rule::lease(1, Duration::from_secs(600)).unwrap();
    let first = limiter.acquire("busy", &lease).await.unwrap().unwrap();
    let waiting = {
        let (limiter, lease) = (limiter.clone(), lease.clone().holder("second"));
        tokio::spawn(async move { limiter.wait("busy", lease, Duration::from_secs(60)).await })
    };
    let calls = server.calls("rl.acquire").await;
    until("it waits", || async { server.calls("rl.acquire").await >= calls + 2 }).await;
    assert!(first.release().await);
    assert!(waiting.await.unwrap().unwrap().allowed);
    // As long as it was told, and not a pause less.
    let started = Instant::now();
    let Err(_) = limiter.hold("busy", &lease, Duration::from_millis(900)).await.unwrap() else { panic!("it is held") };
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
}

/// The lease can be given back by the holder that was made up.
#[tokio::test]
async fn a_wait_for_a_lease_makes_up_a_holder() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let lease = Rule::lease(1, Duration::from_secs(600)).unwrap();
    let granted = limiter.wait("busy", &lease, Duration::ZERO).await.unwrap();
    let denied = limiter.wait("busy", &lease, Duration::ZERO).await.unwrap();
    assert!(!denied.allowed && denied.holder().is_none());
    assert_eq!(limiter.release("busy", granted.holder()).await.unwrap(), 1);
}
