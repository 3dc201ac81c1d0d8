"""A dependency for FastAPI: limits that are declared on a path operation or a router."""

# Without postponed annotations: FastAPI reads them of an object that is called.
from typing import Any

from fastapi import HTTPException, Request, Response, WebSocketException
from fastapi.requests import HTTPConnection
from starlette.responses import JSONResponse

from ._async.limiter import AsyncLimiter
from ._calls import checked
from ._guard import (
    NO_IDENTITY,
    UNAVAILABLE,
    Guard,
    KeyOf,
    RuleOf,
    WhenUnavailable,
    WithoutIdentity,
    check_function,
    identity_for,
    rule_for,
)
from ._identity import key_for
from ._result import AllResult, Result
from ._rules import Lease, Rule
from .asgi import ClientAddress

__all__ = ["ClientAddress", "RateLimit", "RateLimitExceeded", "key_for", "problem_response"]


class RateLimitExceeded(HTTPException):
    """A denied request. FastAPI answers it with status 429, the headers, and the problem document as ``detail``.

    With `problem_response` as its handler the problem document is the whole body.
    """

    def __init__(self, result: Result | AllResult) -> None:
        super().__init__(429, detail=result.problem(), headers=result.headers())
        self.result = result


async def problem_response(request: Request, error: Exception) -> Response:
    """Answers a denied request with its problem document: a handler for `RateLimitExceeded`.

    ::

        app.add_exception_handler(RateLimitExceeded, problem_response)
    """
    if not isinstance(error, RateLimitExceeded):
        raise error
    return JSONResponse(error.detail, error.status_code, error.headers, media_type="application/problem+json")


class RateLimit:
    """Limits the requests of the path operations on which it is declared.

    ::

        @app.get("/item/{id}", dependencies=[Depends(RateLimit(limiter, sliding("5/minute")))])

    A rule without a name is a limit of each path operation by itself, whatever the values in its path are. A rule with
    a name is one limit for all of those that use the name. The answer is what the dependency returns, and is left in
    ``request.state.rate_limit``. Of a WebSocket the handshake is limited.

    Args:
        limiter: an `AsyncLimiter`.
        rule: the limit of a request, made by `sliding`, `fixed` or `throttle`; or a function of the request's scope
            that returns one, or None for a request that is not limited. It may be asynchronous.
        key: who is limited, from the request's scope: the client's address unless given. It may be asynchronous.
        prefix, without_identity, when_unavailable, processes, timeout, deny_cache: as in `RateLimitMiddleware`.

    Raises:
        RateLimitExceeded: when a request is denied.
        fastapi.HTTPException: 403 for a request without an identity, 503 with ``when_unavailable="closed"``.
        fastapi.WebSocketException: the same for a WebSocket.
    """

    def __init__(
        self,
        limiter: AsyncLimiter,
        rule: RuleOf,
        *,
        key: KeyOf | None = None,
        prefix: str = "rl:",
        without_identity: WithoutIdentity = "refuse",
        when_unavailable: WhenUnavailable = "open",
        processes: int = 1,
        timeout: float = 0.25,
        deny_cache: int = 10_000,
    ) -> None:
        self._guard = Guard(
            limiter,
            prefix=prefix,
            without_identity=without_identity,
            when_unavailable=when_unavailable,
            processes=processes,
            timeout=timeout,
            deny_cache=deny_cache,
        )
        if not callable(rule):
            _countable(rule)
        if key is not None:
            check_function(key, "key")
        self._rule = rule
        self._key = key or ClientAddress()

    async def __call__(self, request: HTTPConnection, response: Response) -> Result | AllResult | None:
        """Called by FastAPI before the path operation. Returns the answer, None for a request that is not limited."""
        guard, scope = self._guard, request.scope
        request.state.rate_limit = None
        rule = await rule_for(scope, self._rule)
        if rule is None:
            return None
        _countable(rule)
        identity = await identity_for(scope, self._key)
        if identity is None:
            if guard.refuses:
                raise _refused(scope, HTTPException(403, NO_IDENTITY))
            return None
        operation = _operation(scope) if rule.name is None else None
        key = key_for(rule, identity, prefix=guard.prefix, operation=operation)
        result = await guard.decide([(key, rule)])
        request.state.rate_limit = result
        if result is None:
            raise _refused(scope, HTTPException(503, UNAVAILABLE))
        if not result:
            raise _refused(scope, RateLimitExceeded(result))
        for name, value in result.headers().items():
            response.headers.append(name, value)
        return result


def _refused(scope: Any, error: HTTPException) -> Exception:
    """What is raised for a request, or for a WebSocket, which FastAPI then does not accept."""
    if scope["type"] == "http":
        return error
    code = 1008 if error.status_code == 403 else 1013
    return WebSocketException(code, "Too many requests" if error.status_code == 429 else str(error.detail))


def _countable(rule: Rule) -> None:
    if isinstance(checked(rule), Lease):
        raise TypeError("a lease is held by RateLimitMiddleware, until the response has been sent")


def _operation(scope: Any) -> str:
    """A path operation: its methods, the template of its path, and its function.

    Of a router that is included under a prefix, not every version of FastAPI has the prefix in the template.
    """
    route, endpoint = scope["route"], scope["endpoint"]
    mounted = scope.get("root_path", "").removeprefix(scope.get("app_root_path", ""))
    methods = ",".join(sorted(getattr(route, "methods", None) or ("WEBSOCKET",)))
    return f"{methods} {mounted}{route.path} {endpoint.__module__}.{getattr(endpoint, '__qualname__', '')}"
