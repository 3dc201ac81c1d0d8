"""Applications over real HTTP, with headers read by somebody else's parser."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import flask
import flask_limiter
import http_sfv
import httpx
import pytest
import redis.asyncio
import slowapi
import uvicorn
import werkzeug.serving
from fastapi import FastAPI, Request, Response
from redis.backoff import NoBackoff
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import redis_rl.limits
from redis_rl import AsyncLimiter, Rule, fixed, lease, sliding
from redis_rl.asgi import RateLimitMiddleware, client_address
from servers import START_MS, Server, free_port, until

REQUESTS = 100
LIMIT = 37


def parsed(field: str) -> list[tuple[str, dict[str, Any]]]:
    items = http_sfv.List()  # type: ignore[attr-defined]
    items.parse(field.encode())
    return [(item.value, dict(item.params)) for item in items]


class Closing:
    """An application that closes its client in the end, in the loop where it was used."""

    def __init__(self, app: Any, client: Any) -> None:
        self._app = app
        self._client = client

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})


@contextmanager
def serving(app: Any, client: Any = None) -> Iterator[str]:
    """An ASGI application on a port of its own, run by uvicorn."""
    port = free_port()
    lifespan: Any = "on" if client else "off"
    served = Closing(app, client) if client else app
    config = uvicorn.Config(served, port=port, log_level="error", lifespan=lifespan, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until("uvicorn serves", lambda: server.started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@asynccontextmanager
async def requests(url: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60, trust_env=False) as client:
        yield client


async def burst(client: httpx.AsyncClient, path: str = "/", count: int = REQUESTS) -> list[httpx.Response]:
    return list(await asyncio.gather(*(client.get(path) for _ in range(count))))


def statuses(responses: list[httpx.Response]) -> dict[int, int]:
    return dict(Counter(response.status_code for response in responses))


def fastapi_app(limiter: AsyncLimiter, **options: Any) -> FastAPI:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)

    @app.get("/")
    async def root(request: Request) -> dict[str, Any]:
        result = request.state.rate_limit
        return {"remaining": result.remaining if result else None}

    return app


def connect(server: Server) -> Any:
    """A client for an application, which has an event loop of its own. It does not wait to connect again."""
    retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
    return redis.asyncio.Redis(port=server.port, socket_timeout=30, retry=retry)


async def test_fastapi(server: Server) -> None:
    redis_client = connect(server)
    app = fastapi_app(AsyncLimiter(redis_client), rule=sliding(f"{LIMIT}/minute", name="api"), timeout=30)
    with serving(app, redis_client) as url:
        async with requests(url) as client:
            responses = await burst(client)
            assert statuses(responses) == {200: LIMIT, 429: REQUESTS - LIMIT}
            for response in responses:
                assert parsed(response.headers["RateLimit-Policy"]) == [("api", {"q": LIMIT, "w": 60})]
                ((name, limit),) = parsed(response.headers["RateLimit"])
                assert (name, limit["t"]) == ("api", 60)
                if response.status_code == 200:
                    assert limit["r"] == response.json()["remaining"]
                    assert "Retry-After" not in response.headers
                else:
                    assert limit["r"] == 0
                    assert response.headers["Retry-After"] == "60"
                    assert response.headers["Content-Type"] == "application/problem+json"
                    assert response.json() == {
                        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                        "title": "Request cannot be satisfied as assigned quota has been exceeded",
                        "status": 429,
                        "violated-policies": ["api"],
                    }
            passed = [response.json()["remaining"] for response in responses if response.status_code == 200]
            assert sorted(passed) == list(range(LIMIT))
            # Who waits as long as the header says is let in.
            server.set_clock(START_MS + 60_000)
            assert (await client.get("/")).status_code == 200


def user(scope: Any) -> str | None:
    """The user by a header; without it, unlimited."""
    header = dict(scope["headers"]).get(b"x-user")
    return f"{{{header.decode()}}}" if header else None


def part(name: str) -> Callable[[Any], str | None]:
    def key(scope: Any) -> str | None:
        tag = user(scope)
        return f"{tag}:{name}" if tag else None

    return key


async def test_starlette_with_several_rules(server: Server) -> None:
    async def hello(request: Any) -> Response:
        return PlainTextResponse("hello", headers={"X-Own": "kept"})

    rules: list[tuple[Any, Rule]] = [
        (part("rate"), sliding("5/second", "8/minute", name="rate")),
        (part("day"), fixed("100/day")),
    ]
    redis_client = connect(server)
    middleware = Middleware(RateLimitMiddleware, limiter=AsyncLimiter(redis_client), rules=rules, timeout=30)
    with serving(Starlette(routes=[Route("/", hello)], middleware=[middleware]), redis_client) as url:
        async with requests(url) as client:
            assert statuses(await burst(client, count=20)) == {200: 20}  # No user, no limit.
            client.headers["X-User"] = "7"
            responses = await burst(client, count=20)
            assert statuses(responses) == {200: 5, 429: 15}
            for response in responses:
                assert parsed(response.headers["RateLimit-Policy"]) == [
                    ("rate-1s", {"q": 5, "w": 1}),
                    ("rate-60s", {"q": 8, "w": 60}),
                    ("policy-1", {"q": 100, "w": 86400}),
                ]
                if response.status_code == 429:
                    assert response.json()["violated-policies"] == ["rate-1s"]
                    assert response.headers["Retry-After"] == "1"
                    assert parsed(response.headers["RateLimit"])[0] == ("rate-1s", {"r": 0, "t": 1})
                else:
                    assert response.headers["X-Own"] == "kept"


async def test_concurrent_requests(server: Server) -> None:
    """A lease is held until the response is sent."""
    server.set_clock(0)
    inside = 0
    most = 0
    full = asyncio.Event()
    loop = asyncio.get_running_loop()
    gate = threading.Event()

    async def slow(request: Any) -> Response:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 4:
            loop.call_soon_threadsafe(full.set)
        await asyncio.to_thread(gate.wait, 30)
        inside -= 1
        return PlainTextResponse("done")

    redis_client = connect(server)
    middleware = Middleware(RateLimitMiddleware, limiter=AsyncLimiter(redis_client), rule=lease(4, 30), timeout=30)
    with serving(Starlette(routes=[Route("/", slow)], middleware=[middleware]), redis_client) as url:
        async with requests(url) as client:
            held = [asyncio.create_task(client.get("/")) for _ in range(4)]
            await full.wait()
            denied = await burst(client, count=10)
            assert statuses(denied) == {429: 10}
            policy = [("default", {"q": 4, "qu": "concurrent-requests"})]
            assert parsed(denied[0].headers["RateLimit-Policy"]) == policy
            assert 0 < int(denied[0].headers["Retry-After"]) <= 30
            gate.set()
            assert statuses(list(await asyncio.gather(*held))) == {200: 4}
            assert (await client.get("/")).status_code == 200
            assert most == 4


@pytest.mark.parametrize("choice", ["open", "closed"])
async def test_a_server_that_is_away(choice: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = Server("script")
    try:
        redis_client = connect(server)
        limiter = AsyncLimiter(redis_client)
        app = fastapi_app(limiter, rule=sliding("1000/minute"), when_away=choice)
        with serving(app, redis_client) as url, caplog.at_level(logging.WARNING, "redis_rl.asgi"):
            async with requests(url) as client:
                assert (await client.get("/")).json() == {"remaining": 999}
                server.process.kill()
                server.process.wait()
                away = await burst(client, count=20)
                if choice == "open":
                    assert statuses(away) == {200: 20}
                    assert away[0].json() == {"remaining": None}
                else:
                    assert statuses(away) == {503: 20}
                    problem = {"title": "The rate limiter is not available", "status": 503}
                    assert away[0].json() == problem
                assert not {"ratelimit", "ratelimit-policy", "retry-after"} & set(away[0].headers)
                server.start()
                assert (await client.get("/")).json() == {"remaining": 999}
        # One line for the beginning and one for the end, whatever the number of requests.
        lines = [record.getMessage() for record in caplog.records if record.name == "redis_rl.asgi"]
        assert [line.partition(",")[0].partition(":")[0] for line in lines] == [
            "the rate limiter's server is away",
            "the rate limiter's server is back",
        ]
    finally:
        server.kill()


async def call(app: Callable[..., Awaitable[None]], scope: dict[str, Any]) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def test_a_server_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with redis.asyncio.Redis(port=silent.getsockname()[1], socket_timeout=60) as client:
            app = fastapi_app(AsyncLimiter(client), rule=sliding("1/minute"), timeout=0.05)
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
                assert (await http.get("/")).json() == {"remaining": None}
    assert caplog.messages == ["the rate limiter's server is away, requests are let pass unlimited: timeout"]


async def test_mistakes_are_loud(server: Server, aio: AsyncLimiter) -> None:
    """A limit is not off because a key holds something else."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204})

    middleware = RateLimitMiddleware(app, limiter=aio, rule=sliding("1/minute"))
    server.run("LPUSH", "unknown", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await call(middleware, {"type": "http", "client": None})
    other = RateLimitMiddleware(app, limiter=aio, rule=sliding("1/minute"), key=lambda scope: "k")
    sent = await call(other, {"type": "http"})
    assert (b"ratelimit", b'"default";r=0;t=60') in sent[0]["headers"]
    # What is no request is none of its business.
    assert len(await call(other, {"type": "websocket"})) == 1
    assert client_address({"client": ("10.0.0.7", 1)}) == "10.0.0.7"
    for options in ({}, {"rule": sliding("1/s"), "rules": [(user, sliding("1/s"))]}):
        with pytest.raises(TypeError):
            RateLimitMiddleware(app, limiter=aio, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="when_away"):
        RateLimitMiddleware(app, limiter=aio, rule=sliding("1/s"), when_away="maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["fixed-window", "moving-window"])
async def test_flask_limiter(server: Server, strategy: str) -> None:
    server.set_clock(0)
    app = flask.Flask(__name__)
    limiter = flask_limiter.Limiter(
        lambda: "everybody",
        app=app,
        storage_uri=f"rl+{server.url}",
        strategy=strategy,
        headers_enabled=True,
        default_limits=[f"{LIMIT} per hour"],
    )
    assert isinstance(limiter.storage, redis_rl.limits.RlStorage)

    @app.get("/")
    def hello() -> str:
        return "hello"

    http = werkzeug.serving.make_server("127.0.0.1", 0, app, threaded=True)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        async with requests(f"http://127.0.0.1:{http.server_port}") as client:
            responses = await burst(client)
            assert statuses(responses) == {200: LIMIT, 429: REQUESTS - LIMIT}
            for response in responses:
                assert int(response.headers["X-RateLimit-Limit"]) == LIMIT
                assert 0 < int(response.headers["Retry-After"]) <= 3601
            last = min(int(response.headers["X-RateLimit-Remaining"]) for response in responses)
            assert last == 0
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
        limiter.storage.client.close()


async def test_slowapi(server: Server) -> None:
    server.set_clock(0)
    limiter = slowapi.Limiter(
        key_func=lambda: "everybody",
        storage_uri=f"rl+{server.url}",
        strategy="moving-window",
        headers_enabled=True,
        default_limits=[f"{LIMIT}/hour"],
    )
    app = FastAPI()
    app.state.limiter = limiter

    async def denied(request: Request, error: Exception) -> Response:
        assert isinstance(error, RateLimitExceeded)
        return Response(status_code=429)

    app.add_exception_handler(RateLimitExceeded, denied)
    app.add_middleware(SlowAPIMiddleware)

    @app.get("/")
    async def hello() -> str:
        return "hello"

    with serving(app) as url:
        async with requests(url) as client:
            assert statuses(await burst(client)) == {200: LIMIT, 429: REQUESTS - LIMIT}
    assert isinstance(limiter._storage, redis_rl.limits.RlStorage)
    limiter._storage.client.close()
