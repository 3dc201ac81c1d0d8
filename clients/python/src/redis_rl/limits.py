"""Storages for `limits <https://limits.readthedocs.io>`_ 5, and with it for Flask-Limiter and slowapi.

Importing this module registers the schemes. Then ``rl+redis://host:6379`` stands where ``redis://host:6379`` did:

====================================  ======================================
``rl+redis://``, ``rl+rediss://``     redis-py, one server
``rl+redis+unix://``                  redis-py, a unix socket
``rl+redis+cluster://h1:p1,h2:p2``    redis-py, a cluster
``rl+valkey://`` and so on            the same with valkey-py
``async+rl+redis://`` and so on       the same for ``limits.aio``
====================================  ======================================

The strategy ``moving-window`` is RL.SLIDING, and ``fixed-window`` is RL.FIXED with ANCHORED: as in the storages of
limits, a window begins with its first hit and counts hits that are denied. ``sliding-window-counter`` is exact here,
and the same as ``moving-window``. Decisions use the server's clock.
"""

from __future__ import annotations

import importlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from limits.aio.storage import MovingWindowSupport as AioMovingWindowSupport
from limits.aio.storage import SlidingWindowCounterSupport as AioSlidingWindowCounterSupport
from limits.aio.storage import Storage as AioStorage
from limits.limits import TIME_TYPES
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage

from ._aio import AsyncLimiter
from ._protocol import Command
from ._rates import MAX_UNITS
from ._result import State
from ._rules import Fixed, Frames, Sliding, Word, fixed, sliding
from ._sync import Limiter

__all__ = ["AsyncRlStorage", "RlStorage"]

_BASES = (
    "redis",
    "rediss",
    "redis+unix",
    "redis+cluster",
    "valkey",
    "valkeys",
    "valkey+unix",
    "valkey+cluster",
)
_SCHEMES = [f"rl+{base}" for base in _BASES]
_ASYNC_SCHEMES = [f"async+{scheme}" for scheme in _SCHEMES]
_SIZES = {name: granularity.seconds for name, granularity in TIME_TYPES.items()}

# Not that of limits' own storages, which keep other types at the same keys: one may follow the other on a server.
PREFIX = "RL-LIMITS"

# Windows of keys that do not tell them, for as many keys as are remembered.
_REMEMBERED = 10_000


class _Windows:
    """Knows the window of a key: limits asks for a counter's value by its key alone.

    The keys of limits' items end in ``/{amount}/{multiples}/{granularity}``. For others, what was counted last here.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, int] = OrderedDict()

    def learn(self, key: str, expiry: int) -> None:
        if not key.endswith(_endings(expiry)):
            self._seen[key] = expiry
            self._seen.move_to_end(key)
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)

    def of(self, key: str) -> int | None:
        return self._seen.get(key) or self._parsed(key)

    @staticmethod
    def _parsed(key: str) -> int | None:
        parts = key.rsplit("/", 2)
        size = _SIZES.get(parts[-1])
        if len(parts) < 3 or size is None or not parts[-2].isdecimal():
            return None
        return size * int(parts[-2])


@lru_cache(maxsize=1024)
def _endings(expiry: int) -> tuple[str, ...]:
    """How the keys of limits' items end whose window this is."""
    return tuple(f"/{expiry // size}/{name}" for name, size in _SIZES.items() if expiry % size == 0)


@lru_cache(maxsize=1024)
def _counter(expiry: int, amount: int | None = None) -> Fixed:
    # The storage does not learn the limit: it counts, and the strategy decides.
    return fixed((MAX_UNITS, expiry), anchored=True, cost=amount)


@lru_cache(maxsize=1024)
def _log(limit: int, expiry: int, amount: int | None = None) -> Sliding:
    # Always with a cost, so that the module stores the key in a form that takes any.
    return sliding((limit, expiry), cost=amount)


@lru_cache(maxsize=1024)
def _count(expiry: int, amount: int) -> tuple[Sequence[Word], Frames]:
    """The words that count in a counter. The reply is the short one: allowed, count, ttl."""
    return _counter(expiry, amount if amount > 1 else None).words(), {}


@lru_cache(maxsize=1024)
def _enter(limit: int, expiry: int, amount: int) -> tuple[Sequence[Word], Frames]:
    """The words that put entries into a log, for the short reply."""
    return _log(limit, expiry, amount).words(), {}


def _client(uri: str, package: str, options: dict[str, Any]) -> Any:
    """A client of the library for the uri, without the ``rl+`` of its scheme."""
    library = "valkey" if uri.startswith("valkey") else "redis"
    module = importlib.import_module(f"{library}{package}")
    scheme, _, rest = uri.partition("://")
    if scheme.endswith("+unix"):
        return module.from_url(f"unix://{rest}", **options)
    if not scheme.endswith("+cluster"):
        return module.from_url(uri, **options)
    cluster = importlib.import_module(f"{library}{package}.cluster")
    parts = urlsplit(uri)
    nodes = [urlsplit(f"//{node}") for node in parts.netloc.rpartition("@")[2].split(",")]
    login = {"username": parts.username, "password": parts.password}
    options = {**{name: value for name, value in login.items() if value}, **options}
    return getattr(cluster, f"{library.capitalize()}Cluster")(
        startup_nodes=[cluster.ClusterNode(node.hostname, node.port or 6379) for node in nodes], **options
    )


def _patterns(client: Any, prefix: str) -> list[str]:
    """Where the keys of the storage are. In a cluster the counter of ``key`` is ``{key}:60s``."""
    return [f"{prefix}:*", f"{{{prefix}:*"] if hasattr(client, "nodes_manager") else [f"{prefix}:*"]


