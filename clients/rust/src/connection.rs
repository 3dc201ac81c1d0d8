//! The connections of the `redis` crate that a limiter can use, and how a call is routed in each.

use redis::aio::{ConnectionManager, MultiplexedConnection};
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
#[cfg(feature = "cluster")]
use redis::cluster_routing::{
    MultipleNodeRoutingInfo, ResponsePolicy, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr,
};
use redis::{Cmd, RedisResult, Value};

#[cfg(feature = "cluster")]
use crate::cluster::SendsOnce;

/// A connection to a server or a cluster. Made of any of the `redis` crate's asynchronous connections by `From`.
///
/// A [`ConnectionManager`] and a [`MultiplexedConnection`] send a call once. A `ClusterConnection` sends a call again if
/// its reply is lost, as often as its client's `retries` say, and so may count it more than once; one that does not is
/// [`Connection::cluster`].
#[derive(Clone)]
pub struct Connection(Kind);

#[derive(Clone)]
enum Kind {
    Single(MultiplexedConnection),
    Managed(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(ClusterConnection),
    #[cfg(feature = "cluster")]
    Once(ClusterConnection<SendsOnce>),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Kind::Single(_) => "Connection(MultiplexedConnection)",
            Kind::Managed(_) => "Connection(ConnectionManager)",
            #[cfg(feature = "cluster")]
            Kind::Cluster(_) => "Connection(ClusterConnection)",
            #[cfg(feature = "cluster")]
            Kind::Once(_) => "Connection(ClusterConnection<SendsOnce>)",
        })
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
impl From<ClusterConnection> for Connection {
    fn from(connection: ClusterConnection) -> Self {
        Self(Kind::Cluster(connection))
    }
}

#[cfg(feature = "cluster")]
impl From<ClusterConnection<SendsOnce>> for Connection {
    fn from(connection: ClusterConnection<SendsOnce>) -> Self {
        Self(Kind::Once(connection))
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

impl Connection {
    /// Sends a command and takes its reply. An error of the server is an error.
    pub(crate) async fn send(&self, cmd: Cmd, to: To<'_>) -> RedisResult<Value> {
        #[cfg(not(feature = "cluster"))]
        let _ = to;
        let reply = match &self.0 {
            Kind::Single(connection) => connection.clone().send_packed_command(&cmd).await,
            Kind::Managed(connection) => connection.clone().send_packed_command(&cmd).await,
            // The client does not know where the keys of these commands are, so it is told.
            #[cfg(feature = "cluster")]
            Kind::Cluster(connection) => connection.clone().route_command(cmd, to.into()).await,
            #[cfg(feature = "cluster")]
            Kind::Once(connection) => connection.clone().route_command(cmd, to.into()).await,
        };
        reply.and_then(Value::extract_error)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        #[cfg(feature = "cluster")]
        return matches!(self.0, Kind::Cluster(_) | Kind::Once(_));
        #[cfg(not(feature = "cluster"))]
        false
    }
}
