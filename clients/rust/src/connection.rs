//! The clients of the `redis` crate that a limiter can use, and how a call is routed in each.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::cluster::ClusterClient;
use redis::cluster_routing::{
    MultipleNodeRoutingInfo, ResponsePolicy, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr,
};
use redis::{Client, Cmd, RedisError, Value};

use crate::cluster::Cluster;
use crate::error::{is_broken, no_answer};
use crate::on_demand::{Alive, OnDemand};
use crate::server::{CONNECT_TIMEOUT, Own};

/// Where a limiter sends its calls. Made by `From` of a client of the `redis` crate: a `redis::Client`, a `ClusterClient` or a
/// `SentinelClient`.
///
/// Of it a limiter makes a connection of its own, one for each Tokio runtime that calls it, at the first call there and again
/// when that has broken; a server that is unavailable so keeps no program from starting. A call is never sent twice.
#[derive(Clone)]
pub struct Connection {
    kind: Kind,
    /// What log lines call it: an address, or the kind of client.
    pub(crate) server: String,
}

#[derive(Clone)]
enum Kind {
    Server(Arc<OnDemand<Own>>),
    Cluster(Arc<OnDemand<Cluster>>),
}

impl From<Client> for Connection {
    fn from(client: Client) -> Self {
        let server = client.get_connection_info().addr().to_string();
        let connect = move |alive| {
            let client = client.clone();
            async move { Own::connect(&client, alive).await }
        };
        Self { kind: Kind::Server(Arc::new(OnDemand::new(connect))), server }
    }
}

impl From<redis::sentinel::SentinelClient> for Connection {
    fn from(client: redis::sentinel::SentinelClient) -> Self {
        let client = Arc::new(tokio::sync::Mutex::new(client));
        let connect = move |alive| {
            let client = Arc::clone(&client);
            async move {
                // The sentinels are asked anew each time: after a failover it is another server.
                let client =
                    tokio::time::timeout(CONNECT_TIMEOUT, async { client.lock().await.async_get_client().await });
                let out_of_time = |_| no_answer(io::ErrorKind::TimedOut, "the sentinels did not answer".to_owned());
                Own::connect(&client.await.map_err(out_of_time)??, alive).await
            }
        };
        Self { kind: Kind::Server(Arc::new(OnDemand::new(connect))), server: "SentinelClient".to_owned() }
    }
}

impl From<ClusterClient> for Connection {
    fn from(client: ClusterClient) -> Self {
        // It replaces the connections to nodes by itself.
        let connect = move |_| Cluster::connect(client.clone());
        Self { kind: Kind::Cluster(Arc::new(OnDemand::new(connect))), server: "ClusterClient".to_owned() }
    }
}

/// Where a command goes in a cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) enum To<'a> {
    /// To the primary that has the key.
    Primary(&'a [u8]),
    /// To a replica of it, where the client reads from replicas.
    Replica(&'a [u8]),
    /// To all primaries.
    Everyone,
}

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
    pub shows: Shows,
}

/// What a failure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// Whatever the error means, of a server that is in use.
    Server,
    /// There is no connection to the server.
    NoConnection,
    /// Nothing of the server: the connection broke, or had been given up before, or the caller has gone.
    Nothing,
}

/// What a call is doing now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    /// It waits for no server.
    #[default]
    Idle,
    Connecting,
    /// A command was sent that is not answered yet.
    Sent,
}

/// The progress of a call, for those who stop to wait for it.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<Now>);

#[derive(Debug, Default)]
struct Now {
    stage: Stage,
    is_abandoned: bool,
    is_repeated: bool,
    used: Option<Used>,
}

/// The connection that a call uses.
#[derive(Debug)]
struct Used {
    alive: Alive,
    /// Of a connection to several servers, how many calls it has answered, and had when this one began.
    answers: Option<(Arc<AtomicU64>, u64)>,
}

impl Progress {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stage(&self) -> Stage {
        self.now().stage
    }

    /// Nobody waits for the call any more: what was not sent until now never will be.
    pub fn abandon(&self) {
        self.now().is_abandoned = true;
    }

