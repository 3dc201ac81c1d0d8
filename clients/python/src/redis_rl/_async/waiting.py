"""What waits beside a caller: those who want a place at a key, and the renewal of what is held."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from .._result import Result
from .io import concurrency, within


class Line:
    """Those who wait for a place at a key in this process: the first of them asks, and a release wakes it."""

    def __init__(self) -> None:
        self.turn = concurrency.Lock()
        self.freed = concurrency.Event()
        """Set where a place was reported to be free."""
        self.denial: Result | None = None
        """What the first of them was told last."""

    async def enter(self, seconds: float) -> bool:
        """Waits for the turn. Returns whether it has come in this time."""
        return await within(seconds, self.turn.acquire)

    async def wait(self, seconds: float) -> bool:
        """Waits for a free place. Returns whether one was reported."""
        try:
            return await within(seconds, self.freed.wait)
        finally:
            self.freed.clear()


async def keep(kept: Callable[[], Any], ends: float, every: float, done: Any, lost: Any) -> None:
    """Renews what is held in the background until it is done, and says when it was lost.

    ``kept`` is a weak reference: of what nobody can give back any more nothing is renewed.
    """
    renew_at = time.monotonic() + every
    while not await within(max(min(renew_at, ends) - time.monotonic(), 0), done.wait):
        now = time.monotonic()
        if now < min(renew_at, ends):
            continue
        held = kept()
        if held is None or now >= ends or not await held._renew(ends - now):
            lost.set()
            return
        ends, renew_at = held._ends, now + every
        if ends == math.inf:
            return
        del held
