"""Budgets of a crowd that reserves: what is charged at the end is what was settled, to the unit."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

from harness.play import Limiter, Play, fixed, scenario, sliding
from harness.servers import Server

BUDGETS = {"budget-sliding": sliding("2000/30day"), "budget-fixed": fixed("2000/30day")}
LIMIT = 2000
LEASE = 2
CUSTOMERS = 12
PROCESSES = 3
TROUBLES = ("kill", "cut", "hang", "flush", "kill", "swallow", "cut", "kill")


@dataclass
class Account:
    """What was settled at a key."""

    charged: int = 0
    """Of settlements that were confirmed."""
    unknown: list[int] = field(default_factory=list)
    """Settlements that were sent, and whose process was killed before it had an answer."""
    above: int = 0
    """What settlements may have charged over the limit: above what was reserved, or after the lease."""

    @property
    def totals(self) -> set[int]:
        """All that may be charged: each settlement whose outcome is unknown has arrived or not."""
        totals = {self.charged}
        for actual in self.unknown:
            totals |= {total + actual for total in totals}
        return totals


class Crowd:
    """Customers that reserve and settle, in processes that are killed, through a proxy that loses replies."""

    def __init__(self, play: Play, server: Server) -> None:
        self.play, self.server = play, server
        self.accounts = {key: Account() for key in BUDGETS}
        self.processes: list[Limiter] = []
        self.is_over = False

    async def play_out(self) -> Limiter:
        """Returns a limiter that is left."""
        self.proxy = await self.play.proxy(self.server)
        for _ in range(PROCESSES):
            self.processes.append(await self.process())
        dice = random.Random(31)
        self.proxy.lose = lambda request: b"budget-" in request and dice.random() < 0.1
        customers = [asyncio.create_task(self.customer(number)) for number in range(CUSTOMERS)]
        for trouble in TROUBLES:
            await asyncio.sleep(0.5)
            await self.make(trouble)
        self.is_over = True
        self.proxy.lose = lambda request: False
        await asyncio.gather(*customers)
        return self.processes[0]

    async def process(self) -> Limiter:
        return await self.play.limiter(self.proxy, timeout=0.5, subject=await self.play.another())

    async def make(self, trouble: str) -> None:
        if trouble == "kill":
            self.processes.pop(0).subject.kill()
            self.processes.append(await self.process())
        elif trouble == "hang":
            self.proxy.hang()
            await asyncio.sleep(0.7)
            self.proxy.resume()
        elif trouble == "flush":
            await self.server.run("FUNCTION", "FLUSH")
        else:
            {"cut": self.proxy.cut, "swallow": self.proxy.swallow}[trouble]()

    async def customer(self, number: int) -> None:
        dice = random.Random(number)
        turn = 0
        while not self.is_over:
            turn += 1
            process, key, name = dice.choice(self.processes), dice.choice(list(BUDGETS)), f"{number}-{turn}"
            units = dice.randint(1, 100)
            actual = dice.choice((0, 0, 0, units // 2, units, units + dice.randint(1, 30)))
            began = time.monotonic()
            made = await process.begin("reserve", key, BUDGETS[key], units=units, lease=LEASE, **{"as": name})
            self.play.outcome(made, "allowed", "denied", "unavailable", "died", what="reserve")
            await asyncio.sleep(dice.uniform(0, 0.2))
            # Of a process that was killed meanwhile nobody is there to settle.
            if made.outcome == "allowed" and process in self.processes:
                await self.settle(process, key, name, actual, began, units)

    async def settle(self, process: Limiter, key: str, name: str, actual: int, began: float, units: int) -> None:
        account = self.accounts[key]
        outcome = "unavailable"
        while outcome == "unavailable":
            reply = await process.subject.call("settle", limiter=process.name, of=name, units=actual)
            self.play.outcome(reply, "done", "unavailable", "died", what="settle")
            outcome = reply.outcome
            await asyncio.sleep(0.1)
        account.above += actual if time.monotonic() - began > LEASE else max(actual - units, 0)
        if outcome == "done":
            account.charged += actual
        else:
            account.unknown.append(actual)


async def spends(play: Play, mode: str) -> None:
    server = await play.server(mode)
    crowd = Crowd(play, server)
    limiter = await crowd.play_out()
    for key, account in crowd.accounts.items():
        rule = BUDGETS[key]

        async def nobody_holds(key: str = key, rule: dict[str, Any] = rule) -> bool:
            # One call more gives back what has ended by itself.
            made = await limiter.begin("reserve", key, rule, units=1, lease=LEASE, **{"as": "last"})
            if made.outcome == "allowed":
                settled = await limiter.subject.call("settle", limiter=limiter.name, of="last", units=0)
                play.outcome(settled, "done", what="settle")
            notes = await server.run("ZRANGE", f"{key}:held", 0, -1)
            return made.outcome in ("allowed", "denied") and not any(note.startswith("h") for note in notes)

        await play.comes_true("nothing is held after the lease and one call more", nobody_holds, LEASE + 8)
        used = await play.used(server, key, rule)
        play.judge("charged is what was settled", used in account.totals, f"{used}: {account}")
        play.judge("nothing over the limit but what was settled", used <= LIMIT + account.above, f"{used}: {account}")
        play.judge("some was settled", account.charged, account)


@scenario("a crowd reserves, processes are killed, replies lost", "reserve", "settle", "lease-of-reserve")
async def crowd_in_module(play: Play) -> None:
    """Twelve customers reserve and settle in three processes. Processes are killed, connections are cut and hang, and
    one reply in ten is lost. After the lease (2 s) and one call more, nothing is held, and each budget is charged with
    what was settled, to the unit: a settlement counts once, and one whose process was killed meanwhile once or not at
    all. Nothing is over the limit but what was settled above it."""
    await spends(play, "module")


@scenario("the same crowd with functions", "reserve", "settle", "lease-of-reserve")
async def crowd_in_functions(play: Play) -> None:
    """As with the module, and the functions are flushed on the way."""
    await spends(play, "functions")
