//! The clients and connections of the `redis` crate that a limiter can use, and how a call is routed in each.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::{ConnectionManager, MultiplexedConnection};
#[cfg(feature = "cluster")]
use redis::cluster::ClusterClient;
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
#[cfg(feature = "cluster")]
use redis::cluster_routing::{
    MultipleNodeRoutingInfo, ResponsePolicy, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr,
};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo, PushKind,
    RedisError, RedisResult,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

#[cfg(feature = "cluster")]
use crate::cluster::SendsOnce;
use crate::error::no_answer;
use crate::wire::{Packed, Reply};

/// How many calls may wait to be written to a connection.
pub(crate) const QUEUE: usize = 16_384;
/// For how long a connection may take to be made. Calls wait no longer than their own time for it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a limiter sends its calls. Made of clients and connections of the `redis` crate by `From`.
///
/// From a client (`redis::Client`, `ClusterClient`, `SentinelClient`) a limiter makes a connection of its own, at its
/// first call and again when that has broken; a server that is unavailable so keeps no program from starting. With
/// these, a call is never sent twice. They speak RESP3 where the server does, as only that tells of a connection that
/// broke between two calls.
///
/// Connections are used as they are, with their own time-outs and retries: a [`ConnectionManager`] and a
/// [`MultiplexedConnection`] send a call once, and give it up after half a second unless set otherwise. A
/// `ClusterConnection` sends a call again if its reply is lost, as often as its client's `retries` say, and so may count
/// it more than once.
#[derive(Clone)]
pub struct Connection(Kind);

#[derive(Clone)]
enum Kind {
    Own(Arc<Slot<Own>>),
    Single(MultiplexedConnection),
    Managed(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(ClusterConnection),
    #[cfg(feature = "cluster")]
    OwnCluster(Arc<Slot<ClusterConnection<SendsOnce>>>),
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Own(_) => "Connection(Client)",
            Kind::Single(_) => "Connection(MultiplexedConnection)",
            Kind::Managed(_) => "Connection(ConnectionManager)",
            #[cfg(feature = "cluster")]
            Kind::Cluster(_) => "Connection(ClusterConnection)",
            #[cfg(feature = "cluster")]
            Kind::OwnCluster(_) => "Connection(ClusterClient)",
        })
    }
}

impl From<Client> for Connection {
    fn from(client: Client) -> Self {
        let connect = move |alive| {
            let client = client.clone();
            Box::pin(async move { connect(&client, alive).await }) as Connecting<_>
        };
        Self(Kind::Own(Arc::new(Slot::new(Box::new(connect)))))
    }
}

#[cfg(feature = "sentinel")]
impl From<redis::sentinel::SentinelClient> for Connection {
    fn from(client: redis::sentinel::SentinelClient) -> Self {
        let client = Arc::new(tokio::sync::Mutex::new(client));
        let connect = move |alive| {
            let client = Arc::clone(&client);
            let connecting = async move {
                // The sentinels are asked anew each time: after a failover it is another server.
                let client =
                    tokio::time::timeout(CONNECT_TIMEOUT, async { client.lock().await.async_get_client().await });
                let out_of_time =
                    |_| no_answer(std::io::ErrorKind::TimedOut, "the sentinels did not answer".to_owned());
                connect(&client.await.map_err(out_of_time)??, alive).await
            };
            Box::pin(connecting) as Connecting<_>
        };
        Self(Kind::Own(Arc::new(Slot::new(Box::new(connect)))))
    }
}

impl From<MultiplexedConnection> for Connection {
    fn from(connection: MultiplexedConnection) -> Self {
        Self(Kind::Single(connection))
    }
}

impl From<ConnectionManager> for Connection {
    fn from(connection: ConnectionManager) -> Self {
        Self(Kind::Managed(connection))
    }
}

