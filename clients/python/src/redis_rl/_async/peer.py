"""What the library limits wants of a storage for asyncio."""

from __future__ import annotations

from limits.aio.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage

from .._limits import SCHEMES as RL_SCHEMES

__all__ = ["SCHEMES", "MovingWindowSupport", "SlidingWindowCounterSupport", "Storage"]

SCHEMES = [f"async+{scheme}" for scheme in RL_SCHEMES]
