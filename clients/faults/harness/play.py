"""A play: one scenario with one subject. It makes what the scenario asks for, judges, and cleans up."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from .http import App
from .proxy import Proxy
from .servers import Cluster, Sentinels, Server, until
from .subject import Kind, Reply, Subject

MARGIN_MS = 200
"""What a call may take beyond its deadline, with how late the subject's own timers were meanwhile."""

CROWD_MARGIN_MS = 500
"""The same of the slowest call of a crowd, whose threads or tasks wait for each other."""

ANSWERED = ("allowed", "denied")


class Skip(Exception):
    """The subject cannot play it, and says why."""


@dataclass(frozen=True)
class Scenario:
    """One row of the table."""

    name: str
    play: Callable[[Play], Awaitable[None]]
    needs: frozenset[str]
    quick: bool
    alone: bool
    seconds: float
    env: dict[str, str]

    @property
    def judged(self) -> str:
        """What is judged, as its docstring says."""
        return " ".join((self.play.__doc__ or "").split())


SCENARIOS: list[Scenario] = []


def scenario(
    name: str,
    *needs: str,
    quick: bool = False,
    alone: bool = False,
    seconds: float = 90,
    env: dict[str, str] | None = None,
) -> Callable[[Callable[[Play], Awaitable[None]]], Callable[[Play], Awaitable[None]]]:
    """Puts a function into the table.

    Args:
        name: its row.
        needs: what a subject must be able to do.
        quick: whether it belongs to the fixed choice of ``make test-clients``.
        alone: whether nothing else may run beside it, as it needs the processor.
        seconds: after which the play is given up, and red.
        env: variables of the subject's environment.
    """

    def add(play: Callable[[Play], Awaitable[None]]) -> Callable[[Play], Awaitable[None]]:
        SCENARIOS.append(Scenario(name, play, frozenset(needs), quick, alone, seconds, env or {}))
        return play

    return add


def sliding(*rates: str, **options: Any) -> dict[str, Any]:
    return {"kind": "sliding", "rates": list(rates), **options}


def fixed(*rates: str, **options: Any) -> dict[str, Any]:
    return {"kind": "fixed", "rates": list(rates), **options}


def lease(limit: int, ttl: float) -> dict[str, Any]:
    return {"kind": "lease", "limit": limit, "ttl": ttl}


