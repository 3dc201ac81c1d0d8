"""The storage for limits."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from typing import Any, Literal

from limits.aio.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage
from limits.limits import GRANULARITIES

from .._client import make_client
from .._identity import shortened
from .._protocol import Command, Error
from .._rates import MAX_UNITS
from .._result import State
from .._rules import Fixed, Sliding, fixed, sliding
from .io import IS_ASYNC
from .limiter import AsyncLimiter

SCHEMES = [
    ("async+rl+" if IS_ASYNC else "rl+") + library + kind
    for library in ("redis", "valkey")
    for kind in ("", "s", "+unix", "+cluster", "s+cluster", "+sentinel", "s+sentinel")
]

# Not that of limits' own storages, which keep other types at the same keys: one may follow the other on a server.
PREFIX = "RL-LIMITS"


def window_of(key: str) -> int | None:
    """The window of an item's key, which ends in ``/{amount}/{multiples}/{granularity}``.

    limits asks for a counter's value by its key alone.
    """
    parts = key.rsplit("/", 2)
    item = GRANULARITIES.get(parts[-1])
    if len(parts) < 3 or item is None or not parts[-2].isdecimal():
        return None
    return item.GRANULARITY.seconds * int(parts[-2])


@lru_cache(maxsize=1024)
def counter(expiry: int, amount: int | None = None) -> Fixed:
    """The rule of a counter. The storage does not learn the limit: it counts, and the strategy decides."""
    return fixed((MAX_UNITS, expiry), anchored=True, cost=amount)


@lru_cache(maxsize=1024)
def moving(limit: int, expiry: int, amount: int | None = None) -> Sliding:
    """The rule of a log."""
    return sliding((limit, expiry), cost=amount)


def named(key: str) -> str:
    """The key as the server has it: an identity in it may be of any length."""
    return shortened(key.encode()).decode()


class AsyncRlStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """The storage for the strategies of limits.

    Args:
        uri: a server, with one of the schemes of `redis_rl.limits`.
        wrap_exceptions: raise ``limits.errors.StorageError`` in place of the client's errors.
        key_prefix: put before every key, with a colon. limits' own storages have another one, so that both can use
            one server.
        client: a client to use in place of one for the uri.
        mode, timeout, name, hook: as in the limiter; the timeout is 0.25 s unless given.
        options: for the client: ``connection_pool``, ``socket_keepalive``, for a sentinel ``service_name`` and
            ``sentinel_kwargs``, and so on.
    """

    STORAGE_SCHEME = SCHEMES

    def __init__(
        self,
        uri: str,
        wrap_exceptions: bool = False,
        key_prefix: str = PREFIX,
        client: Any = None,
        mode: Literal["auto", "module", "functions", "script"] = "auto",
        timeout: float | str = 0.25,
        name: str = "limits",
        hook: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions, **options)
        self.key_prefix = key_prefix
        self.storage = client or make_client(
            uri.removeprefix("async+").removeprefix("rl+"), options, asynchronous=IS_ASYNC
        )
        self._prefix = f"{key_prefix}:"
        self.limiter = AsyncLimiter(
            self.storage,
            prefix=self._prefix,
            mode=mode,
            timeout=float(timeout),
            name=name,
            hook=hook,
        )
        self.limiter._owned = self.storage if client is None else None
        # The short reply has all that limits asks for, and takes a quarter less of the process' time. What is told to a
        # hook has the long one.
        self._asks_short = hook is None

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        return Error, self.limiter._core.errors.all

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        if amount < 1:
            return (await self.limiter.peek(named(key), counter(expiry), cost=0)).used
        return (await self._count(named(key), counter(expiry, amount if amount > 1 else None)))[1]

    async def get(self, key: str) -> int:
        return (await self._state(key)).used

    async def get_expiry(self, key: str) -> float:
        state = await self._state(key)
        return time.time() + (state.reset_after_ms or 0) / 1000

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        if amount < 1:
            return (await self.limiter.peek(named(key), moving(limit, expiry), cost=0)).used <= limit
        return (await self._count(named(key), moving(limit, expiry, amount)))[0]

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        state = await self.limiter.peek(named(key), moving(limit, expiry), cost=0)
        # The window begins with its oldest hit.
        ends = expiry if state.next_after_ms is None or not state.used else state.next_after_ms / 1000
        return time.time() + ends - expiry, state.used

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return await self.acquire_entry(key, limit, expiry, amount)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        # There is no estimate from a window before: the present one has the exact count.
        state = await self.limiter.peek(named(key), moving(MAX_UNITS, expiry), cost=0)
        # limits takes the remainder of the time by the window, and would make nothing of a whole one.
        return 0, 0.0, state.used, min(state.next_after_ms or 0, expiry * 1000 - 1) / 1000

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        await self.clear(key)

    async def check(self) -> bool:
        try:
            await self.limiter.peek("check", counter(60), cost=0)
        except Error:
            return False
        return True

    async def clear(self, key: str) -> None:
        window = window_of(key)
        await self.limiter.reset(named(key), *([counter(window)] if window else []))

    async def reset(self) -> int | None:
        gone, pattern = 0, re.sub(r"([\\*?[\]])", r"\\\1", self._prefix) + "*"
        # In a cluster the counter of ``key`` is ``{key}:60s``.
        for start in ("", "{") if self.limiter._core.servers.is_cluster else ("",):
            async for name in self.storage.scan_iter(start + pattern, count=1000):
                gone += await self.storage.unlink(name)
        return gone

    async def aclose(self) -> None:
        """Closes the connections, also those of the client if the storage has made it."""
        await self.limiter.aclose()

    async def _count(self, key: str, rule: Fixed | Sliding) -> tuple[bool, int]:
        """Counts by a rule. Returns whether it fitted, and the units in use."""
        if not self._asks_short:
            result = await self.limiter.hit(key, rule)
            return result.allowed, result.used
        command = Command(rule.KIND, (self._prefix + key,), rule.sent[:-1])
        allowed, used, _ = await self.limiter._change("count", key, command)
        self.limiter.statistics.allowed += allowed
        self.limiter.statistics.denied += 1 - allowed
        return allowed == 1, used

    async def _state(self, key: str) -> State:
        window = window_of(key)
        if window is None:
            raise ValueError(f"a counter is read by the key of an item, such as 'LIMITS/me/5/1/minute', not {key!r}")
        return await self.limiter.peek(named(key), counter(window), cost=0)
