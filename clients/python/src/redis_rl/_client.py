"""What is known of the user's client, and the clients that are derived from it, with connections of our own."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ._protocol import Errors, log

# Options that belong to the pool that they are in, that send commands again, or that the call's deadline stands for.
_NOT_COPIED = {"retry", "retry_on_error", "retry_on_timeout", "connection_pool", "cache", "cache_config"}
_NOT_COPIED |= {"event_dispatcher", "himport_registry", "socket_timeout", "socket_connect_timeout"}
_NOT_COPIED_PREFIXES = ("maint_", "maintenance_", "orig_", "oss_cluster_")

Address = tuple[str, int]


class Client:
    """A client of redis-py or valkey-py, for threads or for asyncio, for one server or a cluster."""

    def __init__(self, client: Any, *, asynchronous: bool) -> None:
        names = [base.__module__ for base in type(client).__mro__]
        roots = (name.partition(".")[0] for name in names)
        self.library = next((root for root in roots if root in ("redis", "valkey")), "")
        # A client's representation has all of its settings, and a URL a password.
        shown = f"a {type(client).__module__}.{type(client).__qualname__}"
        is_pipeline = any(base.__name__.endswith("Pipeline") for base in type(client).__mro__)
        is_client = hasattr(client, "connection_pool") or hasattr(client, "nodes_manager")
        if not self.library or is_pipeline or not is_client:
            raise TypeError(f"a client of redis-py or valkey-py is needed, not {shown}")
        if asynchronous != any(name.startswith(f"{self.library}.asyncio") for name in names):
            known = (f"{self.library}.asyncio", "AsyncLimiter") if not asynchronous else (self.library, "Limiter")
            raise TypeError(f"a client of {known[0]} is for {known[1]}, and this is {shown}")
        self.client = client
        self.is_cluster = hasattr(client, "nodes_manager")
        self.errors = Errors(self.library, cluster=self.is_cluster)
        self._asynchronous = asynchronous
        self._package: Any = importlib.import_module(f"{self.library}.asyncio" if asynchronous else self.library)
        self.reads_from_replicas = bool(
            getattr(client, "read_from_replicas", False) or getattr(client, "load_balancing_strategy", None)
        )

    def nodes(self) -> dict[Address, Any]:
        manager = self.client.nodes_manager
        known = (*manager.nodes_cache.values(), *manager.startup_nodes.values())
        return {(str(node.host), int(node.port)): node for node in known}

    def remapped(self, host: str, port: int) -> Address:
        """Where a node of a cluster is found that has this address, with the client's ``address_remap``."""
        host, port = self.client.nodes_manager.remap_host_port(host, port)
        return host, port

    def derive(self, connection_class: Callable[[Any], Any], address: Address | None = None) -> Any | None:
        """A client like the user's with connections of its own, which send nothing twice; None if it cannot be.

        It cannot where the client of one server, its pool or its connections are of a kind that is not the library's
        own, as a mock's or a wrapper's: then the user's client is to be used. ``connection_class`` makes a class of
        connections of the library's.
        """
        foreign = self._foreign() if address is None else None
        if foreign is None:
            return self._derived(self.client, connection_class, address)
        what = "a client is used as it is, with its own time-outs, retries and connections: %s is not of %s"
        log.warning(what, foreign, self.library)
        return None

    def _foreign(self) -> str | None:
        """What is not the library's own."""
        if "execute_command" in vars(self.client):
            return "its execute_command"
        pool, own = self.client.connection_pool, (self._package.connection, self._package.sentinel)
        kinds = [kind for kind in (type(pool), pool.connection_class) if sys.modules[kind.__module__] not in own]
        return kinds[0].__qualname__ if kinds else None

    def _derived(self, client: Any, connection_class: Callable[[Any], Any], address: Address | None) -> Any:
        if address is None:
            source = client.connection_pool
        else:
            source = next(iter(self.nodes().values()))
            if not self._asynchronous:
                source = getattr(client, f"get_{self.library}_connection")(source).connection_pool
        # Without the options for it a connection sends nothing again.
        options = {
            name: value
            for name, value in source.connection_kwargs.items()
            if name not in _NOT_COPIED and not name.startswith(_NOT_COPIED_PREFIXES)
        }
        if address is not None:
            options |= {"host": address[0], "port": address[1]}
        options["max_connections"] = source.max_connections
        connections = self._package.connection
        # Where connections hear of maintenance (redis-py 7 for threads, 8 for both): our time-outs do not grow with it.
        maintenance = getattr(connections, "MaintNotificationsConfig", None)
        if maintenance is not None and not issubclass(source.connection_class, connections.UnixDomainSocketConnection):
            options["maint_notifications_config"] = maintenance(enabled=False)
        options["connection_class"] = connection_class(source.connection_class)
        if hasattr(source, "sentinel_manager"):
            # Sentinels are asked within the deadline, too.
            sentinels = copy.copy(source.sentinel_manager)
            sentinels.sentinels = [self._derived(sentinel, connection_class, None) for sentinel in sentinels.sentinels]
            options |= {"is_master": source.is_master, "check_connection": source.check_connection}
            own = type(source)(source.service_name, sentinels, **options)
        else:
            own = connections.ConnectionPool(**options)
        if address is not None:
            return getattr(self._package, self.library.capitalize())(connection_pool=own)
        # A copy, so that a class with a constructor of its own stays what it is.
        derived = copy.copy(client)
        derived.connection_pool = own
        derived.connection = None
        # Of threads the one, of asyncio the other.
        derived.single_connection_client = derived._single_connection_client = False
        return derived


