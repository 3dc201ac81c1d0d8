"""Rate limits for Django: the setting ``REDIS_RL``, and a middleware. For its REST framework see `redis_rl.drf`.

::

    REDIS_RL = {"URL": "redis://localhost", "LIMIT": "100/minute"}
    MIDDLEWARE = ["redis_rl.django.RateLimitMiddleware", ...]
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils.module_loading import import_string

from ._async.guard import AsyncAnswer, AsyncGuard
from ._async.limiter import AsyncLimiter
from ._client import keys_from
from ._identity import ClientAddress, key_for
from ._rates import Rate
from ._rules import Rule, fixed, sliding, throttle
from ._sync.guard import Answer, Guard, Options
from ._sync.limiter import Limiter

__all__ = ["ClientAddress", "RateLimitMiddleware", "clear", "key_for"]

RULES: dict[str, Callable[..., Rule]] = {"sliding": sliding, "fixed": fixed, "throttle": throttle}
GUARDS = {name.upper() for name in Options.__annotations__}
NAMES = {"URL", "RULE", "LIMIT", "KEY", "TRUSTED_PROXIES", "IPV6_PREFIX", "MODE", *GUARDS}


def given() -> dict[str, Any]:
    options = getattr(settings, "REDIS_RL", None)
    if not isinstance(options, dict) or not isinstance(options.get("URL"), str):
        raise ImproperlyConfigured('REDIS_RL must be a dict such as {"URL": "redis://localhost"}')
    unknown = sorted(set(options) - NAMES)
    if unknown:
        raise ImproperlyConfigured(f"REDIS_RL has no {', '.join(unknown)}, but {', '.join(sorted(NAMES))}")
    return options


def rule(rate: Rate) -> Rule:
    kind = given().get("RULE", "sliding")
    if kind not in RULES:
        raise ImproperlyConfigured(f"RULE of REDIS_RL must be one of {', '.join(RULES)}, not {kind!r}")
    return RULES[kind](rate)


def limited() -> tuple[Any, Any]:
    options = given()
    limit, key = options.get("LIMIT"), options.get("KEY")
    if limit is None:
        raise ImproperlyConfigured("REDIS_RL has no LIMIT, such as '100/minute', which RateLimitMiddleware needs")
    if isinstance(limit, str):
        limit = rule(limit) if "/" in limit or " " in limit else import_string(limit)
    if "KEY" not in options:
        key = ClientAddress(options.get("TRUSTED_PROXIES", ()), options.get("IPV6_PREFIX", 64))
    return import_string(key) if isinstance(key, str) else key, limit


@cache
def limiter(kind: Any) -> Any:
    """The process' limiter for threads or for asyncio."""
    options = given()
    return kind.from_url(options["URL"], mode=options.get("MODE", "auto"), name="django")


@cache
def guard(kind: Any, of: Any, for_middleware: bool) -> Any:
    """What decides on requests, by the settings. ImproperlyConfigured says what is wrong with them."""
    options = {name.lower(): value for name, value in given().items() if name in GUARDS}
    try:
        rule("1/s")
        return kind(limiter(of), [limited()] if for_middleware else [], holds=False, **options)
    except (TypeError, ValueError, ImportError) as error:
        raise ImproperlyConfigured(f"REDIS_RL: {error}") from error


def _changed(*, setting: str, **_: Any) -> None:
    if setting == "REDIS_RL":
        limiter.cache_clear()
        guard.cache_clear()


setting_changed.connect(_changed)


def clear() -> None:
    """Gives everyone the whole quota back: for tests that have used ``cache.clear()``.

    Looks through all keys of the database. Denials that other processes remember end within a second.
    """
    used: Limiter = limiter(Limiter)
    prefix = given().get("PREFIX", "rl:")
    client = used._core._client.client
    for key in client.scan_iter(match=keys_from(prefix), count=1000):
        client.unlink(key)
    for each in (Limiter, AsyncLimiter):
        limiter(each)._denials.clear()


class RateLimitMiddleware:
    """Limits requests by the setting ``REDIS_RL``, in synchronous and in asynchronous stacks.

    It answers as that of `redis_rl.asgi`, and leaves the limiter's answer in ``request.rate_limit``, None for a request
    that is not limited.

    Of ``REDIS_RL``:
        URL: as in `Limiter.from_url`.
        LIMIT: a rate (``"100/minute"``), a rule, or a function of the request (or its path with dots) that returns a
            rule, or None for a request that is not limited. In an asynchronous stack it may be asynchronous.
        RULE: the kind of rule of a rate, ``"sliding"`` unless given, ``"fixed"`` or ``"throttle"``.
        KEY: who is limited: a function of the request (or its path with dots); the client's address unless given.
        TRUSTED_PROXIES, IPV6_PREFIX: as in `redis_rl.asgi.ClientAddress`.
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
