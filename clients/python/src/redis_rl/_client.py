"""What is known of the user's client, and the connections that are derived from it."""

from __future__ import annotations

import importlib
from typing import Any

from ._protocol import Errors

# Options that are not the user's but belong to the pool that they are in, and those that send commands again.
_NOT_COPIED = {"retry", "retry_on_error", "retry_on_timeout", "connection_pool", "cache", "cache_config"}
_NOT_COPIED |= {"event_dispatcher", "himport_registry"}
_NOT_COPIED_PREFIXES = ("maint_", "maintenance_", "orig_", "oss_cluster_")

MOST_AT_ONCE = 32
"""Calls of a process that are under way at once; others wait for one of them to end."""


class Client:
    """A client of redis-py or valkey-py, for threads or for asyncio, for one server or a cluster."""

    def __init__(self, client: Any, *, asynchronous: bool) -> None:
        names = [base.__module__ for base in type(client).__mro__]
        self.library = next((root for root in (name.partition(".")[0] for name in names) if root in _LIBRARIES), "")
        # A client's own representation has all of its settings.
        shown = f"a {type(client).__module__}.{type(client).__qualname__}" if self.library else repr(client)
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
        self._package = f"{self.library}.asyncio" if asynchronous else self.library

    def module(self, name: str) -> Any:
        """A module of the client library, that for asyncio if the client is."""
        return importlib.import_module(f"{self._package}.{name}")

    @property
    def most_at_once(self) -> int:
        """How many calls may be under way at once."""
        return min(MOST_AT_ONCE, getattr(self.client.connection_pool, "max_connections", MOST_AT_ONCE))

    def derive(self, connection_class: Any = None, **options: Any) -> Any | None:
        """A client like the user's with connections of its own, which send nothing twice; None if it cannot be.

        It cannot where the user's client, pool or connections are of classes that are not the library's own, or where
        the client's ``execute_command`` was replaced, as a mock or a wrapper does: then that one is to be used.
        """
        if self.is_cluster or "execute_command" in vars(self.client):
            return None
        pool = self.client.connection_pool
        modules = (f"{self._package}.connection", f"{self._package}.sentinel")
        if type(pool).__module__ not in modules or pool.connection_class.__module__ not in modules:
            return None
        kwargs = {
            name: value
            for name, value in pool.connection_kwargs.items()
            if name not in _NOT_COPIED and not name.startswith(_NOT_COPIED_PREFIXES)
        }
        backoff = importlib.import_module(f"{self.library}.backoff").NoBackoff()
        kwargs |= {"retry": self.module("retry").Retry(backoff, 0), **options}
        kwargs["connection_class"] = (
            connection_class(pool.connection_class) if connection_class else pool.connection_class
        )
        if not issubclass(pool.connection_class, self.module("connection").UnixDomainSocketConnection):
            kwargs |= _no_maintenance(self.library)
        if hasattr(pool, "sentinel_manager"):
            own = type(pool)(
                pool.service_name,
                pool.sentinel_manager,
                is_master=pool.is_master,
                check_connection=pool.check_connection,
                **kwargs,
            )
        else:
            own = self.module("connection").ConnectionPool(**kwargs)
        try:
            return type(self.client)(connection_pool=own)
        except TypeError:
            # A subclass with a constructor of its own.
            return None


_LIBRARIES = ("redis", "valkey")


def _no_maintenance(library: str) -> dict[str, Any]:
    """For versions that announce maintenance: our time-outs do not grow with it."""
    try:
        notifications = importlib.import_module(f"{library}.maint_notifications")
    except ModuleNotFoundError:
        return {}
    return {"maint_notifications_config": notifications.MaintNotificationsConfig(enabled=False)}


def reader(client: Any, key: str | bytes) -> Any:
    """The node of a cluster for a command that only reads: a replica, if the client is set to read from them."""
    from_replicas = bool(getattr(client, "read_from_replicas", False))
    strategy = getattr(client, "load_balancing_strategy", None)
    options = {} if strategy is None else {"load_balancing_strategy": strategy}
    return client.nodes_manager.get_node_from_slot(client.keyslot(key), from_replicas, **options)


def writer(client: Any, key: str | bytes) -> Any:
    """The node of a cluster that has the key."""
    return client.nodes_manager.get_node_from_slot(client.keyslot(key))
