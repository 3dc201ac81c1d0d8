//! By what a request is counted, and the key that this makes.

use std::net::{IpAddr, Ipv6Addr};

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::{IpNet, Ipv6Net};
use sha2::{Digest, Sha256};

use crate::error::Error;

/// How many bits of an IPv6 address count, unless set: what one customer has.
pub(crate) const IPV6_PREFIX: u8 = 64;

/// The address of a request's sender as its identity.
///
/// An IPv6 address counts by its network of 64 bits, which is what one customer has. Without trusted proxies the address
/// is that of the peer, whatever the request's headers say. Behind proxies, name their addresses or networks: if the peer
/// is one of them, `X-Forwarded-For` is read from its end, and the first address that is not a trusted proxy is the
/// sender's. Nothing that a client writes itself is believed.
///
/// [Behind proxies](crate#behind-proxies) shows how it is used.
#[derive(Debug, Clone)]
pub struct ByAddress {
    header: HeaderName,
    trusted: Vec<IpNet>,
    ipv6_prefix: u8,
    or_proxy: bool,
}

impl Default for ByAddress {
    fn default() -> Self {
        let header = HeaderName::from_static("x-forwarded-for");
        Self { header, trusted: Vec::new(), ipv6_prefix: IPV6_PREFIX, or_proxy: false }
    }
}

impl ByAddress {
    /// The addresses, or networks such as `10.0.0.0/8`, of the proxies in front of this service.
    pub fn trusted_proxies<T: AsRef<str>>(mut self, proxies: impl IntoIterator<Item = T>) -> Result<Self, Error> {
        self.trusted = proxies.into_iter().map(|proxy| network(proxy.as_ref())).collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// The header in which the proxies name the sender, where that is not `X-Forwarded-For`: one address, or a list in
    /// which each proxy adds the address that it sees.
    #[must_use]
    pub fn header(mut self, header: HeaderName) -> Self {
        self.header = header;
        self
    }

    /// How many bits of an IPv6 address count, 1 to 128. 64 unless set.
    pub fn ipv6_prefix(mut self, bits: u8) -> Result<Self, Error> {
        if !(1..=128).contains(&bits) {
            return Err(Error::Invalid(format!("an IPv6 prefix must be from 1 to 128 bits, not {bits}")));
        }
        self.ipv6_prefix = bits;
        Ok(self)
    }

    /// Where the header names no address, the request counts by the trusted proxy that says so, instead of having no
    /// identity: all such requests of a proxy share one limit.
    #[must_use]
    pub fn or_proxy(mut self) -> Self {
        self.or_proxy = true;
        self
    }

    /// The identity of a request from a peer with these headers: `203.0.113.7` or `2001:db8:1:2::/64`. `None` if its address
    /// is not known.
    pub fn identity(&self, peer: IpAddr, headers: &HeaderMap) -> Option<String> {
        let mut sender = peer.to_canonical();
        let lines = headers.get_all(&self.header).iter().map(HeaderValue::as_bytes).rev();
        let lines = lines.filter(|line| !line.trim_ascii().is_empty());
        for text in lines.flat_map(|line| line.rsplit(|byte| *byte == b',')) {
            if !self.is_trusted(sender) {
                break;
            }
            match address(text.trim_ascii()) {
                Some(address) => sender = address,
                None if self.or_proxy => break,
                None => return None,
            }
        }
        let IpAddr::V6(address) = sender else { return Some(sender.to_string()) };
        if self.ipv6_prefix == Ipv6Addr::BITS as u8 {
            return Some(address.to_string());
        }
        Some(Ipv6Net::new(address, self.ipv6_prefix).ok()?.trunc().to_string())
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address))
    }
}

fn network(text: &str) -> Result<IpNet, Error> {
    let address = || text.parse::<IpAddr>().map(|address| IpNet::from(address.to_canonical())).ok();
    text.parse().ok().or_else(address).ok_or_else(|| {
        Error::Invalid(format!("a trusted proxy must be an address or a network such as 10.0.0.0/8, not {text:?}"))
    })
}

/// An address, with a port or without.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse().ok().or_else(|| Some(text.parse::<std::net::SocketAddr>().ok()?.ip()));
    address.map(|address| address.to_canonical())
}

/// What stands in an adapter's key before the identity: the prefix, the policy, and the begin of the hash tag.
pub(crate) fn head(prefix: &[u8], policy: &str) -> Vec<u8> {
    let mut head = prefix.to_vec();
    escape(policy.as_bytes(), b"%:{}", &mut head);
    head.extend_from_slice(b":{");
    head
}

/// An identity that is longer than this becomes its first bytes and a hash.
pub(crate) const LONGEST: usize = 512;
pub(crate) const KEPT: usize = 64;
pub(crate) const MARK: &str = "%sha256:";

/// An adapter's key. The identity is its hash tag, so that all rules about it lie in one slot of a cluster.
pub(crate) fn key(head: &[u8], identity: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(head.len() + identity.len().min(LONGEST) + 1);
    key.extend_from_slice(head);
    escape(identity, b"%{}", &mut key);
    let escaped = key.get(head.len()..).unwrap_or_default();
    if escaped.len() > LONGEST {
        let hash: String = Sha256::digest(escaped).iter().map(|byte| format!("{byte:02x}")).collect();
        // Not within a character of UTF-8.
        let behind = escaped.get(KEPT..).unwrap_or_default().iter();
        let rest = behind.take_while(|byte| (0x80..0xC0).contains(*byte)).count().min(3);
        key.truncate(head.len() + KEPT + rest);
        key.extend_from_slice(MARK.as_bytes());
        key.extend_from_slice(hash.as_bytes());
    }
    key.push(b'}');
    key
}

fn escape(text: &[u8], special: &[u8], to: &mut Vec<u8>) {
    for byte in text {
        if special.contains(byte) {
            to.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            to.push(*byte);
        }
    }
}

#[cfg(test)]
#[path = "../tests/unit/identity.rs"]
mod tests;
