"""Rules as values: what is limited, without the key. Made by `sliding`, `fixed`, `throttle` and `lease`.

A rule never changes and holds no connection. Make it once, use it for every key and from any thread.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, TypeVar

from ._http import check_name
from ._rates import MAX_SECONDS, Rate, Seconds, Window, milliseconds, seconds, units

Word = str | bytes | int

Frames = dict[str, tuple[bytes, bytes]]
"""By mode: the bytes of a command of one key, before and behind that key."""

MAX_WINDOWS = 16

AnyRule = TypeVar("AnyRule", bound="Rule")


@dataclass(frozen=True)
class Rule(ABC):
    """What all rules have in common."""

    KIND: ClassVar[str]
    """The rule's word in RL.PEEK and RL.ALL, and behind ``RL.`` the command of its own."""

    cost: int | None
    """Units that one request weighs. None is one, said without COST, which lets the server store small keys plainly."""

    name: str | None
    """The policy's name in HTTP headers; ``"default"`` where there is none."""

    unit: str | None
    """What is counted, for the header RateLimit-Policy: ``"requests"``, ``"content-bytes"``, ..."""

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name)
        if self.unit is not None:
            check_name(self.unit)

    @abstractmethod
    def words(self) -> list[Word]:
        """The rule as the commands take it."""

    @abstractmethod
    def policies(self, fallback: str = "default") -> list[Policy]:
        """The quota policies that the rule stands for, shortest window first."""

    @property
    def form(self) -> str:
        """The word that asks for the long reply."""
        return "FULL"

    # Of each call with the rule, so worked out once.
    @cached_property
    def sent(self) -> tuple[Word, ...]:
        """All that stands behind the key of the rule's own command."""
        return (*self.words(), self.form)

    @cached_property
    def frames(self) -> Frames:
        """That command as it goes over the wire. Filled in by the first call."""
        return {}

    def with_cost(self: AnyRule, cost: int) -> AnyRule:
        """The same rule for a request of another weight."""
        return replace(self, cost=_cost(cost))

    def forced(self: AnyRule) -> AnyRule:
        """The same rule, counting the request whether it fits or not."""
        raise TypeError(f"{self.KIND} has no FORCE")


@dataclass(frozen=True, slots=True)
class Policy:
    """One quota policy of RateLimit-Policy: a name, and how much is allowed in what time."""

    name: str
    limit: int
    window_ms: int | None
    unit: str | None


@dataclass(frozen=True)
class Windowed(Rule):
    """What `Sliding` and `Fixed` have in common: one window or several."""

    windows: tuple[Window, ...]
    force: bool

    def words(self) -> list[Word]:
        words: list[Word] = []
        for window in self.windows:
            words += [window.seconds, window.limit]
        words += self._options()
        if self.cost is not None:
            words += ["COST", self.cost]
        if self.force:
            words.append("FORCE")
        return words

    @property
    def form(self) -> str:
        # Of several windows, each. Only where a request is forced on them can the wait of the whole call not be told
        # from those of the windows, as one that had room may have none now.
        return "EACH" if len(self.windows) > 1 and not self.force else "FULL"

    def _options(self) -> list[Word]:
        """Options of one kind of rule alone."""
        return []

    def policies(self, fallback: str = "default") -> list[Policy]:
        name = self.name or fallback
        if len(self.windows) == 1:
            (window,) = self.windows
            return [Policy(name, window.limit, window.ms, self.unit)]
        return [Policy(f"{name}-{each.seconds}s", each.limit, each.ms, self.unit) for each in self.windows]

    def forced(self: AnyRule) -> AnyRule:
        return replace(self, force=True)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Sliding(Windowed):
    """RL.SLIDING: see `sliding`."""

    KIND = "SLIDING"


@dataclass(frozen=True)
class Fixed(Windowed):
    """RL.FIXED: see `fixed`."""

    KIND = "FIXED"

    anchored: bool

    def _options(self) -> list[Word]:
        return ["ANCHORED"] if self.anchored else []


