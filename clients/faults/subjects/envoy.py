"""The subject of redis-rl-envoy: each limiter is a service of its own, and each call a request to its door /json.

A rule of a scenario becomes a limit in the service's configuration when it is first used. The service does not say
whether what went wrong passes by itself, so every request that it did not decide is told as unavailable.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.http import Answer, Connection
from harness.servers import ROOT, end_with_parent, free_port

CAN = ["hit", "crowd", "flood", "cluster", "sentinel", "within", "modes", "cost"]
UNITS = {"second": "second", "s": "second", "minute": "minute", "hour": "hour", "day": "day"}
MOST_AT_ONCE = 512
"""Connections to a service, as a proxy has a bounded number of them."""

Play = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

services: dict[str, Service] = {}
under_way: dict[int, asyncio.Task[None]] = {}
lags: collections.deque[tuple[float, float]] = collections.deque(maxlen=10_000)


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Service:
    """A running service, its configuration and the connections to it."""

    def __init__(self, connect: dict[str, Any], timeout: float, mode: str = "auto") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redis-rl-faults-"))
        (self.folder / "config").mkdir()
        self.http, grpc, self.debug = free_port(), free_port(), free_port()
        if "cluster" in connect:
            where = ("CLUSTER", ",".join(connect["cluster"]))
        elif "sentinel" in connect:
            where = ("SENTINEL", ",".join([connect["service"], *connect["sentinel"]]))
        else:
            where = ("SINGLE", connect["url"])
        self.env = {
            **os.environ,
            **{"HOST": "127.0.0.1", "PORT": str(self.http), "GRPC_HOST": "127.0.0.1", "GRPC_PORT": str(grpc)},
            **{"DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": str(self.debug), "USE_STATSD": "false"},
            **{"REDIS_SOCKET_TYPE": "tcp", "REDIS_TYPE": where[0], "REDIS_URL": where[1], "REDIS_RL_MODE": mode},
            **{"REDIS_DEADLINE": f"{timeout * 1000:g}ms", "RUNTIME_ROOT": str(self.folder), "NO_COLOR": "1"},
        }
        self.limits: dict[str, str] = {}
        self.free: list[Connection] = []
        self.places = asyncio.Semaphore(MOST_AT_ONCE)
        self.configuring = asyncio.Lock()

    async def start(self) -> None:
        self.write()
        program = os.environ.get("SERVICE", ROOT / "envoy/target/release/redis-rl-envoy")
        self.process = await asyncio.create_subprocess_exec(
            program, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=end_with_parent
        )
        asyncio.get_running_loop().create_task(self.overhear())
        until = time.monotonic() + 10
        while (await Connection(self.http).get("/healthcheck")).status == 0:
            if time.monotonic() > until or self.process.returncode is not None:
                raise ValueError("the service waits for Redis before it listens")
            await asyncio.sleep(0.02)

    async def overhear(self) -> None:
        assert self.process.stderr
        async for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip()
            found = re.search(r"level=(\w+)", text)
            tell(log=found[1] if found else "warning", text=text)

    def write(self) -> None:
        limits = "\n".join(self.limits.values())
        new = self.folder / "new"
        # What a key of the scenarios has in braces decides the slot of a cluster here, too.
        head = "domain: faults\nhash_tag: tag\ndescriptors:\n  - key: tag\n    descriptors:\n      - key: unlimited\n"
        new.write_text(f"{head}{limits}\n")
        new.rename(self.folder / "config/limits.yaml")

    async def limit(self, rule: dict[str, Any]) -> str:
        """The descriptor's key of a rule, which the service knows from then on."""
        rates = [rate.strip() for part in rule["rates"] for rate in part.split(",")]
        name = f"{rule['kind']}-" + "-".join(rate.replace("/", "_") for rate in rates)
        async with self.configuring:
            if name not in self.limits:
                pairs = [rate.split("/") for rate in rates]
                lines = [f"- key: {name}", "  rate_limit:", f"    algorithm: {rule['kind']}"]
                lines += [f"    unit: {UNITS[pairs[0][1]]}", f"    requests_per_unit: {pairs[0][0]}"]
                self.limits[name] = "\n".join(f"      {line}" for line in lines)
                self.write()
                until = time.monotonic() + 10
                while name not in (await Connection(self.debug).get("/rlconfig")).body:
                    assert time.monotonic() < until, "the service does not load the limit"
                    await asyncio.sleep(0.05)
        return name

    async def hit(self, c: dict[str, Any]) -> dict[str, Any]:
        name = await self.limit(c["rule"])
        key = c["key"]
        tag = key[1 : key.index("}")] if key.startswith("{") else key
        windows = f"{c['rule']['kind']} {LENGTHS[name.rsplit('_', 1)[1]]}"
        escaped = key.replace("{", "%7B").replace("}", "%7D")
        told: dict[str, Any] = {"key": f"{{{tag}}}faults|tag={tag}|{name}={escaped}|{windows}"}
        entries = [{"key": "tag", "value": tag}, {"key": name, "value": key}]
        request: dict[str, Any] = {"domain": "faults", "descriptors": [{"entries": entries}]}
        if "cost" in c:
            request["hitsAddend"] = c["cost"]
        began = time.monotonic()
        try:
            answer = await asyncio.wait_for(self.ask(request), c.get("within"))
        except TimeoutError:
            return {**told, "outcome": "gave_up"}
        told["ms"] = (time.monotonic() - began) * 1000
        if answer.status in (200, 429):
            status = json.loads(answer.body)["statuses"][0]
            remaining = status.get("limitRemaining", 0)
            return {**told, "outcome": "allowed" if answer.status == 200 else "denied", "remaining": remaining}
        return {**told, "outcome": "unavailable" if answer.status else "bug", "error": answer.body.strip()}

    async def ask(self, request: dict[str, Any]) -> Answer:
        async with self.places:
            connection = self.free.pop() if self.free else Connection(self.http)
            try:
                answer = await connection.get("/json", body=json.dumps(request))
            except BaseException:
                # The caller has left, and with it its connection.
                connection.close()
                raise
            self.free.append(connection)
        return answer


