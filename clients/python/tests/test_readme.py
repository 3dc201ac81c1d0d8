"""The snippets of the README, run as they stand."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakeredis
import fakeredis.aioredis
import flask
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from redis_rl import AsyncLimiter, Limiter, calendar, fixed, lease, sliding, throttle
from servers import Server, compact

SNIPPETS = re.findall(
    r"^```python\n(.*?)^```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL | re.MULTILINE
)


def snippet(words: str, server: Server) -> str:
    """The one snippet that contains the words, on this server."""
    found: str
    (found,) = (text for text in SNIPPETS if words in text)
    found = found.replace(".Redis(", f".Redis(port={server.port}").replace(
        "Limiter(redis", "Limiter(timeout=10, client=redis"
    )
    return found.replace("localhost:6379", f"localhost:{server.port}")


def test_no_snippet_is_forgotten() -> None:
    assert len(SNIPPETS) == 16


def test_the_first_minute(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(snippet("for _ in range(6)", server), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [*["allowed"] * 5, "denied, try again in 60 s", f"mode: {server.mode}"]
    limiter = names["limiter"]
    with limiter:
        exec(snippet("limiter.all(", server), names)
        assert names["result"].allowed
        exec(snippet("limiter.hold(", server), names)
        assert not names["held"].lost
        names["call_the_model"] = lambda max_tokens: SimpleNamespace(usage=SimpleNamespace(total_tokens=234))
        budget = snippet('limiter.reserve("', server)
        if not compact(server):
            # Where a log is a sorted set.
            budget = budget.replace("4000", "400")
        exec(budget, names)
        assert limiter.peek("tokens:user:7", sliding("200_000/minute"), cost=0).used == 234
        names["calendar"] = calendar
        exec(snippet("limiter.reserve_all(", server).replace("4000", "400"), names)
        assert limiter.peek("{org7}:minute", sliding("200_000/minute"), cost=0).used == 234
        assert limiter.peek("{org7}:requests", sliding("500/minute"), cost=0).used == 2


def test_the_first_program_without_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    (code,) = (text for text in SNIPPETS if "for _ in range(6)" in text)
    exec(code.replace(".Redis(", ".Redis(port=1"), names)
    *lines, mode = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["unavailable"] * 6
    assert mode == "mode: None"
    names["limiter"].close()


def test_asyncio(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code = snippet("asyncio.run(main())", server).replace("AsyncLimiter(client)", "AsyncLimiter(client, timeout=10)")
    exec(code, {"__name__": "readme"})
    assert "Result(allowed=True, limit=5, used=1" in capsys.readouterr().out


def test_fastapi(server: Server) -> None:
    names: dict[str, Any] = {}
    code = snippet("FastAPI(lifespan", server).replace(
        'when_unavailable="open",', 'when_unavailable="open", timeout=10,'
    )
    exec(code, names)
    exec(snippet("trusted_proxies", server), names)
    assert names["key"]({"client": ("10.0.0.1", 1), "headers": [(b"x-forwarded-for", b"203.0.113.7")]}) == "203.0.113.7"

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=names["app"])
        # As a server would, for httpx does not.
        async with (
            names["lifespan"](names["app"]),
            httpx.AsyncClient(transport=transport, base_url="http://a") as client,
        ):
            return await client.get("/")

    response = asyncio.run(ask())
    assert (response.status_code, response.json()) == (200, "hello")
    assert response.headers["RateLimit"] == '"api";r=99;t=60'


def test_a_path_operation(server: Server) -> None:
    names: dict[str, Any] = {}
    exec(snippet("Depends(", server).replace('5/minute")', '5/minute"), timeout=10'), names)

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=names["app"])
        async with names["limiter"], httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            return [await client.get(f"/item/{number}") for number in range(6)]

    responses = asyncio.run(ask())
    assert [response.status_code for response in responses] == [200] * 5 + [429]
    assert responses[0].json() == {"number": 0}
    assert responses[5].json()["violated-policies"] == ["60s"]


@pytest.mark.parametrize(("words", "path"), [('"LIMIT": "100/minute"', "limited"), ("DEFAULT_THROTTLE_RATES", "")])
def test_django(server: Server, words: str, path: str, tmp_path: Path) -> None:
    """A project with these settings, in a process of its own."""
    given = snippet(words, server).replace('"URL"', '"TIMEOUT": 10, "URL"')
    rest = 'SECRET_KEY = "x"\nALLOWED_HOSTS = ["*"]\nROOT_URLCONF = "django_app.urls"\nDATABASES = {}\n'
    if "REST_FRAMEWORK" in given:
        rest += 'REST_FRAMEWORK |= {"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None}\n'
    (tmp_path / "of_readme.py").write_text(given + rest)
    asks = f"""