@dataclass(frozen=True)
class Throttle(Rule):
    """RL.THROTTLE: see `throttle`."""

    KIND = "THROTTLE"

    max_burst: int
    count: int
    period: int

    def words(self) -> list[Word]:
        words: list[Word] = [self.max_burst, self.count, self.period]
        if self.cost is not None:
            words.append(self.cost)
        return words

    def policies(self, fallback: str = "default") -> list[Policy]:
        # The window is the time in which an empty bucket fills, which the server rounds up to milliseconds.
        interval_ns = self.period * 1_000_000_000 // self.count
        window_ms = -(-interval_ns * (self.max_burst + 1) // 1_000_000)
        return [Policy(self.name or fallback, self.max_burst + 1, window_ms, self.unit)]


@dataclass(frozen=True)
class Lease(Rule):
    """RL.ACQUIRE: see `lease`."""

    KIND = "ACQUIRE"

    limit: int
    ms: int
    holder: str | bytes | None

    def words(self) -> list[Word]:
        if self.holder is None:
            raise ValueError("the lease has no holder yet")
        return [self.limit, seconds(self.ms), self.holder]

    def policies(self, fallback: str = "default") -> list[Policy]:
        # A quota of concurrent requests is not bound to a time.
        return [Policy(self.name or fallback, self.limit, None, self.unit)]

    def held_by(self, holder: str | bytes | None = None) -> Lease:
        """The same lease for one holder; without a name, for one with a new random name."""
        return replace(self, holder=holder or self.holder or secrets.token_hex(8))

    def with_cost(self, cost: int) -> Lease:
        raise TypeError("a lease has no cost: each holder counts once")


def _cost(cost: int | None) -> int | None:
    return None if cost is None else units(cost, "the cost", 1)


def _windows(rates: Sequence[Rate]) -> tuple[Window, ...]:
    windows = tuple(sorted(map(Window.parse, rates)))
    if not 1 <= len(windows) <= MAX_WINDOWS:
        raise ValueError(f"a rule has 1 to {MAX_WINDOWS} windows, not {len(windows)}")
    if len({window.ms for window in windows}) < len(windows):
        raise ValueError("each window of a rule must have another length")
    return windows


def sliding(
    *rates: Rate,
    cost: int | None = None,
    force: bool = False,
    name: str | None = None,
    unit: str | None = None,
) -> Sliding:
    """An exact sliding window: no stretch of time as long as the window holds more than the limit.

    With several rates (``sliding("10/second", "1000/hour")``) a request has to fit into each, or it counts in none.
    Give the same rates in every call on a key.

    Args:
        rates: such as ``"100/minute"``, ``"5 per 2 seconds"`` or ``(100, 60)``; 1 to 16 of them, in any order.
        cost: units that a request weighs, 1 to 2**53 - 1. It fits whole or not at all. Without it, one. On a key
            whose requests differ in cost, give it always, also where it is 1: the module then stores the key in a
            form that takes any cost. In a sorted set (without the module, always) a call adds at most 1000 units.
        force: count the request whether it fits or not; the result still says whether it fitted.
        name: the policy's name in HTTP headers. With several rates, each window's length is added to it.
        unit: what is counted, for HTTP headers: ``"requests"`` (which is understood), ``"content-bytes"``, ...

    Raises:
        ValueError, TypeError: for a rate or a cost that the server would not take.
    """
    return Sliding(cost=_cost(cost), name=name, unit=unit, windows=_windows(rates), force=bool(force))


def fixed(
    *rates: Rate,
    cost: int | None = None,
    force: bool = False,
    anchored: bool = False,
    name: str | None = None,
    unit: str | None = None,
) -> Fixed:
    """A fixed window: one small counter for each window. Up to twice the limit can pass around a boundary.

    Windows begin at multiples of their length since the epoch. With ``anchored`` a window begins with its first
    request. A rule with one rate and a cost of 1 counts the requests that it denies, too.

    Args and errors: those of `sliding`, and
        anchored: let a window begin with its first request.
    """
    return Fixed(
        cost=_cost(cost),
        name=name,
        unit=unit,
        windows=_windows(rates),
        force=bool(force),
        anchored=bool(anchored),
    )


def throttle(
    rate: Rate,
    *,
    max_burst: int | None = None,
    cost: int | None = None,
    name: str | None = None,
    unit: str | None = None,
) -> Throttle:
    """A steady rate with a burst (the generic cell rate algorithm; the arguments of redis-cell's CL.THROTTLE).

    Args:
        rate: requests in a period of whole seconds. One comes back every period / count seconds.
        max_burst: how many may come at once beyond the first; without it, one less than the rate's count, so that
            a whole period's requests may come at once.
        cost: units that a request weighs.
        name, unit: as in `sliding`.

    Raises:
        ValueError, TypeError: for a rate, burst or cost that the server would not take.
    """
    window = Window.parse(rate)
    if window.ms % 1000:
        raise ValueError(f"the period of a throttle must be whole seconds, 1 to {MAX_SECONDS}, not {window.seconds}")
    count = units(window.limit, "the count of a throttle", 1)
    if count > window.ms * 1_000_000:
        raise ValueError("the rate of a throttle must be at most one request a nanosecond")
    burst = count - 1 if max_burst is None else units(max_burst, "max_burst")
    return Throttle(
        cost=_cost(cost),
        name=name,
        unit=unit,
        max_burst=burst,
        count=count,
        period=window.ms // 1000,
    )


def lease(
    limit: int,
    seconds: Seconds,
    *,
    holder: str | bytes | None = None,
    name: str | None = None,
    unit: str | None = "concurrent-requests",
) -> Lease:
    """At most ``limit`` holders at a time: concurrent requests, jobs, connections.

    A lease ends when it is released, or by itself after ``seconds``, so that a client that dies blocks nobody for
    longer. Acquiring again with the same holder renews it.

    Args:
        limit: leases that can be held at once.
        seconds: how long a lease lasts unless it is renewed, 0.001 to 2147483647.
        holder: who holds it; without it, every call that acquires makes a new random name.
        name, unit: as in `sliding`.

    Raises:
        ValueError, TypeError: for a limit or time that the server would not take.
    """
    if holder is not None and not holder:
        raise ValueError("the holder must have a name")
    return Lease(
        cost=None,
        name=name,
        unit=unit,
        limit=units(limit, "the limit"),
        ms=milliseconds(seconds, "the lease"),
        holder=holder,
    )
