"""The application that gunicorn forks for the subjects ``gunicorn-…``: it makes a call before it is forked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import redis
from redis_rl import Limiter, Unavailable, sliding

given = json.loads(os.environ["FAULTS_APP"])
limiter = Limiter(redis.Redis.from_url(given["connect"]["url"]), timeout=given["timeout"])
rule = sliding(*given["rule"]["rates"])
limiter.hit("before the fork", rule)


def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Limits each request by its header x-key."""
    try:
        result = limiter.hit(environ.get("HTTP_X_KEY", ""), rule)
        status = "200 OK" if result else "429 Too Many Requests"
    except Unavailable:
        status = "503 Service Unavailable"
    start(status, [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"in"]
