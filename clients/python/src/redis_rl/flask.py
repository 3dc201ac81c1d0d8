"""Limits for Flask: a decorator for views, and a middleware whose functions get the request."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Unpack

import flask

from . import wsgi
from ._identity import key_for
from ._sync.guard import Guard, Options, pairs
from ._sync.io import KeyOf, RuleOf
from ._sync.limiter import Limiter
from .wsgi import ClientAddress

__all__ = ["ClientAddress", "RateLimitMiddleware", "key_for", "rate_limit"]


class RateLimitMiddleware(wsgi.RateLimitMiddleware):
    """That of `redis_rl.wsgi`; its functions for keys and rules get the request."""

    _request = flask.Request


def rate_limit(
    limiter: Limiter, rule: RuleOf, *, key: KeyOf | None = None, **options: Unpack[Options]
) -> Callable[[Callable[..., Any]], Callable[..., flask.Response]]:
    """Limits the requests of a view.

    ::

        @app.post("/login")
        @rate_limit(limiter, sliding("5/minute"))
        def login(): ...

    A rule without a name is a limit of each route by itself, whatever the values in its path are. The answer is left in
    ``flask.g.rate_limit``.

    Args:
        limiter, rule, key, options: as in `redis_rl.wsgi.RateLimitMiddleware`, but functions get the request, and the
            rule is no lease.
    """
    guard = Guard(limiter, pairs(rule, key), holds=False, **options)

    def decorate(view: Callable[..., Any]) -> Callable[..., flask.Response]:
        @wraps(view)
        def limited(*args: Any, **named: Any) -> flask.Response:
            answer = guard.ask(flask.request, _operation())
            flask.g.rate_limit = answer.result
            if answer.problem is None:
                response = flask.make_response(flask.current_app.ensure_sync(view)(*args, **named))
            else:
                kind = {"Content-Type": "application/problem+json"}
                response = flask.make_response((answer.problem, answer.problem["status"], kind))
            for name, value in answer.headers.items():
                response.headers.add(name, value)
            return response

        return limited

    return decorate


def _operation() -> str:
    """The route: its methods, its template with the prefixes under which it is mounted, and its name."""
    route = flask.request.url_rule
    methods = ",".join(sorted(route.methods or ())) if route else flask.request.method
    return f"{methods} {flask.request.script_root}{route.rule if route else ''} {flask.request.endpoint}"
