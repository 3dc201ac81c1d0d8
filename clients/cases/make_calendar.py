"""Makes calendar.json: when the days, weeks, months and years of twenty time zones begin, from 2016 to 2025.

    python3 clients/cases/make_calendar.py      # writes the file; --check compares it instead

The times come from the zone database of the system by Python's zoneinfo, and by a way that no package takes: every
quarter of an hour is asked for its local date, and the first second of a date is searched between two of them. The
years are past ones, since zones change their rules for those to come.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

FIRST, LAST = 2016, 2025
FILE = Path(__file__).with_name("calendar.json")

# Whole and odd offsets, both hemispheres, changes at midnight (a midnight that is skipped, or comes twice), of half an
# hour, in Ramadan, and of the offset for good.
ZONES = """
    UTC Europe/Berlin Europe/London Europe/Lisbon America/New_York America/Los_Angeles America/Sao_Paulo America/Havana
    America/Asuncion America/Caracas Atlantic/Azores Africa/Cairo Africa/Casablanca Asia/Beirut Asia/Tehran Asia/Kolkata
    Asia/Pyongyang Australia/Lord_Howe Pacific/Apia Pacific/Chatham
""".split()

ABOUT = (
    "When the periods of a calendar begin, in 20 time zones and 10 years; made from the zone database by "
    "make_calendar.py. `changes`: the unix times in seconds at which the offset of the zone changes. The other fields "
    "are lists of runs, named by the unit and, where it is not 1, what the period starts at: `month:15`. A run is the "
    "unix time in seconds of a period's first moment, and then the seconds from each period's first moment to the next "
    "one's, divided by 60. For each period of a run: its first moment, its last millisecond and, where a change lies "
    "in it, the milliseconds before, at and after the change belong to it, and it ends where the next one begins. "
    "`month` and `year` have every period; `day` and `week` have those around each change."
)


@cache
def begins(zone: ZoneInfo, day: date) -> int:
    """The first second of a local date."""
    noon = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp())
    times = range(noon - 30 * 3600, noon + 30 * 3600, 900)
    reached = next(time for time in times if local(zone, time) >= day)
    return next(time for time in range(reached - 900, reached + 1) if local(zone, time) >= day)


def local(zone: ZoneInfo, time: int) -> date:
    return datetime.fromtimestamp(time, zone).date()


def changes(zone: ZoneInfo) -> list[int]:
    """When the offset changes."""

    def offset(time: int) -> timedelta | None:
        return datetime.fromtimestamp(time, zone).utcoffset()

    found = []
    start = int(datetime(FIRST, 1, 1, tzinfo=UTC).timestamp())
    for time in range(start, int(datetime(LAST + 1, 1, 1, tzinfo=UTC).timestamp()), 3600):
        before, after = time - 3600, time
        if offset(before) != offset(after):
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (middle, after) if offset(middle) == offset(before) else (before, middle)
            found.append(after)
    return found


def run(zone: ZoneInfo, days: list[date]) -> list[int]:
    times = sorted({begins(zone, day) for day in days})
    steps = [later - earlier for earlier, later in pairwise(times)]
    assert all(step % 60 == 0 for step in steps)
    return [times[0], *(step // 60 for step in steps)]


def in_month(year: int, month: int, day: int) -> date:
    """The day of a month, or its last."""
    following = date(year + month // 12, month % 12 + 1, 1)
    return min(date(year, month, 1) + timedelta(day - 1), following - timedelta(1))


def periods(name: str) -> dict[str, list[list[int]] | list[int]]:
    zone = ZoneInfo(name)
    changed = changes(zone)
    found: dict[str, list[list[int]] | list[int]] = {"changes": changed}
    days = [local(zone, time) for time in changed] or [date(2020, 2, 29)]
    found["day"] = [run(zone, [day + timedelta(n) for n in range(-1, 3)]) for day in days]
    for start in (1, 6):
        firsts = [day - timedelta((day.isoweekday() - start) % 7) for day in days]
        found[named("week", start)] = [run(zone, [day + timedelta(7 * n) for n in range(-1, 3)]) for day in firsts]
    years = range(FIRST, LAST + 1)
    for start in (1, 15, 31):
        months = [in_month(year, month, start) for year in years for month in range(1, 13)]
        found[named("month", start)] = [run(zone, [*months, in_month(LAST + 1, 1, start)])]
    for start in (1, 4):
        found[named("year", start)] = [run(zone, [date(year, start, 1) for year in [*years, LAST + 1]])]
    return found


def named(unit: str, start: int) -> str:
    return unit if start == 1 else f"{unit}:{start}"


def main() -> None:
    lines = [f"    {json.dumps(name)}: {json.dumps(periods(name), separators=(',', ':'))}" for name in ZONES]
    text = f'{{\n  "about": {json.dumps(ABOUT)},\n  "zones": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
    if "--check" not in sys.argv:
        FILE.write_text(text)
    elif FILE.read_text() != text:
        sys.exit(f"{FILE.name} is not what the zone database of this system says")


if __name__ == "__main__":
    main()
