"""Who a request counts for: the client's address, and the key that an adapter makes of it. No I/O."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable, MutableMapping, Sequence
from functools import partial
from typing import Any, cast

from ._rates import whole
from ._rules import Rule

# An address with a port, or in brackets, as X-Forwarded-For may have it.
_WITH_PORT = re.compile(r"(\d[\d.]*):\d+|\[([^\]]*)\](?::\d+)?")

LONGEST = 512
"""Bytes of an identity that a key has as it is. A header of a client's choosing would fill the server's memory."""
KEPT = 64
MARK = b"%sha256:"
TEST_CLIENT = "testclient"
"""The peer of Starlette's and FastAPI's test client. Those of Flask and Django come from 127.0.0.1."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class ClientAddress:
    """Reads the client's address from a request: who is limited, unless a middleware is given another key.

    An IPv6 address counts by its network of 64 bits, as one client usually has at least that.

    Args:
        trusted_proxies: addresses and networks (``"10.0.0.0/8"``) of your proxies. From these ``X-Forwarded-For`` is
            believed: it is read from right to left, up to the first address that is not one of them. Without it the
            client is the peer of the connection. ``"unix"`` stands for proxies that come by a unix socket, as behind
            ``uvicorn --uds``. Leave it out where the server itself does that, as ``uvicorn --proxy-headers`` does.
        ipv6_prefix: how many bits of an IPv6 address count.
    """

    def __init__(self, trusted_proxies: Iterable[str] = (), ipv6_prefix: int = 64) -> None:
        if isinstance(trusted_proxies, str):
            raise TypeError(f"trusted_proxies must be a list of addresses and networks, not {trusted_proxies!r}")
        proxies = list(trusted_proxies)
        self._trusts_unix = "unix" in proxies
        self._trusted = [_network(each) for each in proxies if each != "unix"]
        self._ipv6_prefix = whole(ipv6_prefix, "ipv6_prefix", 1, 128)

    def __call__(self, request: Any) -> str | None:
        """The identity of a framework's request, of an ASGI scope or a WSGI environ; None if it has none."""
        found = fields_of(request)
        if "headers" not in found and "client" not in found:
            return self.of(found.get("REMOTE_ADDR"), [found.get("HTTP_X_FORWARDED_FOR", "")])
        lines = [value for name, value in found.get("headers", ()) if name.lower() == b"x-forwarded-for"]
        client = found.get("client")
        return self.of(str(client[0]) if client else None, [line.decode("latin-1") for line in lines])

    def of(self, peer: str | None, forwarded: Sequence[str] = ()) -> str | None:
        """The identity of a connection's address and the lines of X-Forwarded-For, None if they have none."""
        address = _read(peer) if peer else None
        if peer == TEST_CLIENT:
            return peer
        # What is not an address is a server's name for a unix socket, which all of its clients would share.
        trusts = self._trusts_unix if address is None else self._trusts(address)
        if forwarded and any(forwarded) and trusts:
            # The last proxy has added the last address. Of a trusted one, the address before it is believed, too.
            for text in reversed(",".join(forwarded).split(",")):
                read = _read(text.strip())
                if read is None:
                    return None
                address = read
                if not self._trusts(address):
                    break
        if address is None:
            return None
        if address.version == 4 or self._ipv6_prefix == 128:
            return str(address)
        return str(ipaddress.ip_network((address, self._ipv6_prefix), strict=False))

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    network = ipaddress.ip_network(text, strict=False)
    # As a socket for both names it.
    ipv4 = getattr(network.network_address, "ipv4_mapped", None) if network.prefixlen == 128 else None
    return ipaddress.ip_network(ipv4) if ipv4 else network


def _read(text: str) -> Address | None:
    found = _WITH_PORT.fullmatch(text)
    try:
        address = ipaddress.ip_address((found[1] or found[2]) if found else text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def fields_of(request: Any) -> MutableMapping[str, Any]:
    """An ASGI scope, a WSGI environ, or that of a framework's request."""
    found = getattr(request, "META", None) or getattr(request, "scope", None) or getattr(request, "environ", request)
    return cast("MutableMapping[str, Any]", found)


def key_for(rule: Rule, identity: str | bytes, *, prefix: str = "rl:", operation: str | None = None) -> str | bytes:
    """The key at which an adapter counts an identity under a rule, for `peek`, `reset` and so on.

    Other rules have other keys, and all of one identity lie in one slot of a cluster.

    Args:
        rule: of the adapter.
        identity: of a request, such as ``"203.0.113.7"``, or ``"2001:db8:1:2::/64"`` of an IPv6 address. Of one that
            is longer than 512 bytes the key has its first 64 and a hash.
        prefix: of the adapter.
        operation: of a dependency whose rule has no name, the path operation.
    """
    policy = rule.name or rule.described() if operation is None else f"{operation} {rule.described()}"
    policy = re.sub(r"[%:{}]", lambda found: f"%{ord(found[0]):02X}", policy)
    # Half of a surrogate pair, which JSON may have, is no text that could be sent.
    text, encoding = (identity, "utf-8") if isinstance(identity, str) else (identity.decode("latin-1"), "latin-1")
    escaped = re.sub("[%{}\ud800-\udfff]", lambda found: f"%{ord(found[0]):02X}", text)
    tag = shortened(escaped.encode(encoding))
    key = f"{prefix}{policy}:".encode() + b"{" + tag + b"}"
    return key.decode() if isinstance(identity, str) else key


def name_of(function: Any) -> str:
    """What a function is called, or the class of an object that is called like one."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def shortened(identity: bytes) -> bytes:
    """An identity that is long has its beginning, up to the end of a character, and a digest."""
    if len(identity) <= LONGEST:
        return identity
    end = next(end for end in range(KEPT, LONGEST) if end > KEPT + 2 or identity[end] & 0xC0 != 0x80)
    return identity[:end] + MARK + hashlib.sha256(identity).hexdigest().encode()
