"""A dependency for FastAPI: limits that are declared on a path operation or a router."""

# Without postponed annotations: FastAPI reads them of an object that is called.
from typing import Any, Unpack

from fastapi import HTTPException, Request, Response, WebSocketException
from fastapi.requests import HTTPConnection

from ._async.guard import AsyncGuard, Options, pairs
from ._async.io import AsyncKeyOf, AsyncRuleOf
from ._async.limiter import AsyncLimiter
from ._identity import key_for, name_of
from ._result import AllResult, Result
from .asgi import ClientAddress, fields
from .starlette import RateLimitMiddleware, operation, problem_answer

__all__ = [
    "ClientAddress",
    "RateLimit",
    "RateLimitExceeded",
    "RateLimitMiddleware",
    "key_for",
    "problem_response",
]


class RateLimitExceeded(HTTPException):
    """A denied request. FastAPI answers it with status 429, the headers, and the problem document as ``detail``.

    With `problem_response` as its handler the problem document is the whole body.
    """

    def __init__(self, result: Result | AllResult, problem: dict[str, Any], headers: dict[str, str]) -> None:
        super().__init__(429, detail=problem, headers=headers)
        self.result = result
        self.problem = problem


async def problem_response(request: Request, error: Exception) -> Response:
    """Answers a denied request with its problem document: a handler for `RateLimitExceeded`.

    ::

        app.add_exception_handler(RateLimitExceeded, problem_response)
    """
    if not isinstance(error, RateLimitExceeded):
        raise error
    return problem_answer(error.problem, error.headers or {})


class RateLimit:
    """Limits the requests of the path operations on which it is declared.

    ::

        @app.get("/item/{id}", dependencies=[Depends(RateLimit(limiter, sliding("5/minute")))])

    A rule without a name is a limit of each path operation by itself, whatever the values in its path are. A rule with
    a name is one limit for all of those that use the name. The answer is what the dependency returns, and is left in
    ``request.state.rate_limit``. Of a WebSocket the handshake is limited. FastAPI adds the headers to what an operation
    returns, but not to a ``Response`` that it makes itself; `RateLimitMiddleware` adds its own to all. The arguments
    are those of `redis_rl.asgi.RateLimitMiddleware`, but functions get the request, and the rule is no lease.

    Raises:
        RateLimitExceeded: when a request is denied.
        fastapi.HTTPException: 403 for a request without an identity, 503 with ``when_unavailable="closed"``.
        fastapi.WebSocketException: the same for a WebSocket.
    """

    def __init__(
        self,
        limiter: AsyncLimiter,
        rule: AsyncRuleOf,
        *,
        key: AsyncKeyOf | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._guard = AsyncGuard(limiter, pairs(rule, key), holds=False, **options)

    async def __call__(self, request: HTTPConnection, response: Response) -> Result | AllResult | None:
        """Called by FastAPI before the path operation. Returns the answer, None for a request that is not limited."""
        scope = request.scope
        answer = await self._guard.ask(request, operation(scope, name_of(scope["endpoint"])))
        result = request.state.rate_limit = answer.result
        if answer.problem is not None:
            if result is None:
                raise _refused(scope, HTTPException(answer.problem["status"], answer.problem["title"]))
            raise _refused(scope, RateLimitExceeded(result, answer.problem, answer.headers))
        response.raw_headers.extend(fields(answer.headers))
        return result


def _refused(scope: Any, error: HTTPException) -> Exception:
    """What is raised for a request, or for a WebSocket, which FastAPI then does not accept."""
    if scope["type"] == "http":
        return error
    code = 1008 if error.status_code == 403 else 1013
    return WebSocketException(code, "Too many requests" if error.status_code == 429 else str(error.detail))
