"""What the storages for limits share: the windows of keys, and the rules. No I/O."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache

from limits.limits import TIME_TYPES

from ._calls import short
from ._identity import shortened
from ._rates import MAX_UNITS
from ._rules import Fixed, Sliding, fixed, sliding

_KINDS = ("{}", "{}s", "{}+unix", "{}+cluster", "{}+sentinel")
_SIZES = {name: granularity.seconds for name, granularity in TIME_TYPES.items()}

# Not that of limits' own storages, which keep other types at the same keys: one may follow the other on a server.
PREFIX = "RL-LIMITS"

# Windows of keys that do not tell them, for as many keys as are remembered.
_REMEMBERED = 10_000


def schemes(*, asynchronous: bool) -> list[str]:
    """Those of the URIs of a storage."""
    start = "async+rl+" if asynchronous else "rl+"
    return [start + kind.format(library) for library in ("redis", "valkey") for kind in _KINDS]


class Windows:
    """Knows the window of a key: limits asks for a counter's value by its key alone.

    The keys of limits' items end in ``/{amount}/{multiples}/{granularity}``. For others, what was counted last here.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    def learn(self, key: str, expiry: int) -> None:
        if self._parsed(key) != expiry:
            kept = short(key)
            self._seen[kept] = expiry
            self._seen.move_to_end(kept)
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)

    def of(self, key: str) -> int | None:
        return self._seen.get(short(key)) or self._parsed(key)

    @staticmethod
    def _parsed(key: str) -> int | None:
        parts = key.rsplit("/", 2)
        size = _SIZES.get(parts[-1])
        if len(parts) < 3 or size is None or not parts[-2].isdecimal():
            return None
        return size * int(parts[-2])


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