import django
django.setup()
from django.test import Client
client = Client()
answers = [client.get("/{path}", REMOTE_ADDR="203.0.113.7").status_code for _ in range(101)]
assert answers == [200] * 100 + [429], answers
"""
    environment = {"DJANGO_SETTINGS_MODULE": "of_readme", "PYTHONPATH": f"{tmp_path}:{Path(__file__).parent}"}
    subprocess.run([sys.executable, "-W", "error", "-c", asks], env=os.environ | environment, check=True)


def test_flask(server: Server) -> None:
    names: dict[str, Any] = {}
    exec(snippet("app.wsgi_app", server).replace("rule=", "timeout=10, rule="), {"__name__": "readme"} | names, names)
    names["app"].route("/")(lambda: "hello")
    with names["limiter"]:
        response = names["app"].test_client().get("/")
    assert response.headers["RateLimit"] == '"60s";r=99;t=60'


def test_routes(server: Server, limiter: Limiter, aio: AsyncLimiter) -> None:
    names: dict[str, Any] = {"limiter": limiter, "sliding": sliding, "app": flask.Flask("site")}
    exec(snippet("redis_rl.flask import rate_limit", server).replace('minute")', 'minute"), timeout=10'), names)
    client = names["app"].test_client()
    assert [client.post("/login").status_code for _ in range(6)] == [200] * 5 + [429]
    names = {"limiter": aio, "sliding": sliding, "Request": Request, "Response": Response}
    names["PlainTextResponse"] = PlainTextResponse
    exec(snippet("redis_rl.starlette import rate_limit", server).replace('minute")', 'minute"), timeout=10'), names)

    async def ask() -> list[int]:
        app = Starlette(routes=[Route("/login", names["login"])])
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            return [(await client.get("/login")).status_code for _ in range(6)]

    assert asyncio.run(ask()) == [200] * 5 + [429]


def test_flask_limiter(server: Server) -> None:
    names: dict[str, Any] = {}
    code = snippet("flask_limiter", server).replace("strategy=", 'storage_options={"timeout": "10"}, strategy=')
    exec(code, {"__name__": "readme"} | names, names)
    app, limiter = names["app"], names["limiter"]
    app.route("/")(lambda: "hello")
    assert app.test_client().get("/").status_code == 200
    assert server.run("KEYS", "RL-LIMITS:*")
    limiter.storage.close()


def test_fakeredis() -> None:
    (code,) = (text for text in SNIPPETS if "fakeredis.FakeRedis()" in text)
    exec(code.replace("FakeRedis()", "FakeRedis(), timeout=30"), {})


async def test_all_of_it_works_with_fakeredis(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_700_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    for mode in ("auto", "functions", "script"):
        limiter = Limiter(fakeredis.FakeRedis(), mode=mode, timeout=30)
        rules: list[Any] = [sliding("2/minute"), fixed("2/minute"), fixed("2/h", anchored=True), throttle("2/minute")]
        for number, rule in enumerate(rules):
            key = f"{mode}{number}"
            assert [limiter.hit(key, rule).allowed for _ in range(3)] == [True, True, False]
            assert limiter.peek(key, rule).allowed is False
            assert limiter.reset(key, rule)
            assert limiter.hit(key, rule)
            assert limiter.refund(key, rule)
        with limiter.hold(f"{mode}l", lease(1, 30)):
            assert not limiter.acquire(f"{mode}l", lease(1, 30))
        assert limiter.all([(f"{mode}a", sliding("2/minute")), (f"{mode}b", fixed("2/minute"))])
        # Its time is that of the test.
        assert [limiter.hit(f"{mode}c", sliding("1/minute")).allowed for _ in range(2)] == [True, False]
        now += 60
        assert limiter.hit(f"{mode}c", sliding("1/minute"))
    aio = AsyncLimiter(fakeredis.aioredis.FakeRedis(), timeout=30)
    assert [(await aio.hit("a", sliding("2/minute"))).allowed for _ in range(3)] == [True, True, False]
