"""Rules as values: what is limited, without the key. Made by `sliding`, `fixed`, `throttle` and `lease`.

A rule never changes and holds no connection. Make it once, use it for every key and from any thread. What the server
would not take is a ValueError or a TypeError where the rule is made.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn, Self, TypedDict, Unpack

from ._rates import MAX_SECONDS, MAX_UNITS, Rate, Seconds, Window, milliseconds, seconds, whole
from ._rates import windows as read_windows

Word = str | bytes | int

MAX_WINDOWS = 16


class Options(TypedDict, total=False):
    """The options of a throttle: see `Rule`."""

    cost: int | None
    name: str | None
    unit: str | None


class WindowOptions(Options, total=False):
    """The options of the other rules that have a cost: see `Rule`."""

    force: bool


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """What all rules have in common."""

    KIND: ClassVar[str]
    """The rule's word in RL.PEEK and RL.ALL, and behind ``RL.`` the command of its own."""

    cost: int | None = None
    """Units that one request weighs. None is one."""

    name: str | None = None
    """The policy's name in HTTP headers and in the keys of adapters. Without it, it is called by its window."""

    unit: str | None = None
    """What is counted, for the header RateLimit-Policy: ``"requests"``, ``"content-bytes"``, ..."""

    force: bool = False
    """Whether a request is counted that does not fit, too (sliding and fixed)."""

    hold: tuple[str, int] | None = field(default=None, repr=False)
    """Of units that are reserved the holder, and the milliseconds for which they are (sliding and fixed)."""

    def __post_init__(self) -> None:
        if self.cost is not None:
            object.__setattr__(self, "cost", whole(self.cost, "the cost"))
        for what, text in (("name", self.name), ("unit", self.unit)):
            if not isinstance(text, str | None):
                raise TypeError(f"the {what} must be a string, not {text!r}")
            # It is a string of a structured field.
            if text is not None and not (text and text.isascii() and text.isprintable()):
                raise ValueError(f"the {what} must be printable ASCII, not {text!r}")

    @abstractmethod
    def words(self) -> list[Word]:
        """The rule as the commands take it."""

    # Any: of the same class, but for a calendar.
    def now(self, ms: int | None = None) -> Any:
        """The rule as it is sent now, or at a unix time: only those of a calendar change."""
        return self

    @abstractmethod
    def policies(self) -> list[Policy]:
        """The quota policies that the rule stands for, shortest window first."""

    @abstractmethod
    def described(self) -> str:
        """The kind, the limits and the windows: what the keys of adapters have in place of a name."""

    @property
    def is_reserved(self) -> bool:
        """Whether its units are settled later."""
        return self.hold is not None

    @property
    def weight(self) -> int:
        return 1 if self.cost is None else self.cost

    @property
    def form(self) -> str:
        """The word that asks for the long reply."""
        return "FULL"

    @property
    def sent(self) -> tuple[Word, ...]:
        """All that stands behind the key of the rule's own command."""
        # Of each call with the rule, so worked out once. Not by cached_property, whose lock in Python 3.11
        # a fork may leave locked.
        sent: tuple[Word, ...] | None = self.__dict__.get("_sent")
        if sent is None:
            sent = (*self.words(), self.form)
            object.__setattr__(self, "_sent", sent)
        return sent

    def with_cost(self, cost: int) -> Self:
        """The same rule for a request of another weight."""
        return replace(self, cost=cost)

    def forced(self) -> Rule:
        """The same rule, counting the request whether it fits or not. TypeError for a throttle and a lease."""
        raise TypeError("a throttle or a lease cannot be forced: only sliding and fixed rules can be overdrawn")


@dataclass(frozen=True, slots=True)
class Policy:
    """One quota policy of RateLimit-Policy: a name, and how much is allowed in what time."""

    name: str
    limit: int
    window_ms: int | None
    unit: str | None
    end_ms: int | None = None
    """When a period of a calendar ends."""


