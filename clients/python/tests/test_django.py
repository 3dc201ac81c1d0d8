"""Django and its REST framework: processes of their own over real HTTP, and the framework's own tests of throttling."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from peers import FAILED, run, unpacked
from servers import START_MS, Server, end_with_parent, free_port, until
from test_http import parsed

HERE = Path(__file__).parent


def environment(url: str, **options: Any) -> dict[str, str]:
    return {
        **os.environ,
        "RL_MIDDLEWARE": options.pop("RL_MIDDLEWARE", ""),
        "DJANGO_SETTINGS_MODULE": "django_app.settings",
        "PYTHONPATH": str(HERE),
        "RL_URL": url,
        "RL_OPTIONS": json.dumps(options),
    }


@contextmanager
def project(url: str, *words: str, **options: Any) -> Iterator[str]:
    """The project, served by gunicorn or uvicorn."""
    port = free_port()
    words = tuple(word.replace("PORT", str(port)) for word in words)
    process = subprocess.Popen(
        [sys.executable, "-m", *words], env=environment(url, **options), cwd=HERE, preexec_fn=end_with_parent
    )
    try:

        def answers() -> bool:
            assert process.poll() is None, "the project did not start"
            with suppress(httpx.TransportError):
                return get(f"http://127.0.0.1:{port}/nowhere").status_code > 0
            return False

        until("the project answers", answers)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


GUNICORN = ("gunicorn", "--bind", "127.0.0.1:PORT", "--workers", "4", "--log-level", "error")
THREADED = (*GUNICORN, "--worker-class", "gthread", "--threads", "8", "django_app.urls:wsgi()")
SYNC = (*GUNICORN, "--worker-class", "sync", "django_app.urls:wsgi()")
MIDDLEWARE = "from django_app import urls; urls.wsgi()"
THROTTLES = "from django.core.management import call_command; call_command('check')"
ASGI = (
    "uvicorn",
    "--port",
    "PORT",
    "--no-proxy-headers",
    "--factory",
    "--lifespan",
    "off",
    "--log-level",
    "error",
    "django_app.urls:asgi",
)


def get(url: str, **headers: str) -> httpx.Response:
    return httpx.get(url, headers=headers, timeout=60, trust_env=False)


def crowd(url: str, count: int, path: str = "/", **headers: str) -> dict[int, int]:
    with ThreadPoolExecutor(32) as pool:
        return dict(Counter(pool.map(lambda _: get(url + path, **headers).status_code, range(count))))


@pytest.mark.parametrize("words", [SYNC, THREADED], ids=["sync", "gthread"])
def test_processes_and_threads(server: Server, words: tuple[str, ...]) -> None:
    """200 requests to four processes at 5 a minute: exactly 5 pass, and the wait is exact."""
    with project(server.url, *words, DENY_CACHE=0, TIMEOUT=30) as url:
        assert crowd(url, 200) == {200: 5, 429: 195}
        server.set_clock(START_MS + 59_999)
        denied = get(url)
        assert (denied.status_code, denied.headers["Retry-After"]) == (429, "1")
        assert denied.json() == {"detail": "Request was throttled. Expected available in 1 second."}
        server.set_clock(START_MS + 60_000)
        assert crowd(url, 20) == {200: 5, 429: 15}


@pytest.mark.parametrize(
    ("choice", "expected"), [("open", {200: 20}), ("closed", {503: 20}), ("local", {200: 5, 429: 15})]
)
def test_throttles_while_the_server_is_away(choice: str, expected: dict[int, int]) -> None:
    with project("redis://127.0.0.1:1", *ASGI, WHEN_UNAVAILABLE=choice) as url:
        assert crowd(url, 20) == expected
        if choice == "closed":
            refused = get(url)
            assert refused.headers["Retry-After"] == "1"
            assert refused.json() == {"detail": "The rate limiter is not available"}


def test_throttles_while_the_server_hangs(server: Server) -> None:
    """Each of four processes finds out by itself, by a deadline: their clients have no time-outs."""
    with project(server.url, *SYNC, WHEN_UNAVAILABLE="closed") as url:
        until("it is there", lambda: get(url).status_code == 200)
        server.process.send_signal(signal.SIGSTOP)
        try:
            assert crowd(url, 40) == {503: 40}
        finally:
            server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("words", [THREADED, ASGI], ids=["wsgi", "asgi"])
def test_the_middleware(server: Server, words: tuple[str, ...]) -> None:
    options = {"LIMIT": "7/minute", "DENY_CACHE": 0, "TIMEOUT": 30}
    with project(server.url, *words, RL_MIDDLEWARE="yes", **options) as url:
        server.run("FLUSHALL")
        assert crowd(url, 40, "/limited") == {200: 7, 429: 33}
        denied = get(f"{url}/limited", **{"X-Forwarded-For": "198.51.100.1"})
        assert denied.status_code == 429
        assert denied.headers["Content-Type"] == "application/problem+json"
        assert denied.json()["violated-policies"] == ["60s"]
        server.set_clock(START_MS + 1000 * int(denied.headers["Retry-After"]))
        allowed = get(f"{url}/limited")
        assert allowed.json() == {"remaining": 6}
        assert parsed(allowed.headers["RateLimit"]) == [("60s", {"r": 6, "t": 60})]
        # An answer that the framework makes of an exception has the headers, too.
        assert "RateLimit-Policy" in get(f"{url}/nowhere").headers
        assert server.run("KEYS", "*") == ["rl:sliding-7/60s:{127.0.0.1}"]


def test_asynchronous_views_and_rules(server: Server) -> None:
    """A streamed response of an asynchronous view is limited before its first byte, and stays whole."""
    options = {"LIMIT": "django_app.urls.rule_looked_up", "KEY": "django_app.urls.user", "TIMEOUT": 30}
    with project(server.url, *ASGI, RL_MIDDLEWARE="yes", **options) as url:
        for remaining in (1, 0):
            allowed = get(f"{url}/streamed", **{"X-User": "a"})
            assert allowed.text == f"one, two, {remaining}"
            assert parsed(allowed.headers["RateLimit"]) == [("by-path", {"r": remaining, "t": 3600})]
        denied = get(f"{url}/streamed", **{"X-User": "a"})
        assert (denied.status_code, denied.json()["violated-policies"]) == (429, ["by-path"])
        assert crowd(url, 10, "/free", **{"X-User": "a"}) == {200: 10}


@pytest.mark.parametrize("words", [THREADED, ASGI], ids=["wsgi", "asgi"])
def test_functions_by_their_paths(server: Server, words: tuple[str, ...]) -> None:
    options = {"LIMIT": "django_app.urls.rule", "KEY": "django_app.urls.user", "TIMEOUT": 30}
    with project(server.url, *words, RL_MIDDLEWARE="yes", **options) as url:
        for user in ("a", "b"):
            assert crowd(url, 10, "/limited", **{"X-User": user}) == {200: 2, 429: 8}
        assert get(f"{url}/limited").status_code == 403
        assert get(f"{url}/free").status_code == 200


@pytest.mark.parametrize(
    ("options", "error", "starts"),
    [
        ({"LIMIT": "7/fortnight"}, "a rate looks like", MIDDLEWARE),
        ({"LIMIT": None}, "there is no LIMIT", MIDDLEWARE),
        ({"LIMIT": "nowhere.rule"}, "nowhere", MIDDLEWARE),
        ({"LIMIT": "9/s", "WHEN_UNAVAILABLE": "maybe"}, "when_unavailable must be one of", MIDDLEWARE),
        ({"TIME_OUT": 1}, "unexpected keyword argument 'time_out'", THROTTLES),
        ({"URL": "postgres://x"}, "URL", THROTTLES),
        ({"URL": None}, "the URL must be a string", THROTTLES),
    ],
)
def test_wrong_settings_are_said_at_the_start(options: dict[str, Any], error: str, starts: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import django; django.setup(); {starts}"],
        env=environment("redis://127.0.0.1:1", RL_MIDDLEWARE="yes" if starts == MIDDLEWARE else "", **options),
        cwd=HERE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "ImproperlyConfigured" in done.stderr
    assert error in done.stderr


# It sets the list of times in memory, which is not here.
NOT_OURS = {"test_wait_returns_correct_waiting_time_without_history"}


def test_the_frameworks_own_tests(tmp_path: Path) -> None:
    """Their clock is the server's, and their ``cache.clear()`` empties it."""
    sources = unpacked("DRF_SDIST", "rest_framework", "drf_conftest.py", tmp_path)
    suite = sources / "tests/test_throttling.py"
    ours = "from redis_rl.drf import AnonRateThrottle, ScopedRateThrottle, SimpleRateThrottle, UserRateThrottle\n"
    theirs = re.compile(r"from rest_framework.throttling import \([^)]*\)\n")
    text, replaced = theirs.subn("from rest_framework.throttling import BaseThrottle\n" + ours, suite.read_text())
    assert replaced == 1
    suite.write_text(text)
    server = Server("module")
    try:
        output = run(sources, str(suite), RL_URL=server.url, RL_CLOCK_FILE=str(server.clock))
    finally:
        server.kill()
    assert set(FAILED.findall(output)) == NOT_OURS, output
    assert output.count("\nPASSED") >= 28, output
