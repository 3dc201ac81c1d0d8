"""Limits for Starlette: a decorator for endpoints, and a middleware whose functions get the request.

For FastAPI there is a dependency in `redis_rl.fastapi`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Unpack

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Host, Match, Mount

from . import asgi
from ._async.guard import AsyncGuard, Options, pairs
from ._async.io import AsyncKeyOf, AsyncRuleOf, given
from ._async.limiter import AsyncLimiter
from ._identity import key_for, name_of
from .asgi import ClientAddress, Scope, fields

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
    ``request.state.rate_limit``. The arguments are those of `redis_rl.asgi.RateLimitMiddleware`, but functions get the
    request, and the rule is no lease.
    """
    guard = AsyncGuard(limiter, pairs(rule, key), holds=False, **options)

    def decorate(endpoint: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        name = name_of(endpoint)

        @wraps(endpoint)
        async def limited(*args: Any, **named: Any) -> Any:
            request = next((each for each in (*args, *named.values()) if isinstance(each, Request)), None)
            if request is None:
                raise TypeError(f"{name}() has no request among its arguments, which rate_limit needs")
            answer = await guard.ask(request, operation(request.scope, name))
            request.state.rate_limit = answer.result
            if answer.problem is not None:
                return problem_answer(answer.problem, answer.headers)
            is_async = iscoroutinefunction(endpoint)
            made = endpoint(*args, **named) if is_async else await run_in_threadpool(endpoint, *args, **named)
            # Of an object that is called, or within another decorator, only what it returns tells.
            response = await given(made)
            if not isinstance(response, Response):
                of_fastapi = "for FastAPI there is RateLimit of redis_rl.fastapi"
                raise TypeError(f"{name}() must return a response, not a {type(response).__name__}: {of_fastapi}")
            # The application may keep its own, and return it again.
            response = copy(response)
            response.raw_headers = [*response.raw_headers, *fields(answer.headers)]
            vars(response).pop("_headers", None)
            return response

        return limited

    return decorate


def problem_answer(problem: Mapping[str, Any], headers: Mapping[str, str]) -> JSONResponse:
    return JSONResponse(problem, problem["status"], headers, media_type="application/problem+json")


def operation(scope: Scope, name: str) -> str:
    """A route: its methods, the template of its path, and the name of its function."""
    mounted, routes = scope.get("root_path", ""), getattr(scope.get("router"), "routes", ())
    if "app_root_path" in scope:
        # By Starlette. Values in it are the client's choice.
        mounted, routes = _mounted(routes, mounted.removeprefix(scope["app_root_path"]), scope)
    route, context = scope.get("route"), scope.get("fastapi", {}).get("effective_route_context")
    if context is not None and context.original_route is route:
        # Since FastAPI 0.137 the route of a router that is included has the path without the router's prefix.
        route = context
    elif not hasattr(route, "path"):
        # The scopes of older versions of Starlette have none.
        own = (each for each in _flat(routes, scope) if getattr(each, "endpoint", None) is scope.get("endpoint"))
        route = next((each for each in own if each.matches(scope)[0] is Match.FULL), None)
    methods = ",".join(sorted(getattr(route, "methods", None) or (scope["type"].upper(),)))
    return f"{methods} {mounted}{getattr(route, 'path', '')} {name}"


def _flat(routes: Iterable[BaseRoute], scope: Scope) -> Iterator[BaseRoute]:
    """With those of the request's host, and of routers that are included, which FastAPI keeps apart since 0.137."""
    for route in routes:
        contexts = getattr(route, "effective_route_contexts", None)
        if contexts:
            yield from (each.starlette_route for each in contexts())
        elif not isinstance(route, Host):
            yield route
        elif route.matches(scope)[0] is Match.FULL:
            yield from _flat(route.routes, scope)


def _mounted(routes: Sequence[BaseRoute], path: str, scope: Scope) -> tuple[str, Sequence[BaseRoute]]:
    """The template of a path that led through mounts, of each router's the first that fits, and the routes there."""
    for mount in (each for each in _flat(routes, scope) if path and isinstance(each, Mount)):
        match = mount.path_regex.match(f"{path}/")
        if match:
            template, inside = _mounted(mount.routes, f"/{match['path']}"[:-1], scope)
            return f"{mount.path}{template}", inside
    return "", routes