def _moving_window(state: State, expiry: int) -> tuple[float, int]:
    """The start of the window, as the time of its oldest hit, and the hits in it."""
    now = time.time()
    if not state.used or state.next_after_ms is None:
        return now, state.used
    return now + state.next_after_ms / 1000 - expiry, state.used


def _sliding_window(state: State, expiry: int) -> tuple[int, float, int, float]:
    """No estimate from a window before: the present one has the exact count."""
    # limits takes the remainder of the time by the window, and would make nothing of a whole one.
    wait = min(state.next_after_ms or 0, expiry * 1000 - 1)
    return 0, 0.0, state.used, wait / 1000


class RlStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """The storage for the strategies of ``limits``.

    Args:
        uri: a server, with one of the schemes above.
        wrap_exceptions: raise ``limits.errors.StorageError`` in place of the client's errors.
        key_prefix: put before every key, with a colon. limits' own storages have another one, so that both can use
            one server.
        client: a client to use in place of one for the uri, such as one of a sentinel.
        options: for the client.
    """

    STORAGE_SCHEME = _SCHEMES

    def __init__(
        self,
        uri: str,
        wrap_exceptions: bool = False,
        key_prefix: str = PREFIX,
        client: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions, **options)
        self.key_prefix = key_prefix
        self.client = client or _client(uri.removeprefix("rl+"), "", options)
        self._prefix = f"{key_prefix}:"
        self.limiter = Limiter(self.client, prefix=self._prefix)
        self._windows = _Windows()

    @property
    def base_exceptions(self) -> type[Exception]:
        return self.limiter.client_errors

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        self._windows.learn(key, expiry)
        if amount < 1:
            return self.get(key)
        _, count, _ = self.limiter.ask(Command("FIXED", (self._prefix + key,), *_count(expiry, amount)))
        return int(count)

    def get(self, key: str) -> int:
        state = self._state(key)
        return state.used if state else 0

    def get_expiry(self, key: str) -> float:
        state = self._state(key)
        return time.time() + (state.reset_after_ms or 0) / 1000 if state else time.time()

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        if amount < 1:
            return self.limiter.peek(key, _log(limit, expiry), cost=0).used <= limit
        allowed, _, _ = self.limiter.ask(Command("SLIDING", (self._prefix + key,), *_enter(limit, expiry, amount)))
        return bool(allowed)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return _moving_window(self.limiter.peek(key, _log(limit, expiry), cost=0), expiry)

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return self.acquire_entry(key, limit, expiry, amount)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return _sliding_window(self.limiter.peek(key, _log(MAX_UNITS, expiry), cost=0), expiry)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        self.clear(key)

    def check(self) -> bool:
        try:
            return bool(self.client.ping())
        except (self.limiter.client_errors, OSError):
            return False

    def clear(self, key: str) -> None:
        window = self._windows.of(key)
        self.limiter.reset(key, *([_counter(window)] if window else []))

    def reset(self) -> int | None:
        gone = 0
        for pattern in _patterns(self.client, self.key_prefix):
            for name in self.client.scan_iter(pattern, count=1000):
                gone += self.client.unlink(name)
        return gone

    def _state(self, key: str) -> State | None:
        window = self._windows.of(key)
        return self.limiter.peek(key, _counter(window), cost=0) if window else None


class AsyncRlStorage(AioStorage, AioMovingWindowSupport, AioSlidingWindowCounterSupport):
    """The storage for the strategies of ``limits.aio``. Args: those of `RlStorage`, the client one of asyncio."""

    STORAGE_SCHEME = _ASYNC_SCHEMES

    def __init__(
        self,
        uri: str,
        wrap_exceptions: bool = False,
        key_prefix: str = PREFIX,
        client: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions, **options)
        self.key_prefix = key_prefix
        self.client = client or _client(uri.removeprefix("async+").removeprefix("rl+"), ".asyncio", options)
        self._prefix = f"{key_prefix}:"
        self.limiter = AsyncLimiter(self.client, prefix=self._prefix)
        self._windows = _Windows()

    @property
    def base_exceptions(self) -> type[Exception]:
        return self.limiter.client_errors

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        self._windows.learn(key, expiry)
        if amount < 1:
            return await self.get(key)
        _, count, _ = await self.limiter.ask(Command("FIXED", (self._prefix + key,), *_count(expiry, amount)))
        return int(count)

    async def get(self, key: str) -> int:
        state = await self._state(key)
        return state.used if state else 0

    async def get_expiry(self, key: str) -> float:
        state = await self._state(key)
        return time.time() + (state.reset_after_ms or 0) / 1000 if state else time.time()

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        if amount < 1:
            return (await self.limiter.peek(key, _log(limit, expiry), cost=0)).used <= limit
        words = _enter(limit, expiry, amount)
        allowed, _, _ = await self.limiter.ask(Command("SLIDING", (self._prefix + key,), *words))
        return bool(allowed)

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        return _moving_window(await self.limiter.peek(key, _log(limit, expiry), cost=0), expiry)

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return await self.acquire_entry(key, limit, expiry, amount)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return _sliding_window(await self.limiter.peek(key, _log(MAX_UNITS, expiry), cost=0), expiry)

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self.clear(key)

    async def check(self) -> bool:
        try:
            return bool(await self.client.ping())
        except (self.limiter.client_errors, OSError):
            return False

    async def clear(self, key: str) -> None:
        window = self._windows.of(key)
        await self.limiter.reset(key, *([_counter(window)] if window else []))

    async def reset(self) -> int | None:
        gone = 0
        for pattern in _patterns(self.client, self.key_prefix):
            async for name in self.client.scan_iter(pattern, count=1000):
                gone += await self.client.unlink(name)
        return gone

    async def _state(self, key: str) -> State | None:
        window = self._windows.of(key)
        return await self.limiter.peek(key, _counter(window), cost=0) if window else None
