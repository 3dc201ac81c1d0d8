"""The WSGI middleware, with Flask over real HTTP and by itself."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import flask
import httpx
import pytest
import redis
import werkzeug.serving

from redis_rl import Limiter, lease, sliding
from redis_rl.asgi import RateLimitMiddleware as ForAsgi
from redis_rl.wsgi import ClientAddress, RateLimitMiddleware, key_for
from servers import START_MS, Server, until
from test_http import parsed


@contextmanager
def serving(app: Any) -> Iterator[httpx.Client]:
    """A WSGI application on a port of its own, a thread a request."""
    server = werkzeug.serving.make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(
            base_url=f"http://127.0.0.1:{server.port}", limits=limits, timeout=60, trust_env=False
        ) as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def crowd(client: httpx.Client, count: int, **headers: str) -> dict[int, int]:
    with ThreadPoolExecutor(count) as pool:
        responses = list(pool.map(lambda _: client.get("/", headers=headers), range(count)))
    return dict(Counter(response.status_code for response in responses))


def flask_app(limiter: Limiter, **options: Any) -> flask.Flask:
    app = flask.Flask(__name__)

    @app.get("/")
    def root() -> dict[str, Any]:
        result = flask.request.environ["redis_rl.rate_limit"]
        return {"remaining": result.remaining if result else None}

    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter, timeout=30, **options)  # type: ignore[method-assign]
    return app


def test_another_limiter_is_closed(server: Server) -> None:
    """The connections of a middleware stay, also where nobody else has its limiter any more."""
    with redis.Redis(port=server.port) as client, server.client() as watcher:
        app = flask_app(Limiter(client), rule=sliding("3/hour"))
        gc.collect()
        app.test_client().get("/")
        before = {each["id"] for each in watcher.client_list()}
        with Limiter(client, timeout=10) as other:
            other.hit("a", sliding("3/hour"))
        assert before <= {each["id"] for each in watcher.client_list()}


def test_flask(server: Server, limiter: Limiter) -> None:
    """A crowd in threads, the headers, and the wait that they name."""
    app = flask_app(limiter, rule=sliding("17/minute", name="api"), deny_cache=False)
    with serving(app) as client:
        assert crowd(client, 40) == {200: 17, 429: 23}
        denied = client.get("/")
        assert denied.json()["violated-policies"] == ["api"]
        assert denied.headers["Content-Type"] == "application/problem+json"
        assert denied.headers["Retry-After"] == "60"
        server.set_clock(START_MS + 60_000)
        allowed = client.get("/")
        assert allowed.json() == {"remaining": 16}
        assert parsed(allowed.headers["RateLimit-Policy"]) == [("api", {"q": 17, "w": 60})]
        assert parsed(allowed.headers["RateLimit"]) == [("api", {"r": 16, "t": 60})]
    with server.client() as keys:
        assert keys.keys() == ["rl:api:{127.0.0.1}"] == [key_for(sliding("1/s", name="api"), "127.0.0.1")]


def test_a_lease_of_a_response(server: Server, limiter: Limiter) -> None:
    """It is held until the body has been sent, and given back where the application or its body fails."""
    server.set_clock(0)
    ended = threading.Event()

    def streaming(environ: Any, start: Any) -> Iterator[bytes]:
        if environ["PATH_INFO"] == "/fails":
            raise RuntimeError("the application")
        start("200 OK", [("Content-Type", "text/plain")])

        def body() -> Iterator[bytes]:
            yield b"begin"
            ended.wait(30)
            if environ["PATH_INFO"] == "/breaks":
                raise RuntimeError("the body")
            yield b"end"

        return body()

    app = RateLimitMiddleware(streaming, limiter=limiter, rule=lease(1, 30, name="busy"), timeout=30)
    for path in ("/", "/breaks"):
        ended.clear()
        with serving(app) as client, client.stream("GET", path) as response:
            assert response.status_code == 200
            assert client.get("/").status_code == 429
            ended.set()
            with suppress(httpx.HTTPError):
                assert b"".join(response.iter_raw()) == (b"begin" if path == "/breaks" else b"beginend")
        assert limiter.peek("rl:busy:{127.0.0.1}", lease(1, 30, holder="x"))
    with serving(app) as client:
        assert client.get("/fails").status_code == 500
    assert limiter.peek("rl:busy:{127.0.0.1}", lease(1, 30, holder="x"))


@pytest.mark.parametrize(
    ("choice", "expected"), [("open", {200: 20}), ("closed", {503: 20}), ("local", {200: 7, 429: 13})]
)
def test_an_unavailable_server(choice: Any, expected: dict[int, int], caplog: pytest.LogCaptureFixture) -> None:
    away = Limiter.from_url("redis://localhost:1")
    with away, serving(flask_app(away, rule=sliding("7/hour"), when_unavailable=choice)) as client:
        assert crowd(client, 20) == expected
    lines = [line for line in caplog.records if line.levelname == "WARNING"]
    assert len(lines) == 1


def test_a_refused_head_request_has_no_body() -> None:
    """Servers send what they get, or warn of it each time."""
    away = Limiter.from_url("redis://localhost:1")
    app = RateLimitMiddleware(nothing, limiter=away, rule=sliding("7/hour"), when_unavailable="closed")
    fields: dict[str, str] = {}
    environ = {"REMOTE_ADDR": "203.0.113.7", "REQUEST_METHOD": "HEAD"}
    body = app(environ, lambda status, headers, *_: fields.update(headers, status=status))  # type: ignore[arg-type]
    assert fields["status"] == "503 Service Unavailable"
    assert int(fields["Content-Length"]) > 0
    assert list(body) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_local_in_a_process_that_was_forked_meanwhile() -> None:
    """While another thread decides in memory. Its lock is not the child's."""
    limiter = Limiter.from_url("redis://localhost:1")
    app = RateLimitMiddleware(nothing, limiter=limiter, rule=sliding("1/hour"), when_unavailable="local")
    assert called(app, REMOTE_ADDR="203.0.113.7") == 204
    with app._guard._fallback._locals[os.getpid()]._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(called(app, REMOTE_ADDR="203.0.113.7"))
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 204


