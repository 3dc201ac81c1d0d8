"""A middleware for WSGI applications: Flask, Bottle, Pyramid and others. It answers as that of `redis_rl.asgi`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, Unpack
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ._identity import ClientAddress, key_for
from ._sync.guard import Guard, Options, check_function, pairs
from ._sync.io import KeyOf, RuleOf
from ._sync.limiter import Limiter

__all__ = ["ClientAddress", "RateLimitMiddleware", "key_for"]


class RateLimitMiddleware:
    """Limits the requests of a WSGI application.

    The answer is left in ``environ["redis_rl.rate_limit"]``, None for a request that is not limited. A `lease` rule is
    held until the server has closed the response.

    Args:
        app: the application.
        limiter: a `Limiter`.
        rule, key, rules, options: as in `redis_rl.asgi.RateLimitMiddleware`, but functions get the request's environ,
            and are not asynchronous.
        on_denied: a WSGI application that answers denied requests in place of the problem document.
    """

    # What functions for keys and rules get.
    _request: Callable[[WSGIEnvironment], Any] = staticmethod(lambda environ: environ)

    def __init__(
        self,
        app: WSGIApplication,
        *,
        limiter: Limiter,
        rule: RuleOf | None = None,
        key: KeyOf | None = None,
        rules: Sequence[tuple[KeyOf, RuleOf]] = (),
        on_denied: WSGIApplication | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._guard = Guard(limiter, pairs(rule, key, rules), **options)
        if on_denied is not None:
            check_function(on_denied, "on_denied")
        self._app = app
        self._on_denied = on_denied

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = self._guard.ask(self._request(environ))
        environ["redis_rl.rate_limit"] = answer.result

        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            return start_response(status, [*headers, *answer.headers.items()], *error)

        if answer.problem is None:
            if not answer.kept:
                return self._app(environ, start)
            try:
                return _Held(self._app(environ, start), answer.end)
            except BaseException:
                answer.end()
                raise
        if answer.result is not None and self._on_denied is not None:
            return self._on_denied(environ, start)
        body, status = json.dumps(answer.problem).encode(), HTTPStatus(answer.problem["status"])
        fields = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))]
        start(f"{status.value} {status.phrase}", fields)
        # Servers of WSGI send the body that they get.
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]


class _Held:
    """A response whose end is noticed: servers close it, also where the client has gone away."""

    def __init__(self, body: Iterable[bytes], end: Callable[[], None]) -> None:
        self._body = body
        self._end = end

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._end()
