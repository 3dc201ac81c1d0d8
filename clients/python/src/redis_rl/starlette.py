"""Limits for Starlette: a decorator for endpoints, and a middleware whose functions get the request.

For FastAPI there is a dependency in `redis_rl.fastapi`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Unpack

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse

from . import asgi
from ._async.guard import AsyncGuard, Options, pairs
from ._async.io import AsyncKeyOf, AsyncRuleOf
from ._async.limiter import AsyncLimiter
from ._identity import key_for
from .asgi import ClientAddress, Scope

__all__ = ["ClientAddress", "RateLimitMiddleware", "key_for", "rate_limit"]


class RateLimitMiddleware(asgi.RateLimitMiddleware):
    """That of `redis_rl.asgi`; its functions for keys and rules get the ``Request``."""

    _request = Request


def rate_limit(
    limiter: AsyncLimiter, rule: AsyncRuleOf, *, key: AsyncKeyOf | None = None, **options: Unpack[Options]
) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
    """Limits the requests of an endpoint, a function or a method with the request among its arguments.

    ::

        @rate_limit(limiter, sliding("5/minute"))
        async def login(request): ...

    A rule without a name is a limit of each route by itself, whatever the values in its path are. The answer is left in
    ``request.state.rate_limit``.

    Args:
        limiter, rule, key, options: as in `redis_rl.asgi.RateLimitMiddleware`, but functions get the request, and the
            rule is no lease.
    """
    guard = AsyncGuard(limiter, pairs(rule, key), holds=False, **options)

    def decorate(endpoint: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        @wraps(endpoint)
        async def limited(*args: Any, **named: Any) -> Any:
            request = next((each for each in (*args, *named.values()) if isinstance(each, Request)), None)
            if request is None:
                raise TypeError(f"{endpoint.__qualname__}() has no request among its arguments, which rate_limit needs")
            answer = await guard.ask(request, operation(request.scope))
            request.state.rate_limit = answer.result
            if answer.problem is not None:
                return problem_answer(answer.problem, answer.headers)
            if iscoroutinefunction(endpoint):
                response = await endpoint(*args, **named)
            else:
                response = await run_in_threadpool(endpoint, *args, **named)
            for name, value in answer.headers.items():
                response.headers.append(name, value)
            return response

        return limited

    return decorate


def problem_answer(problem: Mapping[str, Any], headers: Mapping[str, str]) -> JSONResponse:
    return JSONResponse(problem, problem["status"], headers, media_type="application/problem+json")


def operation(scope: Scope) -> str:
    """A route: its methods, the template of its path, and its function."""
    endpoint = scope["endpoint"]
    # Since FastAPI 0.137 the route of a router that is included has the path without the router's prefix.
    route = scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")
    mounted = scope.get("root_path", "").removeprefix(scope.get("app_root_path", ""))
    methods = ",".join(sorted(getattr(route, "methods", None) or ("WEBSOCKET",)))
    path = f"{mounted}{getattr(route, 'path', '')}"
    return f"{methods} {path} {endpoint.__module__}.{getattr(endpoint, '__qualname__', '')}"
