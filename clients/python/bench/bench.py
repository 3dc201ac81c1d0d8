"""Requests a second, p99 and processor time of the adapters, beside the storage of limits that its users have today.

    python bench/bench.py [--seconds 0.25] [--turns 9]

One run on one server of each kind (the module, functions, a script), each case after the other in short turns that are
repeated, so that a machine that is busy elsewhere slows all of them. Each figure is the median of the turns. Ratios are
taken within each turn; the smallest and the largest are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import limits
import redis
import redis.asyncio
from limits.aio.strategies import MovingWindowRateLimiter as AsyncMoving
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import redis_rl.limits  # noqa: F401 - registers rl+redis://
from redis_rl import AsyncLimiter, sliding
from redis_rl.asgi import RateLimitMiddleware
from servers import Server

KEYS = 100
TASKS = 16
LIMIT = limits.parse("100/minute")
OWN = "limits' own redis storage"
# A machine that is busy elsewhere is not a server that is unavailable.
PATIENT = {"timeout": "10"}


@dataclass
class Case:
    """Something to measure: who, what, on which server."""

    who: str
    what: str
    turn: Callable[[float], list[float]]
    server: Server
    rates: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        server = self.server
        server.run("FLUSHALL")
        calls = server_calls(server)
        before, own, begin = server_cpu(server), time.process_time(), time.perf_counter()
        times = self.turn(seconds)
        took, own = time.perf_counter() - begin, time.process_time() - own
        times.sort()
        self.rates.append(len(times) / took)
        self.p99.append(times[len(times) * 99 // 100])
        self.own.append(own / len(times))
        self.cpu.append((server_cpu(server) - before) / len(times))
        self.calls.append((server_calls(server) - calls) / took)

    def row(self, first: Case) -> dict[str, str]:
        """The figures; ``first`` is the case that this one is compared with: what users have today."""
        return {
            "what": self.what,
            "through": self.who,
            "requests/s": f"{statistics.median(self.rates):,.0f}",
            "÷ today's": against(self.rates, first.rates),
            "p99": f"{statistics.median(self.p99) * 1000:.2f} ms",
            "client CPU": f"{statistics.median(self.own) * 1e6:.1f} µs",
            "÷ today's ": against(self.own, first.own),
            "server CPU": f"{statistics.median(self.cpu) * 1e6:.1f} µs",
            "÷ today's  ": against(self.cpu, first.cpu),
            # Of a call a second, most turns see none.
            "calls/s": f"{statistics.mean(self.calls):,.0f}",
        }


def against(figures: list[float], others: list[float]) -> str:
    """The smallest and the largest ratio of a turn."""
    if figures is others or not others:
        return ""
    ratios = sorted(one / other for one, other in zip(figures, others, strict=True))
    if ratios[0] < 1 < ratios[-1]:
        return "no difference"
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f}"


def server_cpu(server: Server) -> float:
    """Seconds of processor that the server has taken."""
    with server.client() as client:
        info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def server_calls(server: Server) -> int:
    """How many commands that decide the server has run, those of scripts left out."""
    with server.client() as client:
        stats = client.info("commandstats")
    names = ("rl.sliding", "rl.fixed", "fcall", "evalsha")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names)


def loop_sync(call: Callable[[str], object]) -> Callable[[float], list[float]]:
    def turn(seconds: float) -> list[float]:
        times = []
        end = time.perf_counter() + seconds
        number = 0
        while (begin := time.perf_counter()) < end:
            call(str(number % KEYS))
            times.append(time.perf_counter() - begin)
            number += 1
        return times

    return turn


def loop_async(make: Callable[[], tuple[Callable[[str], Awaitable[object]], Any]]) -> Callable[[float], list[float]]:
    async def main(seconds: float) -> list[float]:
        call, close = make()
        await call("0")
        times: list[float] = []
        end = time.perf_counter() + seconds

        async def task(offset: int) -> None:
            number = offset
            while (begin := time.perf_counter()) < end:
                await call(str(number % KEYS))
                times.append(time.perf_counter() - begin)
                number += TASKS

        await asyncio.gather(*(task(offset) for offset in range(TASKS)))
        if close is not None:
            await close()
        return times

    return lambda seconds: asyncio.run(main(seconds))


def sync_case(strategy: Any, uri: str, **options: str) -> Callable[[float], list[float]]:
    storage: Any = storage_from_string(uri, **options)
    limiter = strategy(storage)
    return loop_sync(lambda key: limiter.hit(LIMIT, strategy.__name__, key))


def async_case(uri: str, **options: str) -> Callable[[float], list[float]]:
    def make() -> tuple[Callable[[str], Awaitable[object]], Any]:
        storage: Any = storage_from_string(uri, **options)
        limiter = AsyncMoving(storage)
        # limits' own storage has no way to be closed.
        return lambda key: limiter.hit(LIMIT, key), getattr(storage, "aclose", None)

    return loop_async(make)


async def empty(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def asgi_case(
    server: Server, rate: str = "100/minute", deny_cache: bool = False, one: bool = False
) -> Callable[[float], list[float]]:
    """The middleware around an application that does nothing, called without HTTP."""

    def make() -> tuple[Callable[[str], Awaitable[object]], Any]:
        limiter = AsyncLimiter(redis.asyncio.Redis(port=server.port), timeout=10)
        app = RateLimitMiddleware(empty, limiter=limiter, rule=sliding(rate), timeout=10, deny_cache=deny_cache)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            return None

        async def call(key: str) -> None:
            await app({"type": "http", "client": ("one" if one else key, 1), "headers": []}, receive, send)

        return call, limiter.aclose

    return loop_async(make)


def main() -> None:
    """Measures, and prints a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=0.25, help="for each turn of each case")
    options.add_argument("--turns", type=int, default=9)
    chosen = options.parse_args()

    servers = {mode: Server(mode, frozen=False) for mode in ("module", "functions", "script")}
    plain = servers["script"]
    cases = []
    try:
        for name, strategy in (("fixed-window", FixedWindowRateLimiter), ("moving-window", MovingWindowRateLimiter)):
            what = f"limits, {name}"
            cases.append(Case(OWN, what, sync_case(strategy, plain.url), plain))
            for mode, server in servers.items():
                turn = sync_case(strategy, f"rl+{server.url}", **PATIENT)
                cases.append(Case(f"redis-rl, {mode}", what, turn, server))
        what = f"limits, moving-window, asyncio, {TASKS} at once"
        cases.append(Case(OWN, what, async_case(f"async+{plain.url}", implementation="redispy"), plain))
        turn = async_case(f"async+rl+{servers['module'].url}", **PATIENT)
        cases.append(Case("redis-rl, module", what, turn, servers["module"]))
        what = f"ASGI middleware, {TASKS} at once"
        cases.append(Case("redis-rl, module", what, asgi_case(servers["module"]), servers["module"]))
        what = "ASGI middleware, one client that is denied"
        for deny_cache in (False, True):
            turn = asgi_case(servers["module"], "1/hour", deny_cache, one=True)
            cases.append(Case(f"redis-rl, deny_cache={deny_cache}", what, turn, servers["module"]))
        # What is slow only once is not counted: the first probe of the server, scripts, connections.
        for case in cases:
            case.turn(0.05)
        for _ in range(chosen.turns):
            for case in cases:
                case.run(chosen.seconds)
    finally:
        for server in servers.values():
            server.kill()

    firsts: dict[str, Case] = {}
    for case in cases:
        # Today's users have nothing to compare the middleware with.
        firsts.setdefault(case.what, case if case.who == OWN else Case("", "", case.turn, plain))
    rows = [case.row(firsts[case.what]) for case in cases]
    named = f"Python {sys.version.split()[0]}, redis-py {redis.__version__}, limits {limits.__version__}"
    print(f"{named}. {KEYS} keys, {chosen.turns} turns.\n")
    names = list(rows[0])
    print("| " + " | ".join(names) + " |")
    print("|---|---|" + "--:|" * (len(names) - 2))
    for row in rows:
        print("| " + " | ".join(row.values()) + " |")


if __name__ == "__main__":
    main()
