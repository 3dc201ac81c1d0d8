"""A middleware for ASGI applications: Starlette, FastAPI, Litestar, Quart and others.

It asks the limiter before the application sees a request. An allowed one is passed on, and its response gets the
fields RateLimit-Policy and RateLimit. A denied one is answered with status 429, these fields, Retry-After, and a
problem document of the type quota-exceeded.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any, Unpack

from ._async.guard import AsyncGuard, Options, check_function, pairs
from ._async.io import AsyncKeyOf, AsyncRuleOf, finished
from ._async.limiter import AsyncLimiter
from ._identity import ClientAddress, key_for

__all__ = ["ClientAddress", "RateLimitMiddleware", "key_for"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimitMiddleware:
    """Limits the requests of an ASGI application.

    The answer is left in ``scope["state"]["rate_limit"]`` (``request.state.rate_limit``), None for a request that is
    not limited; its ``source`` says who decided. A `lease` rule is held until the response has been sent.

    Args:
        app: the application.
        limiter: an `AsyncLimiter`.
        rule: the limit of a request, made by `sliding`, `fixed`, `throttle` or `lease`; or a function of the request's
            scope that returns one, or None for a request that is not limited. It may be asynchronous.
        key: who is limited, from the request's scope: the client's address unless given. See `ClientAddress`. It may
            be asynchronous.
        rules: several limits in one decision, as pairs of key and rule, in place of ``rule`` and ``key``.
        prefix: ``"rl:"`` unless given, put before every key, behind the limiter's own prefix. A key is the prefix, the
            rule's name (else its kind and windows), and the identity, so that limits never count each other's
            requests. Give names to rules that are the same and shall be two limits: two middlewares with one unnamed
            rule count a request twice. Rules about several identities need a hash tag here in a cluster.
        without_identity: what happens to a request for which the key is None or empty: ``"refuse"`` (unless given)
            answers with status 403, ``"allow"`` lets it through without that rule.
        when_unavailable: what happens to requests while the server cannot be reached or cannot answer: ``"open"``
            (unless given) lets them pass unlimited, ``"closed"`` answers with status 503, ``"local"`` limits them in
            this process' memory, rougher than the server does: one counter for each key and window, and no leases.
            Beginning and end of such a time are logged. Errors that do not pass by themselves (missing permissions, a
            key that holds something else) are raised: a limit is never off for them.
        processes: among how many processes the limits are divided with ``"local"``; 1 unless given.
        timeout: seconds after which the server counts as unavailable; 0.25 unless given.
        deny_cache: whether denials are remembered, unless given yes: for its wait, at most a second, the same or a
            heavier request is then denied without asking the server.
        on_denied: an ASGI application that answers denied requests in place of the problem document.
    """

    # What functions for keys and rules get.
    _request: Callable[[Scope], Any] = staticmethod(lambda scope: scope)

    def __init__(
        self,
        app: App,
        *,
        limiter: AsyncLimiter,
        rule: AsyncRuleOf | None = None,
        key: AsyncKeyOf | None = None,
        rules: Sequence[tuple[AsyncKeyOf, AsyncRuleOf]] = (),
        on_denied: App | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._guard = AsyncGuard(limiter, pairs(rule, key, rules), **options)
        if on_denied is not None:
            check_function(on_denied, "on_denied")
        self._app = app
        self._on_denied = on_denied

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = await self._guard.ask(self._request(scope))
        scope.setdefault("state", {})["rate_limit"] = answer.result
        if answer.problem is None:
            end = answer.end if answer.kept else None
            try:
                await self._app(scope, receive, with_fields(send, fields(answer.headers), end))
            finally:
                if end is not None:
                    await finished(end)
        elif answer.result is not None and self._on_denied is not None:
            await self._on_denied(scope, receive, with_fields(send, fields(answer.headers)))
        else:
            body = json.dumps(answer.problem).encode()
            own = {"Content-Type": "application/problem+json", "Content-Length": str(len(body))}
            headers = fields({**answer.headers, **own})
            await send({"type": "http.response.start", "status": answer.problem["status"], "headers": headers})
            await send({"type": "http.response.body", "body": body})


def fields(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def with_fields(
    send: Send, added: list[tuple[bytes, bytes]], end: Callable[[], Coroutine[Any, Any, None]] | None = None
) -> Send:
    """Adds headers to the response, those that are in the list when it starts.

    ``end`` is called when it has been sent: the application may go on with work in the background.
    """

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            # The application may keep its message, and send it again.
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)
        if end is not None and message["type"] == "http.response.body" and not message.get("more_body"):
            await finished(end)

    return sending
