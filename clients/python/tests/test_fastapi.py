"""The dependency for FastAPI, over real HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import fastapi
import httpx
import pytest
import redis.asyncio
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response, WebSocket
from fastapi.responses import PlainTextResponse

from redis_rl import AsyncLimiter, Limiter, Rule, lease, sliding
from redis_rl.fastapi import RateLimit, RateLimitExceeded, key_for, problem_response
from redis_rl.starlette import rate_limit
from servers import Server
from test_http import connect, parsed, requests, serving, statuses

PROBLEM = {
    "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
    "title": "Request cannot be satisfied as assigned quota has been exceeded",
    "status": 429,
    "violated-policies": ["3600s"],
}


INNER = ("/v1/inner/{}", "/v2/inner/{}", "/v1/plain/{}", "/v2/inner/plain/{}")
"""A router in a router that is included under two prefixes."""
MOUNTS: tuple[str, ...] = ("/v1/mount/{}/1", "/v1/inner/mount/{}/1", "/v2/mount/{}/1", "/v2/mount/{}/again/1")
"""What is mounted there, which FastAPI leaves out before 0.137."""
if tuple(map(int, fastapi.__version__.split(".")[:2])) < (0, 137):
    MOUNTS = ()


def application(limiter: AsyncLimiter) -> FastAPI:
    """Operations whose paths have values, two of them with the same template in routers of their own."""

    def limited(rate: str, name: str | None = None) -> list[Any]:
        return [Depends(RateLimit(limiter, sliding(rate, name=name), timeout=30))]

    app = FastAPI()

    @app.get("/item/{number}", dependencies=limited("3/hour"))
    async def item(number: int, request: Request) -> int:
        return int(request.state.rate_limit.remaining)

    @app.get("/both", dependencies=limited("3/hour") + limited("2/minute"))
    async def both() -> str:
        return "both"

    for name in ("users", "orders"):
        router = APIRouter(prefix=f"/{name}")
        other = APIRouter()

        if name == "users":

            @router.get("/{number}", dependencies=limited("3/hour"))
            async def user(number: int) -> str:
                return "user"

        else:

            @router.get("/{number}", dependencies=limited("3/hour"))
            async def order(number: int) -> str:
                return "order"

        @other.get(f"/shared/{name}", dependencies=limited("3/hour", name="shared"))
        async def shared() -> str:
            return "shared"

        app.include_router(router)
        app.include_router(other)

    twice = APIRouter()

    @twice.get("/{number}", dependencies=limited("3/hour"))
    async def anywhere(number: int) -> str:
        return "anywhere"

    # Other kinds of routes, in a router that is included.
    below = FastAPI()
    below.get("/{number}", dependencies=limited("3/hour"))(anywhere)
    below.get("/again/{number}", dependencies=limited("3/hour"))(anywhere)
    twice.mount("/mount/{tenant}", below)
    plain = rate_limit(limiter, sliding("3/hour"), timeout=30)(lambda request: PlainTextResponse("plain"))
    twice.add_route("/plain/{number}", plain)
    outer = APIRouter()
    outer.include_router(twice, prefix="/inner")
    for prefix in ("/v1", "/v2"):
        app.include_router(twice, prefix=prefix)
        app.include_router(outer, prefix=prefix)

    inside = FastAPI()

    @inside.get("/item/{number}", dependencies=limited("3/hour"))
    async def mounted(number: int) -> str:
        return "mounted"

    app.mount("/inside", inside)
    return app


async def test_limits_of_path_operations(server: Server) -> None:
    limiter = connect(server)
    with serving(application(limiter), limiter) as url:
        async with requests(url) as client:
            # Whatever the value in the path, and one path after the other: each has three.
            for path in ("/item/{}", "/users/{}", "/orders/{}", "/inside/item/{}", "/v1/{}", "/v2/{}", *INNER, *MOUNTS):
                responses = [await client.get(path.format(number)) for number in range(5)]
                assert [response.status_code for response in responses] == [200, 200, 200, 429, 429], path
            names = ("users", "orders", "users", "orders")
            shared = [await client.get(f"/shared/{name}") for name in names]
            assert [response.status_code for response in shared] == [200, 200, 200, 429]
            both = [await client.get("/both") for _ in range(3)]
            assert [response.status_code for response in both] == [200, 200, 429]
            assert both[-1].json()["detail"]["violated-policies"] == ["60s"]
            assert parsed(both[0].headers["RateLimit-Policy"]) == [
                ("3600s", {"q": 3, "w": 3600}),
                ("60s", {"q": 2, "w": 60}),
            ]
    with server.client() as keys:
        (key,) = keys.keys("rl:GET /item*")
        (inner,) = keys.keys("rl:GET /v2/inner*")
    for found, path, name in ((key, "/item/", "item"), (inner, "/v2/inner/", "anywhere")):
        operation = f"GET {path}%7Bnumber%7D test_fastapi.application.<locals>.{name}"
        assert found == f"rl:{operation} sliding-3/3600s:{{127.0.0.1}}"


def test_an_older_fastapi() -> None:
    """The keys are the same, so that an upgrade changes no quota."""
    older = os.environ.get("OLDER_FASTAPI")
    if older is None:
        pytest.skip("it is not installed")
    words = ["-q", "-p", "no:cacheprovider", __file__, "-k", "limits_of_path and module or websockets and module"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words], env=os.environ | {"PYTHONPATH": older}, capture_output=True, text=True
    )
    assert "2 passed" in ran.stdout, ran.stdout


@pytest.mark.parametrize("handled", [False, True])
async def test_denials(server: Server, handled: bool) -> None:
    limiter = connect(server)
    app = application(limiter)
    if handled:
        app.add_exception_handler(RateLimitExceeded, problem_response)
    with serving(app, limiter) as url:
        async with requests(url) as client:
            first = await client.get("/item/1")
            assert (first.status_code, first.json()) == (200, 2)
            assert parsed(first.headers["RateLimit"]) == [("3600s", {"r": 2, "t": 3600})]
            denied = [await client.get("/item/2") for _ in range(3)][-1]
            assert denied.status_code == 429
            assert denied.json() == (PROBLEM if handled else {"detail": PROBLEM})
            assert denied.headers["Content-Type"] == f"application/{'problem+' if handled else ''}json"
            assert denied.headers["Retry-After"] == "3600"
            assert parsed(denied.headers["RateLimit"])[0][1]["r"] == 0


@pytest.mark.parametrize(("choice", "status"), [("open", 200), ("closed", 503), ("local", 200)])
async def test_a_server_that_hangs(choice: Any, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the client of the README, which has no time-outs: one request waits, for its deadline."""
    # Longer than the test takes on a machine that is busy.
    monkeypatch.setattr("redis_rl._protocol.PAUSE", 60.0)
    errors: list[str] = []
    server = Server("module")
    try:
        limiter = AsyncLimiter(
            redis.asyncio.Redis(port=server.port), hook=lambda event: errors.append(f"{event.error}")
        )
        app = FastAPI()

        @app.get("/", dependencies=[Depends(RateLimit(limiter, sliding("100/minute"), when_unavailable=choice))])
        async def root() -> str:
            return "hello"

        server.process.send_signal(signal.SIGSTOP)
        with serving(app, limiter) as url:
            async with requests(url) as client:
                responses = [await client.get("/") for _ in range(50)]
            assert statuses(responses) == {status: 50}
            assert sum("less than a second ago" in error for error in errors) == 49
            server.process.send_signal(signal.SIGCONT)
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.kill()