@dataclass(frozen=True)
class Windowed(Rule):
    """What `Sliding` and `Fixed` have in common: one window or several."""

    windows: tuple[Window, ...]

    def words(self) -> list[Word]:
        words: list[Word] = []
        for window in self.windows:
            words += [window.seconds, window.limit]
        words += self._options()
        if self.force:
            words.append("FORCE")
        if self.hold is not None:
            holder, ms = self.hold
            words += ["HOLD", holder, seconds(ms)]
        return words

    @property
    def form(self) -> str:
        # Of several windows, each. Only where a request is forced on them can the wait of the whole call not be told
        # from those of the windows, as one that had room may have none now.
        return "EACH" if len(self.windows) > 1 and not self.force else "FULL"

    def _options(self) -> list[Word]:
        """What stands between the windows and FORCE."""
        return [] if self.cost is None else ["COST", self.cost]

    def policies(self) -> list[Policy]:
        policies = []
        for window in self.windows:
            name = self.name or window.name
            if self.name and len(self.windows) > 1:
                name += f"-{window.name}"
            policies.append(Policy(name, window.limit, window.ms or None, self.unit, window.end_ms))
        return policies

    def described(self) -> str:
        kind = "anchored" if getattr(self, "anchored", False) else self.KIND.lower()
        return f"{kind}-" + ",".join(f"{window.limit}/{window.seconds}s" for window in self.windows)

    def forced(self) -> Self:
        return replace(self, force=True)

    def reserved(self, units: int) -> Self:
        """The rule with units that are settled later, for `Limiter.reserve_all`.

        Args:
            units: the most that the request may cost, 1 to 2**53 - 1.
        """
        if self.force:
            raise ValueError("a reservation is not forced: settle() charges over the limit where it has to")
        return replace(self, cost=whole(units, "the units", 1), hold=("", 0))


@dataclass(frozen=True)
class Sliding(Windowed):
    """RL.SLIDING: see `sliding`."""

    KIND = "SLIDING"

    def _options(self) -> list[Word]:
        # The cost is always said, so that the log is stored compactly from its first request on.
        return ["COST", self.weight]


@dataclass(frozen=True)
class Fixed(Windowed):
    """RL.FIXED: see `fixed`."""

    KIND = "FIXED"

    anchored: bool

    def _options(self) -> list[Word]:
        return [*(["ANCHORED"] if self.anchored else []), *super()._options()]