#[cfg(feature = "cluster")]
impl From<ClusterClient> for Connection {
    fn from(client: ClusterClient) -> Self {
        // It replaces what breaks by itself, so `alive` stays as it is.
        let connect = move |_| {
            let client = client.clone();
            Box::pin(async move { client.get_async_generic_connection::<SendsOnce>().await }) as Connecting<_>
        };
        Self(Kind::OwnCluster(Arc::new(Slot::new(Box::new(connect)))))
    }
}

#[cfg(feature = "cluster")]
impl From<ClusterConnection> for Connection {
    fn from(connection: ClusterConnection) -> Self {
        Self(Kind::Cluster(connection))
    }
}

/// A connection to one server that the limiter has made.
#[derive(Clone)]
struct Own {
    connection: MultiplexedConnection,
    /// Of a connection whose replies are packed.
    driver: Option<Arc<Driver>>,
}

/// The task of a connection, which ends with it.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Own {
    /// Connects, and has the replies packed unless the stream is one that only the client can make.
    async fn connect(client: &Client, config: &AsyncConnectionConfig) -> RedisResult<Self> {
        let info = client.get_connection_info();
        let connecting = async {
            match info.addr() {
                ConnectionAddr::Tcp(host, port) if is_plain(info.tcp_settings()) => {
                    let stream = tcp(host, *port).await?;
                    stream.set_nodelay(info.tcp_settings().nodelay())?;
                    Self::packed(info, stream, config).await
                }
                #[cfg(unix)]
                ConnectionAddr::Unix(path) => {
                    Self::packed(info, tokio::net::UnixStream::connect(path).await?, config).await
                }
                _ => {
                    let connection = client.get_multiplexed_async_connection_with_config(config).await?;
                    Ok(Self { connection, driver: None })
                }
            }
        };
        let late = |_| no_answer(io::ErrorKind::TimedOut, format!("no connection within {CONNECT_TIMEOUT:?}"));
        tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?
    }

    async fn packed<S>(info: &ConnectionInfo, stream: S, config: &AsyncConnectionConfig) -> RedisResult<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let packs = Arc::new(AtomicBool::new(false));
        let stream = Packed::new(stream, Arc::clone(&packs));
        let connected = MultiplexedConnection::new_with_config(info.redis_settings(), stream, config.clone());
        let (connection, driver) = connected.await?;
        packs.store(true, Relaxed);
        let driver = Driver(tokio::spawn(driver).abort_handle());
        Ok(Self { connection, driver: Some(Arc::new(driver)) })
    }

    async fn send(mut self, cmd: &Cmd) -> RedisResult<Reply> {
        match self.connection.send_packed_command(cmd).await?.extract_error()? {
            Value::BulkString(reply) if self.driver.is_some() => Ok(Reply::Packed(reply)),
            reply => Ok(Reply::Value(reply)),
        }
    }
}

/// Whether a socket is to be as it is made, but for TCP_NODELAY. Some of the settings can only be read so.
fn is_plain(settings: &TcpSettings) -> bool {
    let plain = TcpSettings::default().set_nodelay(settings.nodelay());
    format!("{settings:?}") == format!("{plain:?}")
}

/// A connection to whichever address of the host answers first.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in tokio::net::lookup_host((host, port)).await? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

/// A connection to one server. `alive` becomes false when it breaks, if the server speaks RESP3.
async fn connect(client: &Client, alive: Arc<AtomicBool>) -> RedisResult<Own> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        // Each call has its own deadline.
        .set_response_timeout(None)
        // Calls do not queue in this process while others are being sent.
        .set_pipeline_buffer_size(QUEUE);
    let given = client.get_connection_info();
    let settings = given.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let told = config.clone().set_push_sender(move |push: PushInfo| {
        if push.kind == PushKind::Disconnection {
            alive.store(false, Relaxed);
        }
        Ok::<_, std::convert::Infallible>(())
    });
    let resp3 = Client::open(given.clone().set_redis_settings(settings))?;
    match Own::connect(&resp3, &told).await {
        // Before Redis 6, behind some proxies, or a user who may not say HELLO.
        Err(error) if error.kind() != ErrorKind::Io => Own::connect(client, &config).await,
        connected => connected,
    }
}

