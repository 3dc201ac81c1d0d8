"""What waits beside a caller: those who want a place at a key, and the renewal of what is held."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from .._result import Result
from .io import begun, concurrency, over, within


class Line:
    """Those who wait for a place at a key in this process: the first of them asks, and a release wakes it."""

    def __init__(self) -> None:
        self._turn = concurrency.Lock()
        self._freed = concurrency.Event()
        self.denial: Result | None = None
        """What the first of them was told last."""

    async def enter(self, seconds: float) -> bool:
        """Waits for the turn. Returns whether it has come in this time."""
        return await within(seconds, self._turn.acquire)

    def leave(self) -> None:
        self._turn.release()

    def wake(self) -> None:
        self._freed.set()

    async def wait(self, seconds: float) -> bool:
        """Waits for a free place. Returns whether one was reported."""
        try:
            return await within(seconds, self._freed.wait)
        finally:
            self._freed.clear()


class Keeper:
    """Renews a lease in the background, and notices when it ends."""

    def __init__(self, renew: Callable[[float], Any], every: float, ends: float) -> None:
        """``renew`` takes as long as it is told at most, and returns when the lease now ends, None if it was lost."""
        self.lost = concurrency.Event()
        self.ends = ends
        # Of what nobody can give back any more nothing is renewed.
        self._renew = WeakMethod(renew)
        self._every = every
        self._done = concurrency.Event()
        self._work = begun(self._keep)

    async def _keep(self) -> None:
        renew_at = time.monotonic() + self._every
        while not await within(max(min(renew_at, self.ends) - time.monotonic(), 0), self._done.wait):
            now = time.monotonic()
            if now < min(renew_at, self.ends):
                continue
            renew = self._renew()
            ends = None if renew is None or now >= self.ends else await renew(self.ends - now)
            if ends is None:
                self.lost.set()
                return
            self.ends = ends
            if ends == math.inf:
                return
            renew_at = now + self._every

    async def stop(self) -> None:
        """Ends renewing. A renewal that is under way is waited for, as it would take the lease again."""
        self._done.set()
        await over(self._work)
