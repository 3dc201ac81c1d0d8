"""The recipes of docs/OUTBOUND.md in Python, as they stand there but for their rates and ports."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from celery.contrib.testing.worker import start_worker  # type: ignore[import-untyped]

from conftest import have
from redis_rl import AsyncLimiter
from servers import Server

PAGE = (Path(__file__).parents[3] / "docs/OUTBOUND.md").read_text()


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """A worker of Celery sets the level of all loggers, also for the tests after it."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture
def running() -> Iterator[Server]:
    """A server whose clock goes."""
    have("module")
    server = Server("module", frozen=False)
    yield server
    server.kill()


def recipe(name: str, server: Server, **changes: str) -> dict[str, Any]:
    """The names that a recipe has defined."""
    found = re.search(rf"```python\n# {name}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    assert found[1].count("\n") <= 30
    text = found[1].replace("localhost:6379", f"localhost:{server.port}")
    text = text.replace("Redis()", f"Redis(port={server.port})")
    for old, new in changes.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    # By its name, or a task is one of this test.
    names: dict[str, Any] = {"__name__": Path(name).stem}
    exec(text, names)
    return names


async def test_httpx_keeps_the_rate_and_pauses_after_retry_after(running: Server) -> None:
    names = recipe("outbound.py", running, **{"95/second": "10/second"})
    calls: list[float] = []
    refused = 0.0

    def provider(request: httpx.Request) -> httpx.Response:
        nonlocal refused
        calls.append(time.monotonic())
        if len(calls) != 15:
            return httpx.Response(200)
        refused = calls[-1]
        return httpx.Response(429, headers={"Retry-After": "2"})

    async with redis.asyncio.Redis(port=running.port) as client, AsyncLimiter(client, prefix="provider:") as limiter:
        transport = names["Limited"](limiter, httpx.MockTransport(provider))
        async with httpx.AsyncClient(transport=transport) as http:
            answers = await asyncio.gather(*(http.get("http://provider/") for _ in range(30)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(calls) == 31, "the one that was refused came again"
    assert not [at for at in calls if refused + 0.3 < at < refused + 1.9], "all pause"


def test_a_task_is_started_at_its_turn(running: Server) -> None:
    names = recipe("tasks.py", running, **{"95/second": "5/second"})
    started: dict[str, float] = {}
    names["call_provider"] = lambda user: started.setdefault(user, time.monotonic())
    app = names["app"]
    with start_worker(app, perform_ping_check=False, pool="solo"):
        for number in range(15):
            names["notify"].delay(f"u{number}")
        deadline = time.monotonic() + 30
        while len(started) < 15 and time.monotonic() < deadline:
            time.sleep(0.05)
    times = sorted(started.values())
    assert len(times) == 15
    assert times[-1] - times[0] >= 1.9, "5 in each of three seconds"


async def test_messages_above_the_limit_are_told(running: Server) -> None:
    names = recipe("messages.py", running, **{"10/second": "3/5s"})
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "client": ("203.0.113.7", 5)}
    app = asyncio.create_task(names["app"](scope, received.get, sent.put))
    received.put_nowait({"type": "websocket.connect"})
    for number in range(5):
        received.put_nowait({"type": "websocket.receive", "text": str(number)})
    async with asyncio.timeout(30):
        accepted, *answers = [await sent.get() for _ in range(6)]
        received.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await app
    assert accepted["type"] == "websocket.accept"
    told, denied = [answer["text"] for answer in answers], json.loads(answers[3]["text"])
    assert [*told[:3], told[4]] == ["echo 0", "echo 1", "echo 2", "echo 4"], "it goes on when there is room"
    assert denied["violated-policies"] == ["5s"]
