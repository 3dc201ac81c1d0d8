"""Limits for Flask: a decorator for views, and a middleware whose functions get the request."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial, wraps
from inspect import isawaitable
from typing import Any, Unpack

import flask

from . import wsgi
from ._async.io import given
from ._identity import key_for, name_of
from ._sync.guard import Guard, Options, pairs
from ._sync.io import KeyOf, RuleOf
from ._sync.limiter import Limiter
from .wsgi import ClientAddress

__all__ = ["ClientAddress", "RateLimitMiddleware", "key_for", "rate_limit"]


class RateLimitMiddleware(wsgi.RateLimitMiddleware):
    """That of `redis_rl.wsgi`; its functions for keys and rules get the request."""

    # It leaves the body to the application.
    _request = staticmethod(partial(flask.Request, shallow=True))


def rate_limit(
    limiter: Limiter, rule: RuleOf, *, key: KeyOf | None = None, **options: Unpack[Options]
) -> Callable[[Callable[..., Any]], Callable[..., flask.Response]]:
    """Limits the requests of a view.

    ::

        @app.post("/login")
        @rate_limit(limiter, sliding("5/minute"))
        def login(): ...

    A rule without a name is a limit of each route by itself, whatever the values in its path are. The answer is left in
    ``flask.g.rate_limit``. The arguments are those of `redis_rl.wsgi.RateLimitMiddleware`, but functions get the
    request, and the rule is no lease.
    """
    guard = Guard(limiter, pairs(rule, key), holds=False, **options)

    def decorate(view: Callable[..., Any]) -> Callable[..., flask.Response]:
        name = name_of(view)

        @wraps(view)
        def limited(*args: Any, **named: Any) -> flask.Response:
            answer = guard.ask(flask.request, _operation(name))
            flask.g.rate_limit = answer.result
            if answer.problem is None:
                made = view(*args, **named)
                # Of an object that is called, or within another decorator, only what it returns tells.
                response = flask.make_response(
                    flask.current_app.async_to_sync(given)(made) if isawaitable(made) else made
                )
            else:
                kind = {"Content-Type": "application/problem+json"}
                response = flask.make_response((answer.problem, answer.problem["status"], kind))
            # The application may keep its own, and return it again.
            response = copy(response)
            response.headers = response.headers.copy()
            for field, value in answer.headers.items():
                response.headers.add(field, value)
            return response

        return limited

    return decorate


def _operation(name: str) -> str:
    """The route: its methods, its template with the prefixes under which it is mounted, and what it is called.

    An error has none, and the method of its request is the client's choice.
    """
    route = flask.request.url_rule
    methods, template = "", ""
    if route is not None:
        methods, template = ",".join(sorted(route.methods or ())), f"{route.host or route.subdomain or ''}{route.rule}"
    return f"{methods} {flask.request.script_root}{template} {flask.request.endpoint} {name}"