LENGTHS = {"s": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400}


def crowded(replies: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "outcome": "done",
        "outcomes": dict(collections.Counter(reply["outcome"] for reply in replies)),
        "errors": dict(collections.Counter(reply["error"] for reply in replies if "error" in reply).most_common(5)),
        "slowest_ms": max(reply.get("ms", 0) for reply in replies),
        "key": replies[0].get("key"),
    }


async def play(c: dict[str, Any]) -> dict[str, Any]:
    if c["do"] == "limiter":
        services[c["name"]] = Service(c["connect"], c["timeout"], c.get("mode", "auto"))
        try:
            await services[c["name"]].start()
        except ValueError as error:
            return {"outcome": "argument", "error": str(error)}
        return {"outcome": "done"}
    service = services[c["limiter"]]
    if c["do"] == "hit":
        return await service.hit(c)
    if c["do"] == "crowd":
        await service.limit(c["rule"])
        return crowded(await asyncio.gather(*(service.hit(c) for _ in range(c["n"]))))
    if c["do"] == "flood":
        keys, replies = (f"{c['key']}{number}".ljust(c["pad"], "x") for number in range(c["n"])), []

        async def some() -> None:
            for key in keys:
                replies.append(await service.hit({**c, "key": key}))  # noqa: PERF401 - one after the other

        await asyncio.gather(*(some() for _ in range(16)))
        return crowded(replies)
    raise ValueError(c["do"])


async def command(c: dict[str, Any], play: Play) -> None:
    began = time.monotonic()
    told = await play(c)
    late = max([lag for at, lag in list(lags) if at >= began], default=0.0)
    tell(**{"id": c["id"], "ms": (time.monotonic() - began) * 1000, "lag_ms": late * 1000, **told})


async def measure() -> None:
    while True:
        began = time.monotonic()
        await asyncio.sleep(0.01)
        lags.append((time.monotonic(), time.monotonic() - began - 0.01))


async def main(can: list[str] = CAN, play: Play = play) -> None:
    tell(can=can)
    under_way[0] = asyncio.create_task(measure())
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        c = json.loads(line)
        under_way[c["id"]] = asyncio.create_task(command(c, play))
        under_way[c["id"]].add_done_callback(lambda _, number=c["id"]: under_way.pop(number, None))


if __name__ == "__main__":
    asyncio.run(main())
