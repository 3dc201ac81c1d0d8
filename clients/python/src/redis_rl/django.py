"""Rate limits for Django: the setting ``REDIS_RL``, and a middleware. For its REST framework see `redis_rl.drf`.

::

    REDIS_RL = {"URL": "redis://localhost", "LIMIT": "100/minute"}
    MIDDLEWARE = ["redis_rl.django.RateLimitMiddleware", ...]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Unpack

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils.module_loading import import_string

from ._async.guard import AsyncAnswer, AsyncGuard
from ._async.limiter import AsyncLimiter
from ._identity import ClientAddress, key_for
from ._rules import sliding
from ._sync.guard import Answer, Guard, Options, pairs
from ._sync.limiter import Limiter

__all__ = ["ClientAddress", "RateLimitMiddleware", "key_for"]


@cache
def limiter(kind: Any, url: str, mode: Any) -> Any:
    """The process' limiter for threads or for asyncio."""
    return kind.from_url(url, mode=mode, name="django")


@cache
def guard(kind: Any, of: Any, for_middleware: bool) -> Any:
    """What decides on requests, by the setting. ImproperlyConfigured says what is wrong with it."""
    try:
        given = {name.lower(): value for name, value in settings.REDIS_RL.items()}
        return _made(kind, of, for_middleware, **given)
    except (AttributeError, TypeError, ValueError, ImportError) as error:
        raise ImproperlyConfigured(f"REDIS_RL: {error}") from error


def _made(
    kind: Any,
    of: Any,
    for_middleware: bool,
    *,
    url: str,
    limit: Any = None,
    key: Any = None,
    mode: Any = "auto",
    **options: Unpack[Options],
) -> Any:
    if isinstance(limit, str):
        limit = sliding(limit) if "/" in limit or " " in limit else import_string(limit)
    if for_middleware and limit is None:
        raise TypeError("there is no LIMIT, such as '100/minute', which RateLimitMiddleware needs")
    rules = pairs(limit, import_string(key) if isinstance(key, str) else key) if for_middleware else []
    return kind(limiter(of, url, mode), rules, holds=False, **options)


def _changed(*, setting: str, **_: Any) -> None:
    if setting == "REDIS_RL":
        guard.cache_clear()


setting_changed.connect(_changed)


class RateLimitMiddleware:
    """Limits requests by the setting ``REDIS_RL``, in synchronous and in asynchronous stacks.

    It answers as that of `redis_rl.asgi`, and leaves the limiter's answer in ``request.rate_limit``, None for a request
    that is not limited.

    Of ``REDIS_RL``:
        URL: as in `Limiter.from_url`.
        LIMIT: a rate (``"100/minute"``), a rule, or a function of the request (or its path with dots) that returns a
            rule, or None for a request that is not limited. In an asynchronous stack it may be asynchronous.
        KEY: who is limited: a function of the request (or its path with dots); the client's address unless given. See
            `redis_rl.asgi.ClientAddress`.
        MODE: as in `Limiter`.
        PREFIX, WITHOUT_IDENTITY, WHEN_UNAVAILABLE, PROCESSES, TIMEOUT, DENY_CACHE: as in
            `redis_rl.asgi.RateLimitMiddleware`.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
            self._async_guard: AsyncGuard = guard(AsyncGuard, AsyncLimiter, True)
        else:
            self._guard: Guard = guard(Guard, Limiter, True)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Called by Django with each request."""
        if self._is_async:
            return self._decided(request)
        answer = self._guard.ask(request)
        return _with_headers(_refused(request, answer) or self._get_response(request), answer)

    async def _decided(self, request: HttpRequest) -> HttpResponseBase:
        answer = await self._async_guard.ask(request)
        return _with_headers(_refused(request, answer) or await self._get_response(request), answer)


def _refused(request: Any, answer: Answer | AsyncAnswer) -> HttpResponseBase | None:
    request.rate_limit = answer.result
    problem = answer.problem
    if problem is None:
        return None
    return JsonResponse(problem, status=problem["status"], content_type="application/problem+json")


def _with_headers(response: HttpResponseBase, answer: Answer | AsyncAnswer) -> HttpResponseBase:
    for name, value in answer.headers.items():
        response.headers[name] = value
    return response
