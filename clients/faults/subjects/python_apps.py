"""The subjects of the adapters for Python: ``asgi``, ``fastapi``, ``wsgi`` (with Flask), ``django``, ``drf``,
``slowapi``, ``flask`` (Flask-Limiter), and ``gunicorn-sync``, ``gunicorn-gthread``, ``gunicorn-gevent`` (workers that
are forked from a limiter in use), ``drf-sync``, ``drf-gthread`` (the same with the REST framework of Django).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import flask
import flask_limiter
import redis_rl.limits  # noqa: F401 - registers rl+redis://
import slowapi
import uvicorn
import werkzeug.serving
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from python import COMMANDS, client_of, main_threads, overhear, rule_of
from redis_rl import AsyncLimiter, Limiter
from redis_rl.asgi import RateLimitMiddleware
from redis_rl.fastapi import RateLimit, RateLimitExceeded, problem_response
from redis_rl.wsgi import RateLimitMiddleware as RateLimitWsgi

from harness.servers import free_port

WHICH = sys.argv[1]
OWN = ["serve", "own", "open", "closed", "local", "several", "processes", "cost", "cluster", "identity", "local-memory"]
CAN = {
    "asgi": [*OWN, "lease"],
    "fastapi": OWN,
    "wsgi": [*OWN, "lease"],
    "django": [name for name in OWN if name != "cluster"],
    "drf": ["serve", "open", "closed", "local", "several", "processes", "local-memory"],
    # slowapi's swallow_errors ends in an AttributeError of its own, so it has no "open".
    "slowapi": ["serve", "closed", "local", "several"],
    **{f"gunicorn-{kind}": ["serve", "gunicorn"] for kind in ("sync", "gthread", "gevent")},
    **{f"drf-{kind}": ["serve", "gunicorn"] for kind in ("sync", "gthread")},
    "flask": ["serve", "open", "closed", "local", "several"],
}


def identity(scope: Any) -> str | None:
    return next((value.decode() for name, value in scope["headers"] if name == b"x-key"), None)


def weighed(rule: Any) -> Any:
    """The rule, with the cost that a request says."""

    def of(scope: Any) -> Any:
        cost = next((int(value) for name, value in scope["headers"] if name == b"x-cost"), None)
        return rule if cost is None else rule.with_cost(cost)

    return of if rule.KIND != "ACQUIRE" else rule


def given(c: dict[str, Any]) -> dict[str, Any]:
    """The options that are not the adapter's defaults."""
    names = {"policy": "when_unavailable", "timeout": "timeout", "processes": "processes"}
    return {name: c[word] for word, name in names.items() if c.get(word) is not None}


async def endpoint(request: Request) -> Response:
    return PlainTextResponse("in", int(request.headers.get("x-status", 200)))


async def slow(request: Request) -> Response:
    async def body() -> Any:
        for _ in range(20):
            yield b"slow "
            await asyncio.sleep(0.1)

    return StreamingResponse(body(), int(request.headers.get("x-status", 200)))


def own(c: dict[str, Any]) -> FastAPI:
    """The package's own middleware and dependency."""
    limiter = AsyncLimiter(client_of(c["connect"], 1, asynchronous=True), name="app")
    options = {"key": identity, **given(c)}
    rule = weighed(rule_of(c["rule"]))
    app = FastAPI()
    dependencies = []
    if WHICH == "asgi":
        app.add_middleware(RateLimitMiddleware, limiter=limiter, rule=rule, **options)
    else:
        app.add_exception_handler(RateLimitExceeded, problem_response)
        dependencies.append(Depends(RateLimit(limiter, rule, **options)))
    app.get("/", dependencies=dependencies)(endpoint)
    app.get("/slow", dependencies=dependencies)(slow)
    return app


def storage(c: dict[str, Any]) -> dict[str, Any]:
    """What Flask-Limiter and slowapi both take."""
    rate = "; ".join(c["rule"]["rates"])
    return {
        "storage_uri": f"rl+{c['connect']['url']}",
        "strategy": "moving-window",
        "swallow_errors": c["policy"] == "open",
        "in_memory_fallback": [rate] if c["policy"] == "local" else [],
        "in_memory_fallback_enabled": c["policy"] == "local",
        "default_limits": [rate],
    }


def with_slowapi(c: dict[str, Any]) -> FastAPI:
    limiter = slowapi.Limiter(key_func=lambda request: request.headers.get("x-key", ""), **storage(c))
    app = FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(slowapi.errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)
    app.get("/")(limiter.limit("; ".join(c["rule"]["rates"]))(endpoint))
    return app


def with_flask(c: dict[str, Any]) -> flask.Flask:
    app = flask.Flask("app")
    flask_limiter.Limiter(lambda: flask.request.headers.get("x-key", ""), app=app, **storage(c))
    app.get("/")(lambda: "in")
    return app


def with_wsgi(c: dict[str, Any]) -> flask.Flask:
    """Flask with the package's own middleware."""
    limiter = Limiter(client_of(c["connect"], 1, asynchronous=False), name="app")
    options = {"key": lambda environ: environ.get("HTTP_X_KEY"), **given(c)}
    rule = rule_of(c["rule"])

    def weighed_rule(environ: Any) -> Any:
        cost = environ.get("HTTP_X_COST")
        return rule if cost is None else rule.with_cost(int(cost))

    app = flask.Flask("app")
    app.wsgi_app = RateLimitWsgi(
        app.wsgi_app, limiter=limiter, rule=weighed_rule if rule.KIND != "ACQUIRE" else rule, **options
    )

    @app.get("/")
    def root() -> Any:
        return "in", int(flask.request.headers.get("x-status", 200))

    @app.get("/slow")
    def slow_root() -> Any:
        def body() -> Any:
            for _ in range(20):
                yield b"slow "
                time.sleep(0.1)

        return flask.Response(body(), int(flask.request.headers.get("x-status", 200)))

    return app


def with_django(c: dict[str, Any]) -> Any:
    os.environ |= {"FAULTS_APP": json.dumps(c), "FAULTS_DJANGO": WHICH}
    import python_django

    return python_django.app


async def with_gunicorn(c: dict[str, Any]) -> dict[str, Any]:
    port = free_port()
    words = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "4", "--bind", f"127.0.0.1:{port}"]
    words += ["--worker-class", WHICH.rpartition("-")[2], "--threads", "8", "--backlog", "4096"]
    env = {**os.environ, "FAULTS_APP": json.dumps(c), "FAULTS_DJANGO": "drf"}
    module = "python_django" if WHICH.startswith("drf-") else "python_wsgi"
    subprocess.Popen([*words, f"{module}:app"], cwd=Path(__file__).parent, env=env)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return {"outcome": "done", "port": port}
        time.sleep(0.05)
    return {"outcome": "bug", "error": "gunicorn does not listen"}


async def serve(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    refuses = 503
    if WHICH.startswith(("gunicorn-", "drf-")):
        return await with_gunicorn(c)
    for_wsgi = {"flask": with_flask, "wsgi": with_wsgi, "django": with_django, "drf": with_django}
    if WHICH in for_wsgi:
        server = werkzeug.serving.make_server("127.0.0.1", 0, for_wsgi[WHICH](c), threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return {"outcome": "done", "port": server.port, "refuses": 500 if WHICH == "flask" else 503}
    if WHICH == "slowapi":
        app, refuses = with_slowapi(c), 500
    else:
        app = own(c)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    return {"outcome": "done", "port": listener.getsockname()[1], "refuses": refuses}


logging.getLogger("werkzeug").setLevel(logging.ERROR)
overhear()
COMMANDS["serve"] = serve
main_threads(CAN[WHICH])