class Traffic:
    """Callers that call one after the other until they are told to stop, one a key."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str, Reply]] = []
        """When each call ended, its key, and how."""

    def of(self, key: str, since: float = 0) -> list[Reply]:
        return [reply for at, each, reply in self.seen if each == key and at >= since]

    def outcomes(self) -> dict[str, int]:
        return dict(Counter(reply.outcome for _, _, reply in self.seen))

    async def settles(self, keys: list[str], seconds: float) -> None:
        """Waits until all calls have been answered for two seconds, ``seconds`` at most."""
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            if now > began + 2 and all(now - self.steady_from(key) > 2 and self.of(key, now - 1) for key in keys):
                return
            await asyncio.sleep(0.1)

    def steady_from(self, key: str) -> float:
        """When the last call that failed had ended."""
        failed = [at for at, each, reply in self.seen if each == key and reply.outcome not in ANSWERED]
        return max(failed, default=0.0)


class Limiter:
    """A limiter in the subject."""

    def __init__(self, subject: Subject, name: str, timeout: float) -> None:
        self.subject, self.name, self.timeout = subject, name, timeout

    def begin(self, do: str, key: str, rule: dict[str, Any] | None = None, **fields: Any) -> asyncio.Future[Reply]:
        return self.subject.begin(do, limiter=self.name, key=key, rule=rule, **fields)

    async def hit(self, key: str, rule: dict[str, Any], **fields: Any) -> Reply:
        return await self.begin("hit", key, rule, **fields)

    async def crowd(self, n: int, key: str, rule: dict[str, Any], **fields: Any) -> Reply:
        """``n`` hits at once."""
        return await self.begin("crowd", key, rule, n=n, **fields)

    async def close(self) -> Reply:
        return await self.subject.call("close", limiter=self.name)


def where(to: Any) -> dict[str, Any]:
    """How a subject connects to that."""
    if isinstance(to, Cluster):
        return {"cluster": to.startup}
    if isinstance(to, Sentinels):
        return {"sentinel": [f"127.0.0.1:{to.sentinel.port}"], "service": "limits"}
    return {"url": to.url}


class Play:
    """What a scenario is given."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.red: list[str] = []
        """What was judged and did not hold."""
        self._ends: list[Callable[[], Any]] = []
        self.subject = Subject(kind)
        self._others: list[Subject] = []
        self._limiters = 0

    # What there is.

    async def server(self, mode: str = "module", *arguments: str) -> Server:
        server = Server(mode, *arguments)
        self._ends.append(server.end)
        return await server.start()

    async def proxy(self, server: Any) -> Proxy:
        proxy = await Proxy(server).start()
        self._ends.append(proxy.end)
        return proxy

    async def cluster(self, mode: str = "module", **options: Any) -> Cluster:
        cluster = Cluster(mode, **options)
        self._ends.append(cluster.end)
        return await cluster.start()

    async def sentinels(self) -> Sentinels:
        sentinels = Sentinels()
        self._ends.append(sentinels.end)
        return await sentinels.start()

    async def another(self) -> Subject:
        """One more process of the subject."""
        self._others.append(Subject(self.kind))
        return await self._others[-1].start({})

    async def limiter(
        self, to: Any, timeout: float = 1.0, client: str | None = None, subject: Subject | None = None, **options: Any
    ) -> Limiter:
        """A limiter over a server, a proxy, a cluster or sentinels. Those of one ``client`` share the user's client."""
        self._limiters += 1
        name = f"limiter{self._limiters}"
        subject = subject or self.subject
        made = await subject.call(
            "limiter", name=name, connect=where(to), client=client or name, timeout=timeout, **options
        )
        if made.outcome == "argument":
            raise Skip(str(made["error"]))
        if made.outcome != "done":
            raise AssertionError(f"no limiter was made: {made}")
        return Limiter(subject, name, timeout)

    async def app(self, to: Any, rule: dict[str, Any], policy: str | None = None, **options: Any) -> App:
        """An application with the subject's adapter; what it cannot serve is skipped."""
        made = await self.subject.call("serve", connect=where(to), rule=rule, policy=policy, **options)
        if made.outcome == "argument":
            raise Skip(str(made["error"]))
        if made.outcome != "done":
            raise AssertionError(f"no application was made: {made}")
        return App(made["port"], made.get("refuses", 503))

    @asynccontextmanager
    async def traffic(
        self, limiter: Limiter, keys: list[str], rule: dict[str, Any], pause: float = 0.02, **fields: Any
    ) -> AsyncIterator[Traffic]:
        """One caller a key, while the block lasts."""
        traffic, going = Traffic(), True

        async def calling(key: str) -> None:
            while going:
                reply = await limiter.hit(key, rule, **fields)
                traffic.seen.append((time.monotonic(), key, reply))
                await asyncio.sleep(pause)

        callers = [asyncio.create_task(calling(key)) for key in keys]
        try:
            yield traffic
            going = False
            await asyncio.gather(*callers)
        finally:
            for caller in callers:
                caller.cancel()

    def impatient(self, seconds: float) -> dict[str, float]:
        """The fields of a call whose caller gives up after that time, where the subject's language can do so."""
        return {"within": seconds} if "within" in self.subject.can else {}

    async def memory(self) -> int:
        """The bytes that the subject's process keeps. Where a runtime takes much more than that before it collects its
        garbage, the subject says it; else it is what the kernel counts."""
        return int((await self.subject.call("memory"))["count"]) if "memory" in self.subject.can else self.subject.rss()

    # Judging.

    def judge(self, what: str, holds: object, seen: object = "") -> bool:
        """Notes what does not hold."""
        if not holds:
            self.red.append(f"{what}: {seen}" if seen != "" else what)
        return bool(holds)

    def outcome(self, reply: Reply, *expected: str, what: str = "") -> bool:
        said = " or ".join(expected)
        return self.judge(f"{what or 'a call'} is {said}", reply.outcome in expected, reply)

    def in_time(self, reply: Reply, deadline: float, what: str = "answered by the deadline") -> bool:
        """The deadline in seconds, MARGIN_MS, and what the subject's process itself lost."""
        margin = CROWD_MARGIN_MS if "slowest_ms" in reply else MARGIN_MS
        bound = deadline * 1000 + margin + 2 * reply.lag
        took = float(reply.get("slowest_ms", reply.ms))
        return self.judge(what, took <= bound, f"{took:.0f} ms of {deadline * 1000:.0f} (lag {reply.lag:.0f})")

    def all_of(self, crowd: Reply, *expected: str, what: str = "each call") -> bool:
        said = " or ".join(expected)
        return self.judge(f"{what} is {said}", not set(crowd.outcomes) - set(expected), crowd)

    async def recovers(
        self, limiter: Limiter, rule: dict[str, Any], within: float, key: str = "again", what: str = "recovered"
    ) -> float:
        """Calls until one is answered; later than ``within`` seconds is red. Returns the seconds it took."""
        began = time.monotonic()
        lost = 0.0
        while True:
            reply = await limiter.hit(key, rule)
            lost += reply.lag / 1000
            took = time.monotonic() - began
            if reply.outcome in ANSWERED:
                self.judge(f"{what} within {within:g} s", took <= within + 1 + 2 * lost, f"{took:.1f} s")
                return took
            if took > within + 6 + 2 * lost or reply.outcome == "died":
                self.judge(f"{what} within {within:g} s", False, f"not within {took:.0f} s: {reply}")
                return took
            await asyncio.sleep(0.05)

    async def used(self, server: Server, key: str, rule: dict[str, Any]) -> int:
        """The units counted on the server."""
        return await server.used(self.name_of(key), rule)

    def name_of(self, key: str) -> str:
        """What the key is called on the server: the subject's replies say it where it is another."""
        return self.subject.keys.get(key, key)

    async def charged(self, server: Server, key: str, rule: dict[str, Any], units: int, what: str = "charged") -> bool:
        """The units counted on the server are exactly these."""
        used = await self.used(server, key, rule)
        return self.judge(f"{what}: {units} units", used == units, f"{used} on the server")

    async def comes_true(self, what: str, happens: Callable[[], Awaitable[Any]], within: float) -> bool:
        """Something that is judged, and needs a while."""
        try:
            await until(what, happens, within)
        except AssertionError:
            return self.judge(what, False, f"not within {within:g} s")
        return True

    async def run(self, scenario: Scenario) -> None:
        """Plays it to its end."""
        try:
            await self.subject.start(scenario.env)
            async with asyncio.timeout(scenario.seconds):
                await scenario.play(self)
        except TimeoutError:
            self.red.append(f"not over after {scenario.seconds:g} s")
        finally:
            for subject in (self.subject, *self._others):
                await subject.end()
            for end in reversed(self._ends):
                end()