async def test_mistakes_are_loud(server: Server, aio: AsyncLimiter) -> None:
    with pytest.raises(TypeError, match="a lease is held by RateLimitMiddleware"):
        RateLimit(aio, lease(2, ttl=10))
    with server.client() as client, Limiter(client) as other, pytest.raises(TypeError, match="AsyncLimiter"):
        RateLimit(other, sliding("5/minute"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a rule is made by"):
        RateLimit(aio, "5/minute")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="when_unavailable"):
        RateLimit(aio, sliding("5/minute"), when_unavailable="away")  # type: ignore[arg-type]


@pytest.mark.parametrize(("wrong", "error"), [({"key": "ip"}, TypeError), ({"timeout": None}, ValueError)])
async def test_wrong_arguments(aio: AsyncLimiter, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{next(iter(wrong))} must be"):
        RateLimit(aio, sliding("5/minute"), **wrong)


async def test_the_dependency_returns_the_answer(server: Server) -> None:
    """And functions for rules and keys may be asynchronous."""
    limiter = connect(server)
    app = FastAPI()

    async def rule(scope: Any) -> Rule | None:
        return None if scope["path"] == "/free" else sliding("3/hour", name="shared")

    async def key(scope: Any) -> str:
        return "me"

    limited = RateLimit(limiter, rule, key=key, timeout=30)

    @app.get("/counted")
    async def counted(result: Any = Depends(limited)) -> dict[str, Any]:  # noqa: B008
        return {"remaining": result.remaining if result else None, "source": result.source if result else None}

    @app.get("/free")
    async def free(result: Any = Depends(limited)) -> bool:  # noqa: B008
        return result is None

    with serving(app, limiter) as url:
        async with requests(url) as client:
            assert (await client.get("/counted")).json() == {"remaining": 2, "source": "server"}
            assert (await client.get("/free")).json() is True
    assert server.run("EXISTS", str(key_for(sliding("3/hour", name="shared"), "me")))


async def test_headers_of_responses_and_errors(aio: AsyncLimiter) -> None:
    """FastAPI adds them to what an operation returns, and to nothing else."""
    app = FastAPI()

    def limited(rate: str, name: str) -> Any:
        return Depends(RateLimit(aio, sliding(rate, name=name), key=lambda scope: "me", timeout=30))

    router = APIRouter(dependencies=[limited("9/hour", "one"), limited("4/hour", "two")])

    @router.get("/value")
    async def value() -> str:
        return "value"

    @router.get("/response")
    async def response() -> Response:
        return PlainTextResponse("response")

    @router.get("/error")
    async def error() -> None:
        raise HTTPException(404)

    app.include_router(router)
    app.get("/free")(value)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://a") as client:
        policies = [("one", {"q": 9, "w": 3600}), ("two", {"q": 4, "w": 3600})]
        for number, path in enumerate(("/value", "/response", "/error")):
            answer = await client.get(path)
            if path == "/value":
                assert parsed(answer.headers["RateLimit-Policy"]) == policies
                assert [each["r"] for _, each in parsed(answer.headers["RateLimit"])] == [8 - number, 3 - number]
            else:
                assert "RateLimit" not in answer.headers
        assert (await client.get("/value")).status_code == 200
        denied = await client.get("/value")
        assert (denied.status_code, denied.headers["Retry-After"]) == (429, "3600")
        assert [name for name, _ in parsed(denied.headers["RateLimit"])] == ["two"]
        assert "RateLimit" not in (await client.get("/free")).headers


async def test_websockets(server: Server, aio: AsyncLimiter) -> None:
    """The handshake is limited, also by a dependency of the router."""
    router = APIRouter(dependencies=[Depends(RateLimit(aio, sliding("2/hour"), timeout=30))])

    @router.websocket("/ws")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(socket.state.rate_limit.source)
        await socket.close()

    app = FastAPI()
    app.include_router(router)

    async def connected(prefix: str = "") -> list[Any]:
        sent: list[Any] = []

        async def receive() -> dict[str, str]:
            return {"type": "websocket.connect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "websocket", "path": f"{prefix}/ws", "headers": [], "query_string": b""}
        scope["client"] = ("203.0.113.7", 1)
        await app(scope, receive, send)
        return sent

    for _ in range(2):
        accepted, text, _ = await connected()
        assert (accepted["type"], text["text"]) == ("websocket.accept", "server")
    for prefix in ("/v1", "/v2"):
        app.include_router(router, prefix=prefix)
        assert [(await connected(prefix))[0]["type"] for _ in range(2)] == ["websocket.accept"] * 2
    for prefix in ("", "/v1", "/v2"):
        (closed,) = await connected(prefix)
        assert (closed["type"], closed["code"]) == ("websocket.close", 1013)


async def test_a_named_limit_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Of four routes, while the server is away: one limit, and one line."""
    limiter = AsyncLimiter(redis.asyncio.Redis(port=1))
    app = FastAPI()
    for number in range(4):
        limited = RateLimit(limiter, sliding("5/hour", name="all"), when_unavailable="local")
        app.get(f"/{number}", dependencies=[Depends(limited)])(lambda: "hello")
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        answers = [await client.get(f"/{number % 4}") for number in range(20)]
    await limiter.aclose()
    assert statuses(answers) == {200: 5, 429: 15}
    assert len([line for line in caplog.records if line.levelname == "WARNING"]) == 1
