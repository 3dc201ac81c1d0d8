"""Applications over real HTTP, with headers read by somebody else's parser."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import flask
import flask_limiter
import http_sfv
import httpx
import pytest
import redis
import redis.asyncio
import slowapi
import uvicorn
import werkzeug.serving
from fastapi import FastAPI, Request, Response
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIMiddleware
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import redis_rl.limits
from redis_rl import AsyncLimiter, Limiter, Refused, Rule, Unavailable, fixed, lease, sliding
from redis_rl.asgi import ClientAddress, RateLimitMiddleware, key_for
from servers import START_MS, Server, free_port, until

REQUESTS = 100
LIMIT = 37


def parsed(field: str) -> list[tuple[str, dict[str, Any]]]:
    items = http_sfv.List()  # type: ignore[attr-defined]
    items.parse(field.encode())
    return [(item.value, dict(item.params)) for item in items]


class Closing:
    """An application that closes its limiter and client in the end, in the loop where they were used."""

    def __init__(self, app: Any, limiter: AsyncLimiter, client: Any) -> None:
        self._app = app
        self._limiter = limiter
        self._client = client

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._limiter.aclose()
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})


@contextmanager
def serving(app: Any, limiter: AsyncLimiter | None = None) -> Iterator[str]:
    """An ASGI application on a port of its own, run by uvicorn."""
    port = free_port()
    lifespan: Any = "on" if limiter else "off"
    served = Closing(app, limiter, limiter._core._client.client) if limiter else app
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


def connect(server: Server) -> AsyncLimiter:
    """A limiter for an application, which has an event loop of its own."""
    return AsyncLimiter(redis.asyncio.Redis(port=server.port), timeout=30)


async def test_fastapi(server: Server) -> None:
    limiter = connect(server)
    # The test moves the server's clock; a remembered denial ends by this process' clock.
    app = fastapi_app(limiter, rule=sliding(f"{LIMIT}/minute", name="api"), timeout=30, deny_cache=False)
    with serving(app, limiter) as url:
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
    return header.decode() if header else None


async def test_starlette_with_several_rules(server: Server) -> None:
    async def hello(request: Any) -> Response:
        return PlainTextResponse("hello", headers={"X-Own": "kept"})

    rules: list[tuple[Any, Rule]] = [
        (user, sliding("5/second", "8/minute", name="rate")),
        (user, fixed("100/day")),
    ]
    limiter = connect(server)
    middleware = Middleware(RateLimitMiddleware, limiter=limiter, rules=rules, without_identity="allow", timeout=30)
    with serving(Starlette(routes=[Route("/", hello)], middleware=[middleware]), limiter) as url:
        async with requests(url) as client:
            assert statuses(await burst(client, count=20)) == {200: 20}  # No user, no limit.
            client.headers["X-User"] = "7"
            responses = await burst(client, count=20)
            assert statuses(responses) == {200: 5, 429: 15}
            for response in responses:
                assert parsed(response.headers["RateLimit-Policy"]) == [
                    ("rate-1s", {"q": 5, "w": 1}),
                    ("rate-60s", {"q": 8, "w": 60}),
                    ("86400s", {"q": 100, "w": 86400}),
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

    limiter = connect(server)
    middleware = Middleware(RateLimitMiddleware, limiter=limiter, rule=lease(4, 30), timeout=30)
    with serving(Starlette(routes=[Route("/", slow)], middleware=[middleware]), limiter) as url:
        async with requests(url) as client:
            held = [asyncio.create_task(client.get("/")) for _ in range(4)]
            await full.wait()
            denied = await burst(client, count=10)
            assert statuses(denied) == {429: 10}
            policy = [("30s", {"q": 4, "qu": "concurrent-requests"})]
            assert parsed(denied[0].headers["RateLimit-Policy"]) == policy
            assert 0 < int(denied[0].headers["Retry-After"]) <= 30
            gate.set()
            assert statuses(list(await asyncio.gather(*held))) == {200: 4}
            # The client has the response before the places are given back.
            await asyncio.to_thread(until, "the places are free", lambda: not server.run("DBSIZE"))
            assert (await client.get("/")).status_code == 200
            assert most == 4


@pytest.mark.parametrize("choice", ["open", "closed", "local"])
async def test_a_server_that_is_unavailable(choice: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = Server("script")
    try:
        limiter = connect(server)
        app = fastapi_app(limiter, rule=sliding("20/minute"), when_unavailable=choice, processes=2, timeout=10)
        with serving(app, limiter) as url, caplog.at_level(logging.INFO, "redis_rl"):
            async with requests(url) as client:
                assert (await client.get("/")).json() == {"remaining": 19}
                server.process.kill()
                server.process.wait()
                responses = await burst(client, count=25)
                first = responses[0]
                if choice == "open":
                    assert statuses(responses) == {200: 25}
                    assert first.json() == {"remaining": 20}
                elif choice == "closed":
                    assert statuses(responses) == {503: 25}
                    assert first.json() == {"title": "The rate limiter is not available", "status": 503}
                if choice == "local":
                    # Half of the limit, as there are two processes.
                    assert statuses(responses) == {200: 10, 429: 15}
                    assert parsed(first.headers["RateLimit-Policy"]) == [("60s", {"q": 20, "w": 60})]
                else:
                    assert not {"ratelimit", "ratelimit-policy", "retry-after"} & set(first.headers)
                server.start()

                async def back() -> bool:
                    return bool((await client.get("/")).json() == {"remaining": 19})

                deadline = time.monotonic() + 30
                while not await back():
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
        # One line for the beginning and one for the end, whatever the number of requests.
        lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert [line.partition(",")[0] for line in lines] == [
            "limiter 'redis-rl': the server is unavailable",
            "limiter 'redis-rl': the server is available again",
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


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def from_address(address: str | None, *forwarded: str, path: str = "/") -> dict[str, Any]:
    headers = [(b"x-forwarded-for", each.encode()) for each in forwarded]
    return {"type": "http", "path": path, "client": (address, 1) if address else None, "headers": headers}


async def status(app: Any, scope: dict[str, Any]) -> int:
    return int((await call(app, scope))[0]["status"])


async def test_two_limits_at_one_address(server: Server, aio: AsyncLimiter) -> None:
    """Default options: neither counts or removes the requests of the other."""
    login = RateLimitMiddleware(nothing, limiter=aio, rule=sliding("3/hour"), timeout=10, deny_cache=False)
    api = RateLimitMiddleware(nothing, limiter=aio, rule=sliding("100/second"), timeout=10, deny_cache=False)
    seen = []
    for _ in range(4):
        seen += [await status(login, from_address("203.0.113.7")), await status(api, from_address("203.0.113.7"))]
        server.set_clock(START_MS + 2000 * len(seen))
    assert seen == [204, 204] * 3 + [429, 204]
    assert [await status(api, from_address("203.0.113.7")) for _ in range(101)] == [204] * 100 + [429]
    with server.client() as client:
        expected = {"rl:sliding-3/3600s:{203.0.113.7}", "rl:sliding-100/1s:{203.0.113.7}"}
        assert set(client.keys()) == expected


async def test_identities(server: Server, aio: AsyncLimiter) -> None:
    def limited(**options: Any) -> Any:
        return RateLimitMiddleware(nothing, limiter=aio, rule=sliding("1/minute"), timeout=10, **options)

    app = limited(prefix="a:")
    # A network of IPv6 is one client.
    assert await status(app, from_address("2001:db8:1:2::1")) == 204
    assert await status(app, from_address("2001:db8:1:2:ffff::9")) == 429
    assert await status(app, from_address("2001:db8:1:3::1")) == 204
    # Nobody's word is taken for an address.
    assert await status(app, from_address("10.0.0.1", "203.0.113.7")) == 204
    assert await status(app, from_address("10.0.0.1", "203.0.113.8")) == 429
    # Behind proxies that are trusted it is.
    behind = limited(prefix="b:", key=ClientAddress(trusted_proxies=["10.0.0.0/8"]))
    assert await status(behind, from_address("10.0.0.1", "6.6.6.6, 203.0.113.7", "10.0.0.2")) == 204
    assert await status(behind, from_address("10.0.0.1", "7.7.7.7, 203.0.113.7", "10.0.0.2")) == 429
    assert await status(behind, from_address("10.0.0.1", "203.0.113.8")) == 204
    # Who has no identity shares none with others.
    assert [await status(app, from_address(None)) for _ in range(2)] == [403, 403]
    assert [await status(limited(without_identity="allow"), from_address(None)) for _ in range(3)] == [204] * 3
    assert await status(behind, from_address("10.0.0.1", "unknown")) == 403


async def test_a_response_that_is_sent_again(server: Server, aio: AsyncLimiter) -> None:
    """An application may keep the messages of an answer that is always the same."""
    start: dict[str, Any] = {"type": "http.response.start", "status": 204, "headers": [(b"x-own", b"1")]}

    async def same(scope: Any, receive: Any, send: Any) -> None:
        await send(start)
        await send({"type": "http.response.body"})

    app = RateLimitMiddleware(same, limiter=aio, rule=sliding("9/hour"), timeout=10)
    for left in (8, 7):
        sent = await call(app, from_address("203.0.113.7"))
        assert [value.split(b";")[1] for name, value in sent[0]["headers"] if name == b"ratelimit"] == [b"r=%d" % left]
    assert len(start["headers"]) == 1


async def test_a_key_that_is_no_text(server: Server, aio: AsyncLimiter) -> None:
    """JSON may have half a character, which UTF-8 has not."""
    key = lambda scope: json.loads(scope["body"])  # noqa: E731
    app = RateLimitMiddleware(nothing, limiter=aio, rule=sliding("1/hour"), key=key, timeout=10)
    for body in (rb'"\ud800"', rb'"a\udfffb"'):
        assert [await status(app, {"type": "http", "body": body}) for _ in range(2)] == [204, 429]


async def test_limits_that_depend_on_the_request(server: Server, aio: AsyncLimiter) -> None:
    def rule(scope: Any) -> Rule | None:
        path = scope["path"]
        if path == "/health":
            return None
        return sliding("10/minute", cost=5 if path == "/export" else 1, name="api")

    async def denied(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 420, "headers": []})
        await send({"type": "http.response.body", "body": scope["state"]["rate_limit"].violated[0].encode()})

    app = RateLimitMiddleware(nothing, limiter=aio, rule=rule, key=lambda scope: "k", on_denied=denied, timeout=10)
    paths = ["/health", "/export", "/", "/export", "/health", "/"]
    seen = [await status(app, from_address("203.0.113.7", path=path)) for path in paths]
    assert seen == [204, 204, 204, 420, 204, 204]
    sent = await call(app, from_address("203.0.113.7", path="/export"))
    assert sent[1]["body"] == b"api"
    assert b"retry-after" in dict(sent[0]["headers"])


async def test_a_flood_is_denied_from_memory(server: Server, aio: AsyncLimiter) -> None:
    app = RateLimitMiddleware(nothing, limiter=aio, rule=sliding("1/hour"), key=lambda scope: "k", timeout=10)
    server.run("CONFIG", "RESETSTAT")
    began = time.monotonic()
    seen = [await status(app, from_address("203.0.113.7")) for _ in range(500)]
    took = time.monotonic() - began
    assert seen == [204] + [429] * 499
    # A call a second, and the first denial, and what was left of the first second.
    assert aio.statistics.denied - aio.statistics.denied_from_memory <= took + 2
    assert aio.statistics.denied == 499


@pytest.mark.parametrize("places", [5, 1])
async def test_a_flood_beside_a_lease(
    server: Server, aio: AsyncLimiter, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    """What a window denies, for every holder, and also where no place is free for longer."""
    monkeypatch.setattr("redis_rl._memory.LONGEST", 60.0)
    place = lease(places, 7200, name="place")
    rules: list[tuple[Any, Rule]] = [(lambda scope: "k", sliding("1/hour", name="rate")), (lambda scope: "k", place)]
    app = RateLimitMiddleware(nothing, limiter=aio, rules=rules, timeout=10)
    assert await status(app, from_address("203.0.113.7")) == 204
    key = key_for(place, "k")
    assert await aio.acquire(key, place, holder="other")
    assert [await status(app, from_address("203.0.113.7")) for _ in range(20)] == [429] * 20
    assert (aio.statistics.denied, aio.statistics.denied_from_memory) == (20, 19)
    await aio.reset(key_for(sliding("1/hour", name="rate"), "k"))
    # A lease alone is asked for each time.
    assert [await status(app, from_address("203.0.113.7")) for _ in range(3)] == (
        [429] * 3 if places == 1 else [204, 429, 429]
    )
    assert aio.statistics.denied_from_memory == (19 if places == 1 else 20)


def test_a_loop_for_each_request(server: Server) -> None:
    """As test clients have. The connections of a loop end with it, and need no garbage collector."""
    limiter = connect(server)
    app = RateLimitMiddleware(nothing, limiter=limiter, rule=sliding("3/minute"), timeout=30, deny_cache=False)

    def connections() -> int:
        return str(server.run("CLIENT", "LIST")).count("name")

    before = connections()
    gc.disable()
    try:
        assert [asyncio.run(status(app, from_address("10.0.0.7"))) for _ in range(4)] == [204, 204, 204, 429]
        until("the connections are closed", lambda: connections() <= before, 10)
    finally:
        gc.enable()


def test_a_fork(server: Server) -> None:
    """A limiter that was made and used before: each process has connections of its own."""
    with redis.Redis(port=server.port) as client, Limiter(client, timeout=30) as limiter:
        limiter.hit("a", sliding("100/minute"))
        child = os.fork()
        if child == 0:
            try:
                limiter.hit("a", sliding("100/minute"))
                os._exit(0)
            finally:
                os._exit(1)
        limiter.hit("a", sliding("100/minute"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert limiter.hit("a", sliding("100/minute")).used == 4


async def test_mistakes_are_loud(server: Server, aio: AsyncLimiter) -> None:
    """A limit is not off because a key holds something else."""
    middleware = RateLimitMiddleware(nothing, limiter=aio, rule=sliding("1/minute", name="a"), timeout=10)
    server.run("LPUSH", "rl:a:{10.0.0.7}", "x")
    with pytest.raises(Refused, match="WRONGTYPE"):
        await call(middleware, from_address("10.0.0.7"))
    other = RateLimitMiddleware(nothing, limiter=aio, rule=sliding("1/minute"), key=lambda scope: "k", timeout=10)
    sent = await call(other, {"type": "http"})
    assert (b"ratelimit", b'"60s";r=0;t=60') in sent[0]["headers"]
    # Other scopes than requests are passed on.
    assert len(await call(other, {"type": "websocket"})) == 2
    rule = sliding("1/s")
    impossible: list[dict[str, Any]] = [{}, {"rule": rule, "rules": [(user, rule)]}, {"rule": "1/s"}]
    for options in (*impossible, {"rules": [(user, "1/s")]}):
        with pytest.raises(TypeError):
            RateLimitMiddleware(nothing, limiter=aio, **options)
    with pytest.raises(TypeError, match="AsyncLimiter"):
        RateLimitMiddleware(nothing, limiter=redis.asyncio.Redis(), rule=rule)  # type: ignore[arg-type]
    mistakes: list[dict[str, Any]] = [{"when_unavailable": "maybe"}, {"without_identity": "maybe"}]
    mistakes += [{"timeout": wrong} for wrong in (None, 0, -1, "0.25", True)] + [{"processes": 0}]
    for wrong in mistakes:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RateLimitMiddleware(nothing, limiter=aio, rule=rule, **wrong)
    mistyped: list[tuple[dict[str, Any], str]] = [
        ({"rule": rule, "prefix": None}, "prefix must be"),
        ({"rule": rule, "prefix": b""}, "prefix must be"),
        ({"rule": rule, "on_denied": "x"}, "on_denied must be a function"),
        ({"rule": rule, "key": "ip"}, "key must be a function"),
        ({"rules": [rule]}, "rules must be pairs"),
        ({"rule": lease(1, 10, holder="me")}, "has no holder"),
    ]
    for options, message in mistyped:
        with pytest.raises(TypeError, match=message):
            RateLimitMiddleware(nothing, limiter=aio, **options)
    # What a function makes of a request is looked at, too.
    held = RateLimitMiddleware(nothing, limiter=aio, rule=lambda scope: lease(1, 10, holder="me"), timeout=10)
    with pytest.raises(TypeError, match="has no holder"):
        await call(held, from_address("10.0.0.8"))
    strange: Any = lambda scope: 5  # noqa: E731
    with pytest.raises(TypeError, match="a key must be"):
        await call(RateLimitMiddleware(nothing, limiter=aio, rule=rule, key=strange), from_address("10.0.0.8"))


async def test_denials_in_memory_are_reset(server: Server, aio: AsyncLimiter) -> None:
    """By the limiter of the application, with the key of the middleware, as text and as bytes."""
    rule = sliding("1/hour", name="api")

    async def me(scope: Any) -> str:
        return "me"

    app = RateLimitMiddleware(nothing, limiter=aio, rule=rule, key=me, timeout=10)
    key = key_for(rule, "me")
    assert isinstance(key, str)
    for reset in (key, key.encode()):
        assert [await status(app, from_address(None)) for _ in range(2)] == [204, 429]
        assert aio.statistics.denied_from_memory == 0
        await aio.reset(reset, rule)
    # An empty identity is a missing one.
    nobody = RateLimitMiddleware(nothing, limiter=aio, rule=rule, key=lambda scope: "", timeout=10)
    assert await status(nobody, from_address("10.0.0.7")) == 403


async def test_behind_a_unix_socket(server: Server, aio: AsyncLimiter) -> None:
    key = ClientAddress(trusted_proxies=["unix", "10.0.0.0/8"])
    app = RateLimitMiddleware(nothing, limiter=aio, rule=sliding("1/hour"), key=key, timeout=10)
    assert await status(app, from_address(None, "203.0.113.7")) == 204
    assert await status(app, from_address(None, "6.6.6.6, 203.0.113.7", "10.0.0.1")) == 429
    assert await status(app, from_address(None)) == 403
    assert (
        await status(RateLimitMiddleware(nothing, limiter=aio, rule=sliding("1/hour")), from_address(None, "1.1.1.1"))
        == 403
    )


async def test_a_peer_that_is_no_address() -> None:
    """Servers call a unix socket by names of their own, which all of its clients would share."""
    for name in ("localhost", "/run/app.sock", "unix:"):
        for peer in (from_address(name), {"REMOTE_ADDR": name}):
            assert ClientAddress()(peer) is None
            assert ClientAddress(["unix"])(peer) is None
        assert ClientAddress(["unix"])(from_address(name, "203.0.113.7")) == "203.0.113.7"
        assert ClientAddress()(from_address(name, "203.0.113.7")) is None
        environ = {"REMOTE_ADDR": name, "HTTP_X_FORWARDED_FOR": "203.0.113.7"}
        assert ClientAddress(["unix"])(environ) == "203.0.113.7"
    # The test client of Starlette and FastAPI.
    assert ClientAddress(["unix"])(from_address("testclient")) == "testclient"


async def test_a_cost_of_0_checks_and_counts_nothing(server: Server, aio: AsyncLimiter) -> None:
    rule = sliding("1/hour")
    free = RateLimitMiddleware(nothing, limiter=aio, rule=lambda _: rule.with_cost(0), timeout=10)
    counted = RateLimitMiddleware(nothing, limiter=aio, rule=rule, timeout=10)
    here = from_address("10.0.0.7")
    assert [await status(free, here) for _ in range(3)] == [204] * 3
    assert [await status(counted, here) for _ in range(2)] == [204, 429]
    assert await status(free, here) == 429


def test_a_servers_unix_socket(tmp_path: Any) -> None:
    server = Server("module", frozen=False, arguments=["--unixsocket", str(tmp_path / "s")])
    try:
        with redis.Redis(unix_socket_path=str(tmp_path / "s")) as client, Limiter(client, timeout=10) as limiter:
            assert limiter.hit("a", sliding("1/hour"))

        async def ask() -> bool:
            async with (
                redis.asyncio.Redis(unix_socket_path=str(tmp_path / "s")) as client,
                AsyncLimiter(client, timeout=10) as aio,
            ):
                return bool(await aio.hit("a", sliding("1/hour")))

        assert not asyncio.run(ask())
    finally:
        server.kill()


async def test_tls(server: Server, tmp_path: Path) -> None:
    if server.mode != "module" or not server.run("CONFIG", "GET", "tls-port") or not shutil.which("openssl"):
        pytest.skip("once, with the module, on a server that was built with TLS, and with the program openssl")
    key, certificate, port = tmp_path / "key", tmp_path / "certificate", free_port()
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*words, "-keyout", key, "-out", certificate], check=True, stderr=subprocess.DEVNULL)  # noqa: ASYNC221
    server.run("CONFIG", "SET", "tls-key-file", str(key), "tls-cert-file", str(certificate), "tls-auth-clients", "no")
    server.run("CONFIG", "SET", "tls-port", port)
    url = f"rediss://127.0.0.1:{port}?ssl_cert_reqs=none&ssl_check_hostname=false"
    try:
        # By default the certificate is to be known.
        with (
            Limiter.from_url(url.partition("?")[0], timeout=10) as limiter,
            pytest.raises(Unavailable, match="certificate"),
        ):
            limiter.hit("a", sliding("3/hour"))
        async with AsyncLimiter.from_url(url.partition("?")[0], timeout=10) as aio:
            with pytest.raises(Unavailable, match="certificate"):
                await aio.hit("a", sliding("3/hour"))
        async with AsyncLimiter.from_url(url, timeout=10) as aio:
            with Limiter.from_url(url, timeout=10) as limiter:
                assert [limiter.hit("a", sliding("3/hour")).used, (await aio.hit("a", sliding("3/hour"))).used] == [
                    1,
                    2,
                ]
                idle = AsyncLimiter.from_url(url, timeout=10)
                assert await idle.hit("b", sliding("3/hour"))
                server.process.send_signal(signal.SIGSTOP)
                limiter._timeout = aio._timeout = idle._timeout = 0.5
                with pytest.raises(Unavailable):
                    limiter.hit("a", sliding("3/hour"))
                with pytest.raises(Unavailable):
                    await aio.hit("a", sliding("3/hour"))
                # Of a connection that is idle TLS waits half a minute for the server's farewell.
                began = time.monotonic()
                await idle.aclose()
                assert time.monotonic() - began < 10
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.run("CONFIG", "SET", "tls-port", 0)


async def test_a_lease_is_kept_for_a_long_response(server: Server, aio: AsyncLimiter) -> None:
    server.set_clock(0)
    going, more = asyncio.Event(), asyncio.Event()

    async def long(scope: Any, receive: Any, send: Any) -> None:
        going.set()
        await more.wait()
        await nothing(scope, receive, send)

    app = RateLimitMiddleware(long, limiter=aio, rule=lease(1, 3), key=lambda scope: "k", timeout=10)
    first = asyncio.create_task(status(app, from_address("203.0.113.7")))
    await going.wait()
    # Longer than the lease.
    await asyncio.sleep(4)
    assert await status(app, from_address("203.0.113.7")) == 429
    more.set()
    assert await first == 204
    assert await status(app, from_address("203.0.113.7")) == 204


async def test_a_lease_ends_with_the_response(server: Server, aio: AsyncLimiter) -> None:
    """And not with what the application does in the background."""
    server.set_clock(0)
    working, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        working.set()
        await done.wait()

    app = RateLimitMiddleware(
        PlainTextResponse("hello", background=BackgroundTask(work)),
        limiter=aio,
        rule=lease(1, 60),
        key=lambda scope: "k",
        timeout=10,
    )
    first = asyncio.create_task(status(app, from_address("203.0.113.7")))
    await working.wait()
    assert server.run("ZCARD", "rl:lease-1/60s:{k}") == 0
    done.set()
    assert await first == 200


@pytest.mark.parametrize("strategy", ["fixed-window", "moving-window"])
async def test_flask_limiter(server: Server, strategy: str) -> None:
    server.set_clock(0)
    app = flask.Flask(__name__)
    limiter = flask_limiter.Limiter(
        lambda: "everybody",
        app=app,
        storage_uri=f"rl+{server.url}",
        storage_options={"timeout": "30"},
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
        limiter.storage.close()


async def test_slowapi(server: Server) -> None:
    server.set_clock(0)
    limiter = slowapi.Limiter(
        key_func=lambda: "everybody",
        storage_uri=f"rl+{server.url}",
        storage_options={"timeout": "30"},
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
    limiter._storage.close()