@dataclass(frozen=True)
class Throttle(Rule):
    """RL.THROTTLE: see `throttle`."""

    KIND = "THROTTLE"

    burst: int
    count: int
    period: int

    def words(self) -> list[Word]:
        words: list[Word] = [self.burst, self.count, self.period]
        if self.cost is not None:
            words.append(self.cost)
        return words

    def policies(self) -> list[Policy]:
        # The window is the time in which an empty bucket fills, which the server rounds up to milliseconds.
        interval_ns = -(-self.period * 1_000_000_000 // self.count)
        window_ms = -(-interval_ns * (self.burst + 1) // 1_000_000)
        return [Policy(self.name or f"{seconds(window_ms)}s", self.burst + 1, window_ms, self.unit)]

    def described(self) -> str:
        return f"throttle-{self.burst}-{self.count}/{self.period}s"


@dataclass(frozen=True)
class Lease(Rule):
    """RL.ACQUIRE: see `lease`."""

    KIND = "ACQUIRE"

    limit: int
    ms: int
    holder: str | bytes | None
    is_ours: bool = field(default=False, kw_only=True, repr=False, compare=False)
    """Whether the holder's name was made for one call, so that nobody else has a lease by it."""

    def words(self) -> list[Word]:
        if self.holder is None:
            raise ValueError("the lease needs a holder: give it one, or call acquire() or hold()")
        return [self.limit, seconds(self.ms), self.holder]

    def policies(self) -> list[Policy]:
        # A quota of concurrent requests is not bound to a time.
        return [Policy(self.name or f"{seconds(self.ms)}s", self.limit, None, self.unit)]

    def described(self) -> str:
        return f"lease-{self.limit}/{seconds(self.ms)}s"

    def held_by(self, holder: str | bytes | None = None) -> Lease:
        """The same lease for one holder; without a name, for one with a new random name."""
        named = self.holder if holder is None else holder
        if named is None:
            return replace(self, holder=secrets.token_hex(8), is_ours=True)
        return replace(self, holder=holder_of(named), is_ours=False)

    def with_cost(self, cost: int) -> NoReturn:
        raise TypeError("a lease has no cost: each holder counts once")


def holder_of(holder: str | bytes) -> str | bytes:
    """The holder, or ValueError if it is no name."""
    if not isinstance(holder, str | bytes) or not holder:
        raise ValueError(f"the holder must be a name, not {holder!r}")
    return holder


def _windows(rates: Sequence[Rate]) -> tuple[Window, ...]:
    windows = tuple(sorted(read_windows(rates)))
    if not 1 <= len(windows) <= MAX_WINDOWS:
        raise ValueError(f"a rule has 1 to {MAX_WINDOWS} windows, not {len(windows)}")
    if len({window.ms for window in windows}) < len(windows):
        raise ValueError("each window of a rule must have another length")
    return windows


def sliding(*rates: Rate, **options: Unpack[WindowOptions]) -> Sliding:
    """An exact sliding window: no stretch of time as long as the window holds more than the limit.

    With several rates (``sliding("10/second", "1000/hour")``) a request has to fit into each, or it counts in none.
    Give the same rates in every call on a key.

    Args:
        rates: such as ``"100/minute"``, ``"5 per 2 seconds"``, ``"10/second, 1000/hour"`` or ``(100, 60)``; 1 to 16
            windows, in any order.
        cost: units that a request weighs, 1 to 2**53 - 1, 1 unless given. It fits whole or not at all. 0 is for `all`
            and `peek`: the rule is checked, and nothing is counted.
        force: count the request whether it fits or not; the result still says whether it fitted.
        name: what the policy is called in HTTP headers and in the keys of adapters. Without it, by its window
            (``60s``). With several windows, each one's length is added to it.
        unit: what is counted, for HTTP headers: ``"requests"`` (which is understood), ``"content-bytes"``, ...
    """
    return Sliding(_windows(rates), **options)


def fixed(*rates: Rate, anchored: bool = False, **options: Unpack[WindowOptions]) -> Fixed:
    """A fixed window: one small counter for each window. Up to twice the limit can pass around a boundary.

    Windows begin at multiples of their length since the epoch. With ``anchored`` a window begins with its first
    request. A rule with one rate and a cost of 1 counts the requests that it denies, too.

    Args: those of `sliding`, and
        anchored: let a window begin with its first request.
    """
    return Fixed(_windows(rates), anchored, **options)


def throttle(rate: Rate, *, burst: int | None = None, **options: Unpack[Options]) -> Throttle:
    """A steady rate with a burst (the generic cell rate algorithm; the arguments of redis-cell's CL.THROTTLE).

    Args:
        rate: one rate; one request comes back every window / limit. A window that is not whole seconds is scaled up
            to whole ones: ``"5/500ms"`` is 10 a second.
        burst: how many may come at once beyond the first, 0 to 2**53 - 2; without it, the rate's limit less one, so
            that a whole window's requests may come at once.
        cost, name, unit: as in `sliding`.
    """
    rates = read_windows([rate])
    if len(rates) != 1:
        raise ValueError(f"a throttle takes one rate, not {len(rates)}")
    (window,) = rates
    limit = whole(window.limit, "the limit of a throttle", 1)
    burst = whole(limit - 1 if burst is None else burst, "burst", 0, MAX_UNITS - 1)
    # The command takes whole seconds.
    scale = 1000 // math.gcd(window.ms, 1000)
    count, period = limit * scale, window.ms * scale // 1000
    if count > period * 1_000_000_000:
        raise ValueError("the rate of a throttle must be at most one request a nanosecond")
    if period > MAX_SECONDS:
        raise ValueError(f"the window of a throttle must be at most {MAX_SECONDS} s in whole seconds, not {rate!r}")
    return Throttle(burst, count, period, **options)


def lease(
    limit: int,
    ttl: Seconds,
    *,
    holder: str | bytes | None = None,
    name: str | None = None,
    unit: str | None = "concurrent-requests",
) -> Lease:
    """At most ``limit`` holders at a time: concurrent requests, jobs, connections.

    A lease ends when it is released, or by itself after ``ttl`` seconds, so that a client that dies blocks nobody for
    longer. Acquiring again with the same holder renews it.

    Args:
        limit: leases that can be held at once.
        ttl: seconds (or a timedelta) that a lease lasts unless it is renewed, 0.001 to 2147483647.
        holder: who holds it. ``acquire`` and ``hold`` make a random name if none is given.
        name, unit: as in `sliding`.
    """
    holder = None if holder is None else holder_of(holder)
    ms = milliseconds(ttl, "the ttl of a lease")
    return Lease(whole(limit, "the limit"), ms, holder, name=name, unit=unit)