type Connecting<C> = Pin<Box<dyn Future<Output = RedisResult<C>> + Send>>;
type Connect<C> = Box<dyn Fn(Arc<AtomicBool>) -> Connecting<C> + Send + Sync>;
type Outcome<C> = watch::Receiver<Option<RedisResult<C>>>;

/// A connection that is made when it is needed, by one task for all who wait for it, and given up when it has broken.
struct Slot<C> {
    connect: Connect<C>,
    current: Mutex<Option<Attempt<C>>>,
    /// Connections made so far.
    made: AtomicU64,
}

struct Attempt<C> {
    outcome: Outcome<C>,
    alive: Arc<AtomicBool>,
}

impl<C: Clone + Send + Sync + 'static> Slot<C> {
    fn new(connect: Connect<C>) -> Self {
        Self { connect, current: Mutex::new(None), made: AtomicU64::new(0) }
    }

    /// The connection, and what tells whether it still is the current one.
    async fn get(&self) -> RedisResult<(C, Arc<AtomicBool>)> {
        let (mut outcome, alive) = self.attempt();
        let gone = || no_answer(std::io::ErrorKind::NotConnected, "the task that connects was dropped".to_owned());
        let connected = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        let connected = connected.ok().flatten().unwrap_or_else(|| Err(gone()));
        if connected.is_err() {
            alive.store(false, Relaxed);
        }
        Ok((connected?, alive))
    }

    fn attempt(&self) -> (Outcome<C>, Arc<AtomicBool>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Attempt { outcome, alive }) = current.as_ref().filter(|attempt| attempt.alive.load(Relaxed)) {
            return (outcome.clone(), Arc::clone(alive));
        }
        let (sender, outcome) = watch::channel(None);
        let alive = Arc::new(AtomicBool::new(true));
        let connecting = (self.connect)(Arc::clone(&alive));
        self.made.fetch_add(1, Relaxed);
        // In a task of its own, so that it goes on when the call that needed it is given up.
        tokio::spawn(async move { sender.send(Some(connecting.await)) });
        *current = Some(Attempt { outcome: outcome.clone(), alive: Arc::clone(&alive) });
        (outcome, alive)
    }
}

/// Where a command goes in a cluster.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "cluster"), allow(dead_code))]
pub(crate) enum To<'a> {
    /// To the primary that has the key.
    Primary(&'a [u8]),
    /// To a replica of it, where the client reads from replicas.
    Replica(&'a [u8]),
    /// To all primaries.
    Everyone,
}

#[cfg(feature = "cluster")]
impl From<To<'_>> for RoutingInfo {
    fn from(to: To<'_>) -> Self {
        let route = match to {
            To::Primary(key) => Route::with_key(key, SlotAddr::Master),
            To::Replica(key) => Route::with_key(key, SlotAddr::ReplicaOptional),
            To::Everyone => {
                let all = MultipleNodeRoutingInfo::AllMasters;
                return Self::MultiNode((all, Some(ResponsePolicy::AllSucceeded)));
            }
        };
        Self::SingleNode(SingleNodeRoutingInfo::SpecificNode(route))
    }
}

/// A command that was not answered, or with an error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub error: RedisError,
    /// Whether it was sent, or may have been.
    pub sent: bool,
}

/// The progress of a call, for the caller that gives it up.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    sent: AtomicBool,
    used: Mutex<Option<Arc<AtomicBool>>>,
}

impl Progress {
    /// Whether a command was sent that is not answered yet.
    pub fn is_sent(&self) -> bool {
        self.sent.load(Relaxed)
    }

    /// Has the connection that was used replaced at the next call.
    pub fn give_up(&self) {
        if let Some(alive) = self.used.lock().unwrap_or_else(PoisonError::into_inner).take() {
            alive.store(false, Relaxed);
        }
    }

    fn uses(&self, alive: Arc<AtomicBool>) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Some(alive);
    }
}

