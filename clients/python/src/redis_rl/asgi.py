"""A middleware for ASGI applications: Starlette, FastAPI, Litestar, Quart and others.

It asks the limiter before the application sees a request. An allowed one is passed on, and its response gets the
fields RateLimit-Policy and RateLimit. A denied one is answered with status 429, these fields, Retry-After, and a
problem document of the type quota-exceeded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from ._aio import AsyncLimiter
from ._http import PROBLEM_TITLE, PROBLEM_TYPE
from ._result import AllResult, Result
from ._rules import Lease, Rule

__all__ = ["RateLimitMiddleware", "client_address"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Answer = TypeVar("Answer")
KeyOf = Callable[[Scope], str | bytes | None]

log = logging.getLogger("redis_rl.asgi")


def client_address(scope: Scope) -> str:
    """The address that the request comes from. Behind a proxy, have the server set it (uvicorn: --proxy-headers)."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


class RateLimitMiddleware:
    """Limits the requests of an ASGI application.

    The result is left in ``scope["state"]["rate_limit"]`` (``request.state.rate_limit``); it is None while the
    server is away. A `lease` rule is held until the response has been sent.

    Args:
        app: the application.
        limiter: an `AsyncLimiter`.
        rule: the limit of a request, made by `sliding`, `fixed`, `throttle` or `lease`.
        key: who is limited, from the request's scope; None lets the request pass unlimited. Without it, the
            client's address.
        rules: several limits in one decision, as pairs of key and rule, in place of ``rule`` and ``key``. In a
            cluster the keys must share a hash tag.
        when_away: what happens to requests while the server cannot be reached or cannot answer: ``"open"`` lets
            them pass unlimited, ``"closed"`` answers them with status 503. Beginning and end of such a time are
            logged as warnings of ``redis_rl.asgi``. Errors that do not go away by themselves (missing permissions,
            a key that holds something else, keys in different slots) are raised: a limit is never off for them.
        timeout: seconds after which the server counts as away; None waits as long as the client does.
    """

    def __init__(
        self,
        app: App,
        *,
        limiter: AsyncLimiter,
        rule: Rule | None = None,
        key: KeyOf = client_address,
        rules: Sequence[tuple[KeyOf, Rule]] = (),
        when_away: Literal["open", "closed"] = "open",
        timeout: float | None = 5.0,
    ) -> None:
        if (rule is None) == (not rules):
            raise TypeError("the middleware takes either rule or rules")
        if when_away not in ("open", "closed"):
            raise ValueError(f"when_away must be 'open' or 'closed', not {when_away!r}")
        self._app = app
        self._limiter = limiter
        if rule is not None:
            rules = [(key, rule)]
        elif len(rules) > 1:
            # So that a policy keeps its name where another does not apply.
            rules = [
                (key_of, each if each.name else replace(each, name=f"policy-{number}"))
                for number, (key_of, each) in enumerate(rules)
            ]
        self._rules = list(rules)
        self._open = when_away == "open"
        self._timeout = timeout
        self._away = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        keyed = [(key_of(scope), rule) for key_of, rule in self._rules]
        limited = [(key, rule) for key, rule in keyed if key is not None]
        if not limited:
            await self._app(scope, receive, send)
            return
        result = await self._decide(limited)
        scope.setdefault("state", {})["rate_limit"] = result
        if result is None and self._open:
            await self._app(scope, receive, send)
        elif result is None:
            await _problem(send, 503, {"title": "The rate limiter is not available"}, {})
        elif not result:
            body = {"type": PROBLEM_TYPE, "title": PROBLEM_TITLE, "violated-policies": result.violated}
            await _problem(send, 429, body, result.headers())
        else:
            try:
                await self._app(scope, receive, _with_headers(send, result.headers()))
            finally:
                await self._release(limited, result)

    async def _decide(self, limited: list[tuple[str | bytes, Rule]]) -> Result | AllResult | None:
        """The limiter's answer, or None if the server is away."""
        try:
            result = await _within(self._timeout, self._ask(limited))
        except Exception as error:
            if not (isinstance(error, asyncio.TimeoutError) or self._limiter.is_away(error)):
                raise
            if not self._away:
                self._away = True
                what = "let pass unlimited" if self._open else "refused"
                log.warning("the rate limiter's server is away, requests are %s: %s", what, str(error) or "timeout")
            return None
        if self._away:
            self._away = False
            log.warning("the rate limiter's server is back")
        return result

    async def _ask(self, limited: list[tuple[str | bytes, Rule]]) -> Result | AllResult:
        if len(limited) > 1:
            return await self._limiter.all(limited)
        ((key, rule),) = limited
        return await self._limiter.hit(key, rule)

    async def _release(self, limited: list[tuple[str | bytes, Rule]], result: Result | AllResult) -> None:
        """Gives back the leases that the request held."""
        results = result.results if isinstance(result, AllResult) else (result,)
        for (key, _), each in zip(limited, results, strict=True):
            if isinstance(each.rule, Lease) and each.holder is not None:
                try:
                    await self._limiter.release(key, each.holder)
                except Exception as error:
                    # It ends by itself; the response is not the place to say so.
                    log.warning("a lease could not be released: %s", error)


if sys.version_info >= (3, 11):

    async def _within(seconds: float | None, answer: Awaitable[Answer]) -> Answer:
        # Unlike wait_for, which before Python 3.12 makes a task of each call.
        async with asyncio.timeout(seconds):
            return await answer

else:

    async def _within(seconds: float | None, answer: Awaitable[Answer]) -> Answer:
        return await asyncio.wait_for(answer, seconds)


def _fields(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def _with_headers(send: Send, headers: dict[str, str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_fields(headers)]
        await send(message)

    return sending


async def _problem(send: Send, status: int, problem: dict[str, Any], headers: dict[str, str]) -> None:
    """An answer as RFC 9457 has it."""
    body = json.dumps({**problem, "status": status}).encode()
    fields = [
        *_fields(headers),
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
