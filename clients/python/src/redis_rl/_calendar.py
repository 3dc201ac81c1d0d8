"""Rules for the days, weeks, months and years of a time zone. Made by `calendar`."""

from __future__ import annotations

import re
import time
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Unpack
from zoneinfo import ZoneInfo

from ._rates import Window, whole
from ._rules import Fixed, WindowOptions

# The most that a period may start at.
_STARTS = {"day": 1, "week": 7, "month": 31, "year": 12}

_RATE = re.compile(
    r"\s*(?P<limit>\d+(?:_\d+)*)(?:\s*/\s*|\s+per\s+)(?P<period>day|week|month|year)s?\s*", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True)
class Calendar(Fixed):
    """RL.FIXED with the end of a period of the calendar: see `calendar`."""

    limit: int
    period: str
    zone: str
    starts: int

    def described(self) -> str:
        starts = "" if self.starts == 1 else f" {self.starts}"
        return f"calendar-{self.limit}/{self.period} {self.zone}{starts}"

    def now(self, ms: int | None = None) -> Fixed:
        """The rule of the period in which this unix time lies, or the present."""
        ms = int(time.time() * 1000) if ms is None else ms
        # Of each call with the rule, so worked out once a period.
        kept: tuple[int, int, Fixed | None] = self.__dict__.get("_period", (0, 0, None))
        since, until, rule = kept
        if rule is None or not since <= ms < until:
            end_ms = self.end_ms(ms)
            windows = (Window(0, self.limit, end_ms, self.period),)
            options: WindowOptions = {"cost": self.cost, "name": self.name, "unit": self.unit, "force": self.force}
            rule = Fixed(windows, anchored=False, hold=self.hold, **options)
            object.__setattr__(self, "_period", (ms, end_ms, rule))
        return rule

    def end_ms(self, ms: int) -> int:
        """When the period ends in which this unix time lies."""
        zone = _zone(self.zone)
        day = self._next(datetime.fromtimestamp(ms // 1000, zone).date())
        # Of a day that comes twice, or that the zone leaves out.
        while _begins(day, zone) <= ms:
            day = self._next(day)
        return _begins(day, zone)

    def _next(self, day: date) -> date:
        """The first day after this one with which a period begins."""
        if self.period == "week":
            return day + timedelta(7 - (day.isoweekday() - self.starts) % 7)
        if self.period == "month":
            first = day.replace(day=min(self.starts, monthrange(day.year, day.month)[1]))
            if first > day:
                return first
            following = day.replace(day=1) + timedelta(31)
            return following.replace(day=min(self.starts, monthrange(following.year, following.month)[1]))
        if self.period == "year":
            return date(day.year + (day.month >= self.starts), self.starts, 1)
        return day + timedelta(1)


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def _begins(day: date, zone: tzinfo) -> int:
    """The first moment of a day: the first of two midnights, or the end of the gap where midnight is left out."""
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()) * 1000


def calendar(rate: str, zone: str = "UTC", starts: int = 1, **options: Unpack[WindowOptions]) -> Calendar:
    """A fixed window that is a day, a week, a month or a year of a time zone: a billing period, a customer's day.

    Each call works out by this process' clock in which period it is. Where the server's clock is already in the next
    one, the call is made again for that.

    Args:
        rate: such as ``"1000/day"`` or ``"5_000_000/month"``; the units are day, week, month and year.
        zone: a name of the zone database, such as ``"Europe/Berlin"``. Python has it from the system, or from the
            package tzdata.
        starts: with which day of the month it begins, 1 to 31, and in a month that is too short with the last; of a
            week, the day from 1 (Monday) to 7; of a year, the month.
        cost, force, name, unit: as in `sliding`. Without a name the policy is called by the period (``month``).
    """
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None:
        raise ValueError(
            f"a rate of a calendar looks like '1000/day' or '5_000_000/month' (day, week, month, year), not {rate!r}"
        )
    period = match["period"].lower()
    try:
        _zone(zone)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise ValueError(
            f"the zone must be a name of the zone database, which the system or the package tzdata has, not {zone!r}"
        ) from error
    limit = whole(int(match["limit"]), "the limit")
    starts = whole(starts, f"starts of a {period}", 1, _STARTS[period])
    return Calendar((), False, limit, period, zone, starts, **options)
