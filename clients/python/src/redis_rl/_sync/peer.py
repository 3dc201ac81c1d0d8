"""What the library limits wants of a storage for threads."""

from __future__ import annotations

from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage

from .._limits import SCHEMES

__all__ = ["SCHEMES", "MovingWindowSupport", "SlidingWindowCounterSupport", "Storage"]