def make_client(uri: str, options: dict[str, Any], *, asynchronous: bool) -> Any:
    """A client for a URI like ``redis+cluster://...``."""
    if not isinstance(uri, str):
        raise TypeError(f"the URL must be a string, not of {type(uri)}")
    try:
        _hosts(urlsplit(uri), 0)
    except ValueError:
        # Its words may be a part of the password.
        raise ValueError("the URL cannot be read: in a password, characters such as / and # are escaped") from None
    library = "valkey" if uri.startswith("valkey") else "redis"
    package: Any = importlib.import_module(f"{library}.asyncio" if asynchronous else library)
    scheme, _, rest = uri.partition("://")
    pool = options.pop("connection_pool", None)
    if pool is not None:
        return getattr(package, library.capitalize())(connection_pool=pool, **options)
    base, _, kind = scheme.partition("+")
    if kind not in ("cluster", "sentinel"):
        return package.from_url(f"unix://{rest}" if kind == "unix" else uri, **options)
    # The login and the options, as the library reads those of one server.
    parts = urlsplit(uri)
    known = package.connection.parse_url(f"{base}://{parts.netloc.rpartition('@')[0]}@?{parts.query}")
    if known.pop("connection_class", None) is not None:
        known["ssl"] = True
    if kind == "cluster":
        cluster = importlib.import_module(f"{package.__name__}.cluster")
        nodes = [cluster.ClusterNode(host, port) for host, port in _hosts(parts, 6379)]
        return getattr(cluster, f"{library.capitalize()}Cluster")(startup_nodes=nodes, **known | options)
    # With the options of limits' own storage.
    service = options.pop("service_name", None) or parts.path.strip("/")
    if not service:
        raise ValueError("the name of the service is missing: rl+redis+sentinel://host:26379/name")
    options.pop("use_replicas", None)
    own = {name: known[name] for name in ("username", "password", "ssl") if name in known}
    sentinel_kwargs = own | (options.pop("sentinel_kwargs", None) or {})
    sentinel = package.Sentinel(_hosts(parts, 26379), sentinel_kwargs=sentinel_kwargs, **known | options)
    return sentinel.master_for(service)


def _hosts(parts: SplitResult, port: int) -> list[tuple[str | None, int]]:
    nodes = [urlsplit(f"//{node}") for node in parts.netloc.rpartition("@")[2].split(",")]
    return [(node.hostname, node.port or port) for node in nodes]


def clients_of(client: Any | None) -> list[Any]:
    """The client, if there is one, and those that it asks for the primary."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    return [client, *(manager.sentinels if manager else ())] if client is not None else []
