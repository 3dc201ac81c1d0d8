"""Reads what a limit is: ``"100/minute"``, ``"5 per 2 seconds"``, or ``(limit, seconds)``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal

MAX_UNITS = 2**53 - 1
MAX_SECONDS = 2**31 - 1

Seconds = int | float | Decimal | timedelta
"""A length of time in seconds, or a timedelta. Whole milliseconds, from 0.001 to 2147483647 seconds."""

_MS = {
    1: ("ms", "millisecond", "milliseconds"),
    1000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hr", "hrs", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
    604_800_000: ("w", "week", "weeks"),
}
_UNITS = {name: ms for ms, names in _MS.items() for name in names}

_RATE = re.compile(
    r"\s*(?P<limit>\d+(?:_\d+)*)(?:\s*/\s*|\s+per\s+)(?:(?P<times>\d+(?:\.\d{1,3})?)\s*)?(?P<unit>[a-z]+)\s*",
    re.ASCII | re.IGNORECASE,
)


def milliseconds(time: Seconds, what: str) -> int:
    """The time in milliseconds. ValueError if it is not in the server's range, or not a whole number of them."""
    # By way of str, so that 0.1 is a tenth and not the double next to it.
    exact = Decimal(str(number_of(time, what))) * 1000
    if not exact.is_finite() or not 1 <= exact <= MAX_SECONDS * 1000 or exact % 1:
        raise ValueError(f"{what} must be from 0.001 to {MAX_SECONDS} seconds, in whole milliseconds, not {time}")
    return int(exact)


def number_of(time: Seconds, what: str) -> int | float | Decimal:
    """The time as a number of seconds. TypeError if it is no time."""
    number = time.total_seconds() if isinstance(time, timedelta) else time
    if isinstance(number, bool) or not isinstance(number, int | float | Decimal):
        raise TypeError(f"{what} must be a number of seconds or a timedelta, not {time!r}")
    return number


def seconds(ms: int) -> str:
    """Milliseconds as the decimal number of seconds that the commands take."""
    whole, rest = divmod(ms, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def whole(value: int, what: str, least: int = 0, most: int = MAX_UNITS) -> int:
    """The value, if it is an integer in this range: unless given, what the server takes for a limit or a cost."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an integer from {least} to {most}, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{what} must be from {least} to {most}, not {value}")
    # Not one of an enumeration, which client libraries do not send.
    return int(value)


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """At most ``limit`` units in ``ms`` milliseconds."""

    ms: int
    limit: int
    end_ms: int | None = field(default=None, repr=False)
    """Of a calendar, when the period ends, and what it is called."""
    period: str = field(default="", repr=False)

    @classmethod
    def parse(cls, rate: Rate) -> Window:
        """Reads a rate. ValueError says what is accepted."""
        if isinstance(rate, Window):
            return rate
        if isinstance(rate, str):
            match = _RATE.fullmatch(rate)
            length = _UNITS.get(match["unit"].lower()) if match else None
            if match is None or length is None:
                raise ValueError(
                    f"a rate looks like '100/minute', '10/s' or '5 per 2 hours' "
                    f"(ms, second, minute, hour, day, week), not {rate!r}"
                )
            window = Decimal(match["times"] or 1) * length / 1000
            return cls(milliseconds(window, f"the window of {rate!r}"), whole(int(match["limit"]), "the limit"))
        if not isinstance(rate, tuple) or len(rate) != 2:
            raise TypeError(f"a rate is a string such as '100/minute' or a pair (limit, seconds), not {rate!r}")
        limit, length_of_window = rate
        return cls(milliseconds(length_of_window, "the window"), whole(limit, "the limit"))

    @property
    def seconds(self) -> str:
        """The length as the commands take it, ``60`` or ``0.25``, or the end."""
        return seconds(self.ms) if self.end_ms is None else f"@{self.end_ms}"

    @property
    def name(self) -> str:
        """What a policy without a name is called by."""
        return self.period or f"{self.seconds}s"


Rate = str | tuple[int, Seconds] | Window
"""``"100/minute"``, ``(100, 60)``, or a `Window`."""


def windows(rates: Iterable[Rate]) -> list[Window]:
    parts = (part for rate in rates for part in (rate.split(",") if isinstance(rate, str) else [rate]))
    return [Window.parse(part) for part in parts]