impl Connection {
    /// Sends a command and takes its reply. An error of the server is an error.
    pub(crate) async fn send(&self, cmd: Cmd, to: To<'_>, progress: &Progress) -> Result<Reply, Failure> {
        #[cfg(not(feature = "cluster"))]
        let _ = to;
        let unsent = |error| Failure { error, sent: false };
        let read = |value: Value| value.extract_error().map(Reply::Value);
        let reply = match &self.0 {
            Kind::Own(slot) => {
                let (connection, alive) = slot.get().await.map_err(unsent)?;
                progress.uses(Arc::clone(&alive));
                progress.sent.store(true, Relaxed);
                let reply = connection.send(&cmd).await;
                // A primary that was demoted is left, too: its name may lead to the new one.
                if reply.as_ref().is_err_and(|error| error.is_io_error() || error.code() == Some("READONLY")) {
                    alive.store(false, Relaxed);
                }
                reply
            }
            Kind::Single(connection) => {
                progress.sent.store(true, Relaxed);
                connection.clone().send_packed_command(&cmd).await.and_then(read)
            }
            Kind::Managed(connection) => {
                progress.sent.store(true, Relaxed);
                connection.clone().send_packed_command(&cmd).await.and_then(read)
            }
            // The client does not know where the keys of these commands are, so it is told.
            #[cfg(feature = "cluster")]
            Kind::Cluster(connection) => {
                progress.sent.store(true, Relaxed);
                connection.clone().route_command(cmd, to.into()).await.and_then(read)
            }
            #[cfg(feature = "cluster")]
            Kind::OwnCluster(slot) => {
                let (connection, _) = slot.get().await.map_err(unsent)?;
                progress.sent.store(true, Relaxed);
                let reply = connection.clone().route_command(cmd, to.into()).await.and_then(read);
                // What was sent and lost has a code of its own.
                if let Err(error) = reply.as_ref().map_err(Clone::clone)
                    && error.is_io_error()
                {
                    progress.sent.store(false, Relaxed);
                    return Err(unsent(error));
                }
                reply
            }
        };
        progress.sent.store(false, Relaxed);
        let refused = |error: &RedisError| error.is_connection_refusal();
        reply.map_err(|error| Failure { sent: !refused(&error), error })
    }

    /// How many connections were made so far; 0 where they are not the limiter's own.
    pub(crate) fn made(&self) -> u64 {
        match &self.0 {
            Kind::Own(slot) => slot.made.load(Relaxed),
            #[cfg(feature = "cluster")]
            Kind::OwnCluster(slot) => slot.made.load(Relaxed),
            _ => 0,
        }
    }

    /// The slot of a key; 0 where there is only one server.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        #[cfg(feature = "cluster")]
        if self.is_cluster() {
            return slot(key);
        }
        let _ = key;
        0
    }

    pub(crate) fn is_cluster(&self) -> bool {
        #[cfg(feature = "cluster")]
        return matches!(self.0, Kind::Cluster(_) | Kind::OwnCluster(_));
        #[cfg(not(feature = "cluster"))]
        false
    }
}

/// The slot of a cluster in which a key lies: that of its hash tag, if it has one.
#[cfg(feature = "cluster")]
fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let behind = key.splitn(2, |byte| *byte == b'{').nth(1)?;
        let end = behind.iter().position(|byte| *byte == b'}').filter(|end| *end > 0)?;
        behind.get(..end)
    };
    crc16::State::<crc16::XMODEM>::calculate(tag().unwrap_or(key)) % 16384
}

#[cfg(all(test, feature = "cluster"))]
mod tests {
    use super::slot;

    #[test]
    fn keys_lie_in_the_slots_that_the_server_names() {
        // As CLUSTER KEYSLOT says.
        for (key, expected) in [("foo", 12182), ("123456789", 12739), ("{foo}bar", 12182), ("a{foo}{b}", 12182)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        for untagged in ["{}foo", "foo{}", "a{b"] {
            assert_eq!(
                slot(untagged.as_bytes()),
                crc16::State::<crc16::XMODEM>::calculate(untagged.as_bytes()) % 16384
            );
        }
    }
}
