"""The snippets of the README, run as they stand."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from servers import Server

SNIPPETS = re.findall(
    r"^```python\n(.*?)^```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL | re.MULTILINE
)


def snippet(words: str, server: Server) -> str:
    """The one snippet that contains the words, on this server."""
    found: str
    (found,) = (text for text in SNIPPETS if words in text)
    if server.mode != "module":
        # As the README says.
        found = found.replace('sliding("200000/minute"', 'fixed("200000/minute", anchored=True')
        found = f"from redis_rl import fixed\n{found}"
    return found.replace("Redis(", f"Redis(port={server.port}, ").replace("localhost:6379", f"localhost:{server.port}")


def test_no_snippet_is_forgotten() -> None:
    assert len(SNIPPETS) == 7


def test_the_first_minute(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(snippet("for _ in range(6)", server), names)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [*(f"allowed, {left} left" for left in (4, 3, 2, 1, 0)), "denied, try again in 60 s"]
    with names["limiter"]._transport._client:
        exec(snippet("limiter.all(", server), names)
        assert names["result"].allowed
        exec(snippet("limiter.hold(", server), names)
        assert not names["held"].lost
        names["call_the_model"] = lambda max_tokens: SimpleNamespace(usage=SimpleNamespace(total_tokens=1234))
        exec(snippet("budget.reserve(4000)", server), names)
        assert names["budget"].peek().used == 1234


def test_asyncio(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    exec(snippet("asyncio.run(main())", server), {"__name__": "readme"})
    assert "Result(allowed=True, limit=5, used=1" in capsys.readouterr().out


def test_fastapi(server: Server) -> None:
    names: dict[str, Any] = {}
    exec(snippet("FastAPI()", server), names)

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=names["app"])
        async with names["client"], httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            return await client.get("/")

    response = asyncio.run(ask())
    assert response.headers["RateLimit"] == '"api";r=99;t=60'


def test_flask(server: Server) -> None:
    names: dict[str, Any] = {}
    exec(snippet("Flask(__name__)", server), {"__name__": "readme"} | names, names)
    app, limiter = names["app"], names["limiter"]
    with limiter.storage.client:
        app.route("/")(lambda: "hello")
        assert app.test_client().get("/").status_code == 200
        assert server.run("KEYS", "RL-LIMITS:*")