def called(app: Any, **environ: Any) -> int:
    seen: list[str] = []
    body = app({"PATH_INFO": "/", **environ}, lambda status, headers, *_: seen.append(status))
    list(body)
    return int(seen[0].split()[0])


def nothing(environ: Any, start: Any) -> list[bytes]:
    start("204 No Content", [])
    return []


def test_identities(limiter: Limiter) -> None:
    app = RateLimitMiddleware(nothing, limiter=limiter, rule=sliding("1/hour"), timeout=30)
    forwarded = {"HTTP_X_FORWARDED_FOR": "198.51.100.1"}
    assert [called(app, REMOTE_ADDR="203.0.113.7", **forwarded) for _ in range(2)] == [204, 429]
    assert [called(app, REMOTE_ADDR=f"2001:db8::{n}") for n in (1, 2)] == [204, 429]
    assert [called(app), called(app, REMOTE_ADDR="")] == [403, 403]
    behind = RateLimitMiddleware(
        nothing, limiter=limiter, rule=sliding("1/hour"), key=ClientAddress(["10.0.0.0/8"]), prefix="b:", timeout=30
    )
    assert [called(behind, REMOTE_ADDR="10.0.0.1", HTTP_X_FORWARDED_FOR=f"203.0.113.{n}") for n in (7, 8, 7)] == [
        204,
        204,
        429,
    ]


def test_rules_of_a_request(limiter: Limiter) -> None:
    def rule(environ: Any) -> Any:
        return None if environ["PATH_INFO"] == "/free" else sliding("1/hour")

    denied = lambda environ, start: start("418 I'm a teapot", []) or [b"no"]  # noqa: E731
    app = RateLimitMiddleware(
        nothing, limiter=limiter, rules=[(lambda environ: "k", rule)], timeout=30, on_denied=denied
    )
    assert [called(app), called(app), called(app, PATH_INFO="/free")] == [204, 418, 204]


def test_mistakes(limiter: Limiter) -> None:
    with pytest.raises(TypeError, match="Limiter"):
        ForAsgi(nothing, limiter=limiter, rule=sliding("1/s"))  # type: ignore[arg-type]
    for options in (
        {},
        {"rule": "1/s"},
        {"rule": sliding("1/s"), "key": "ip"},
        {"rule": sliding("1/s"), "on_denied": 1},
    ):
        with pytest.raises(TypeError):
            RateLimitMiddleware(nothing, limiter=limiter, **options)


def test_a_hung_server_costs_a_quarter_of_a_second(server: Server) -> None:
    with redis.Redis(port=server.port) as client, Limiter(client) as limiter:
        app = RateLimitMiddleware(nothing, limiter=limiter, rule=sliding("9/s"), when_unavailable="closed")
        until("it is there", lambda: called(app, REMOTE_ADDR="203.0.113.7") == 204)
        server.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert [called(app, REMOTE_ADDR="203.0.113.7") for _ in range(50)] == [503] * 50
            # Without the breaker each would wait.
            assert time.monotonic() - began < 10
        finally:
            server.process.send_signal(signal.SIGCONT)
