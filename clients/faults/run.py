#!/usr/bin/env python3
"""The fault suite of the client packages: plays scenarios with subjects, and prints one table.

    run.py [--quick] [--only TEXT] [--subject NAME] [--jobs N] [--list]

Exits with 1 if a cell is red that known-red.txt does not name.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import time
import tomllib
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from harness.play import SCENARIOS, Play, Scenario, Skip
from harness.subject import Kind, Subject

HERE = Path(__file__).parent
FAMILIES = ("hanging", "moving", "busy", "leaving", "budgets", "forks", "policies", "floods", "turns", "defaults")
KNOWN = HERE / "known-red.txt"


@dataclass
class Cell:
    """What became of a scenario with a subject."""

    scenario: Scenario
    kind: Kind
    mark: str = ""
    why: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.scenario.name} × {self.kind.name}"


async def abilities(kind: Kind, free: asyncio.Semaphore) -> set[str]:
    async with free:
        subject = Subject(kind)
        try:
            return (await subject.start({})).can
        finally:
            await subject.end()


async def fill(cell: Cell) -> None:
    if cell.mark:
        return
    play = Play(cell.kind)
    began = time.monotonic()
    try:
        await play.run(cell.scenario)
        cell.mark, cell.why = ("RED", play.red) if play.red else ("ok", [])
    except Skip as skip:
        cell.mark, cell.why = "-", [str(skip)]
    except Exception as error:
        cell.mark = "RED"
        cell.why = [*play.red, "".join(traceback.format_exception_only(error)).strip()]
        if not isinstance(error, AssertionError):
            traceback.print_exception(error)
    cell.seconds = time.monotonic() - began
    print(f"{cell.mark:3} {cell.seconds:5.1f} s  {cell.name}", file=sys.stderr, flush=True)


async def fill_all(chosen: list[Scenario], kinds: list[Kind], jobs: int, quick: bool) -> list[Cell]:
    """Several at a time; those that need the processor come one by one, at the end."""
    # A play on several servers waits most of its time: these have places of their own.
    free, waiting = asyncio.Semaphore(jobs), asyncio.Semaphore(jobs)
    cells = []
    for kind, can in zip(kinds, await asyncio.gather(*(abilities(kind, free) for kind in kinds)), strict=True):
        # Applications have scenarios of their own.
        for scenario in (each for each in chosen if ("serve" in each.needs) == ("serve" in can)):
            if quick and isinstance(kind.quick, list) and scenario.name not in kind.quick:
                continue
            missing = ", ".join(sorted(scenario.needs - can))
            cells.append(Cell(scenario, kind, *(("-", [f"the subject has no {missing}"]) if missing else ())))

    async def one(cell: Cell) -> None:
        async with waiting if cell.scenario.needs & {"cluster", "sentinel"} else free:
            await fill(cell)

    await asyncio.gather(*(one(cell) for cell in cells if not cell.scenario.alone))
    for cell in cells:
        if cell.scenario.alone:
            await fill(cell)
    # On a machine that is busy with the others a server is late, too: what is red counts if it is so alone.
    known = known_red()
    for cell in cells:
        if cell.mark == "RED" and cell.name not in known and not cell.kind.reference:
            first, cell.mark, cell.why = cell.why, "", []
            await fill(cell)
            if cell.mark == "ok":
                cell.mark, cell.why = "ok2", first
    return cells


def known_red() -> dict[str, str]:
    lines = [line for line in KNOWN.read_text().splitlines() if line and not line.startswith("#")]
    return {name.strip(): why.strip() for name, _, why in (line.partition(" | ") for line in lines)}


def table(cells: list[Cell], known: dict[str, str]) -> str:
    """The scenarios of limiters, and below them those of applications, which have other subjects."""
    lines: list[str] = []
    width = max(len(cell.scenario.name) for cell in cells)
    for of_apps in (False, True):
        block = [cell for cell in cells if ("serve" in cell.scenario.needs) == of_apps]
        kinds = list(dict.fromkeys(cell.kind.name for cell in block))
        columns = [max(len(kind), 4) for kind in kinds]
        found = {(cell.scenario.name, cell.kind.name): cell for cell in block}
        rows = [["scenario", *kinds], ["-" * width, *("-" * column for column in columns)]] if block else []
        for scenario in SCENARIOS:
            marks = [found.get((scenario.name, kind)) for kind in kinds]
            if any(marks):
                known_too = [
                    "" if not cell else f"{cell.mark}*" if cell.mark == "RED" and cell.name in known else cell.mark
                    for cell in marks
                ]
                rows.append([scenario.name, *known_too])
        lines += [
            " | ".join(text.ljust(column) for text, column in zip(row, [width, *columns], strict=True)).rstrip()
            for row in rows
        ] + [""]
    return "\n".join(lines)


def summary(cells: list[Cell], known: dict[str, str]) -> list[str]:
    """What was not played, by its reason, and at the end what is not green: of a long log the end is read first."""
    unplayed: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.mark == "-":
            unplayed.setdefault((cell.kind.name, cell.why[0]), []).append(cell.scenario.name)
    lines = [f"-   {kind}: {why}: {'; '.join(names)}" for (kind, why), names in unplayed.items()]
    for cell in cells:
        if cell.mark == "RED":
            kind = (
                "a reference" if cell.kind.reference else f"KNOWN: {known[cell.name]}" if cell.name in known else "NEW"
            )
            lines += ["", f"RED {cell.name} ({kind})", *(f"    {why}" for why in cell.why)]
        elif cell.mark == "ok2":
            lines += ["", f"ok2 {cell.name}: held alone, and not beside others", *(f"    {why}" for why in cell.why)]
        elif cell.mark == "ok" and cell.name in known:
            lines += ["", f"GREEN, and known-red.txt still names it: {cell.name}"]
    return lines


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="the fixed choice of make test-clients")
    arguments.add_argument("--only", default="", help="scenarios with this text in their names")
    arguments.add_argument("--subject", action="append", default=[], help="subjects whose names begin so")
    arguments.add_argument("--jobs", type=int, default=4, help="plays at a time (4), and as many on clusters")
    arguments.add_argument("--list", action="store_true", help="what is judged, and nothing is played")
    given = arguments.parse_args()

    for family in FAMILIES:
        importlib.import_module(f"scenarios.{family}")
    rows = tomllib.loads((HERE / "subjects.toml").read_text())
    kinds = [Kind(name, **row) for name, row in rows.items()]
    kinds = [kind for kind in kinds if kind.name.startswith(tuple(given.subject or [""]))]
    kinds = [kind for kind in kinds if kind.quick or not given.quick]
    absent = [kind for kind in kinds if not kind.is_here()]
    kinds = [kind for kind in kinds if kind.is_here()]
    chosen = [s for s in SCENARIOS if given.only in s.name and (s.quick or not given.quick)]
    if given.list:
        print("\n".join(f"{s.name}: {s.judged}" for s in chosen))
        return 0

    known = known_red()
    began = time.monotonic()
    cells = asyncio.run(fill_all(chosen, kinds, given.jobs, given.quick))
    print(table(cells, known))
    print("\n".join(summary(cells, known)))
    for kind in absent:
        print(f"\nNOT PLAYED: {kind.name}: {kind.needs} is not there")
    red = [cell for cell in cells if cell.mark == "RED"]
    new = [cell for cell in red if cell.name not in known and not cell.kind.reference]
    passed = sum(cell.mark in ("ok", "ok2") for cell in cells)
    skipped = sum(cell.mark == "-" for cell in cells)
    print(
        f"\n{passed} hold, {len(new)} are red, {len(red) - len(new)} more are known or references,"
        f" {skipped} cannot be played; {time.monotonic() - began:.0f} s"
    )
    return 1 if new or not cells else 0


if __name__ == "__main__":
    sys.exit(main())
