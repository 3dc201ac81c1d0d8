//! Who asks by HTTP.

use std::net::IpAddr;

/// The address that a connection of HTTP comes from, among the extensions of its requests.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);