    pub fn is_abandoned(&self) -> bool {
        self.now().is_abandoned
    }

    /// It is sent again, as its reply was lost. Answers whether it was before.
    pub fn repeat(&self) -> bool {
        std::mem::replace(&mut self.now().is_repeated, true)
    }

    pub fn is_repeated(&self) -> bool {
        self.now().is_repeated
    }

    /// Has the connection that was used replaced at the next call, unless it answers others. Answers whether it was in use
    /// until now, as far as is known.
    pub fn give_up(&self) -> bool {
        let now = self.now();
        let Some(Used { alive, answers }) = &now.used else { return true };
        match answers {
            Some((answers, before)) if answers.load(Relaxed) != *before => true,
            _ => alive.swap(false, Relaxed),
        }
    }

    fn begin(&self, used: Used) -> Result<(), Failure> {
        let mut now = self.now();
        if now.is_abandoned {
            let error = no_answer(io::ErrorKind::Interrupted, "the caller has gone".to_owned());
            return Err(Failure { error, sent: false, shows: Shows::Nothing });
        }
        (now.stage, now.used) = (Stage::Sent, Some(used));
        Ok(())
    }
}

impl Connection {
    /// Sends a command and takes its reply. An error of the server is an error.
    pub(crate) async fn send(&self, cmd: Cmd, to: To<'_>, progress: &Progress) -> Result<Value, Failure> {
        progress.now().stage = Stage::Connecting;
        let reply = self.exchange(cmd, to, progress).await;
        progress.now().stage = Stage::Idle;
        reply
    }

    async fn exchange(&self, cmd: Cmd, to: To<'_>, progress: &Progress) -> Result<Value, Failure> {
        let unconnected = |error| Failure { error, sent: false, shows: Shows::NoConnection };
        let reply = match &self.kind {
            Kind::Server(connections) => {
                let (connection, alive) = connections.get().await.map_err(unconnected)?;
                progress.begin(Used { alive: Arc::clone(&alive), answers: None })?;
                let reply = connection.send(&cmd).await;
                let was_alive = alive.load(Relaxed);
                // A primary that was demoted is left, too: its name may lead to the new one.
                if reply.as_ref().is_err_and(|error| error.is_io_error() || error.code() == Some("READONLY")) {
                    alive.store(false, Relaxed);
                }
                if !was_alive {
                    return reply.map_err(|error| Failure { error, sent: true, shows: Shows::Nothing });
                }
                reply
            }
            Kind::Cluster(connections) => {
                let (connection, alive) = connections.get().await.map_err(unconnected)?;
                let answers = Arc::clone(connection.answers());
                let before = answers.load(Relaxed);
                progress.begin(Used { alive: Arc::clone(&alive), answers: Some((answers, before)) })?;
                let reply = connection.send(cmd, to.into(), &alive).await;
                // What was sent and lost has a code of its own.
                if let Err(error) = reply.as_ref().map_err(Clone::clone)
                    && error.is_io_error()
                {
                    return Err(unconnected(error));
                }
                reply
            }
        };
        reply.map_err(|error| {
            if error.is_connection_refusal() {
                return unconnected(error);
            }
            let shows = if is_broken(&error) { Shows::Nothing } else { Shows::Server };
            Failure { error, sent: true, shows }
        })
    }

    /// How many connections were made so far.
    pub(crate) fn made(&self) -> u64 {
        match &self.kind {
            Kind::Server(connections) => connections.made(),
            Kind::Cluster(connections) => connections.made(),
        }
    }

    /// The slot of a key; 0 where there is only one server, which is then of the first range of the breakers.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        if self.is_cluster() { slot(key) } else { 0 }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }
}

/// The slot of a cluster in which a key lies: that of its hash tag, if it has one.
fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let behind = key.splitn(2, |byte| *byte == b'{').nth(1)?;
        let end = behind.iter().position(|byte| *byte == b'}').filter(|end| *end > 0)?;
        behind.get(..end)
    };
    crc16::State::<crc16::XMODEM>::calculate(tag().unwrap_or(key)) % 16384
}

#[cfg(test)]
#[path = "../tests/unit/connection.rs"]
mod tests;
