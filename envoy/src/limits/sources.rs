//! How a request of HTTP becomes descriptors: which limits of a domain it meets, and where the values of their keys are.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use axum::extract::ConnectInfo;
use http::HeaderName;
use http::request::Parts;
use redis_rl_client::ByAddress;

use crate::messages::{Entry, RateLimitDescriptor};

/// Where the value of a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Header(HeaderName),
    /// The path behind `/check/DOMAIN`, with its query, and the method: those of a request that is sent here as it came.
    Path,
    Method,
    /// A parameter of the query.
    Query(String),
    /// The address of the client.
    Address,
}

impl Source {
    /// The header with this name, or what Envoy calls `:path` and `:method`. `None` if no header has such a name.
    pub fn header(name: &str) -> Option<Self> {
        match name {
            ":path" => Some(Self::Path),
            ":method" => Some(Self::Method),
            name => HeaderName::try_from(name).ok().map(Self::Header),
        }
    }

    /// The value, if the request has one. `path`: what stands behind the domain.
    fn value(&self, request: &Parts, path: &str, clients: &ByAddress) -> Option<String> {
        let query = request.uri.query();
        match self {
            Self::Header(name) => {
                // Several lines are one list. Bytes that are no text do not keep a limit from a request.
                let lines = request.headers.get_all(name).iter();
                let lines: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
                (!lines.is_empty()).then(|| lines.join(","))
            }
            Self::Path => Some(query.map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"))),
            Self::Method => Some(request.method.to_string()),
            Self::Query(name) => {
                let mut pairs = form_urlencoded::parse(query?.as_bytes());
                pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
            }
            Self::Address => {
                let ConnectInfo(peer) = request.extensions.get::<ConnectInfo<IpAddr>>()?;
                clients.identity(*peer, &request.headers)
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Sources {
    pub(super) sources: BTreeMap<String, Source>,
    /// The keys of each limit, those of its descriptor last; of these a request makes its descriptors.
    pub(super) limits: BTreeSet<Vec<String>>,
}

impl Sources {
    /// To be called when all files are read: keeps the limits of which all keys have a source.
    /// An error is a key that belongs to none of these.
    pub fn complete(&mut self) -> Result<(), String> {
        let Self { sources, limits } = self;
        limits.retain(|keys| keys.iter().all(|key| sources.contains_key(key)));
        match sources.keys().find(|key| !limits.iter().any(|keys| keys.contains(key))) {
            Some(key) => Err(key.clone()),
            None => Ok(()),
        }
    }

    /// The descriptors of a request: one for each limit of which all keys have a value there.
    pub fn descriptors(&self, request: &Parts, path: &str, clients: &ByAddress) -> Vec<RateLimitDescriptor> {
        let values = self.sources.iter().filter_map(|(key, source)| Some((key, source.value(request, path, clients)?)));
        let values: BTreeMap<_, _> = values.collect();
        let entry = |key: &String| values.get(key).map(|value| Entry { key: key.clone(), value: value.clone() });
        let entries = self.limits.iter().filter_map(|keys| keys.iter().map(entry).collect());
        entries.map(|entries| RateLimitDescriptor { entries, ..Default::default() }).collect()
    }
}
