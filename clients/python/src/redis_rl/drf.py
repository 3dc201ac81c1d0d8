"""Throttles for Django REST framework: its own, with decisions on the server, and its ``DEFAULT_THROTTLE_RATES``.

::

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": ["redis_rl.drf.UserRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"user": "100/min"},
    }
    REDIS_RL = {"URL": "redis://localhost"}

The setting is that of `redis_rl.django.RateLimitMiddleware`. It is checked when this module is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from rest_framework import throttling
from rest_framework.exceptions import APIException

from . import django
from ._identity import key_for
from ._result import AllResult, Result
from ._rules import Rule, sliding
from ._sync.guard import UNAVAILABLE, Guard
from ._sync.limiter import Limiter

if TYPE_CHECKING:
    # rest_framework.views imports this module.
    from rest_framework.request import Request
    from rest_framework.views import APIView

__all__ = ["AnonRateThrottle", "ScopedRateThrottle", "SimpleRateThrottle", "Unavailable", "UserRateThrottle"]


class Unavailable(APIException):  # type: ignore[misc]
    """The server is unavailable, and ``WHEN_UNAVAILABLE`` is ``"closed"``: status 503, with Retry-After."""

    status_code = 503
    default_detail = UNAVAILABLE
    default_code = "unavailable"
    wait = 1


class SimpleRateThrottle(throttling.SimpleRateThrottle):  # type: ignore[misc]
    """As that of the framework, with the same methods for subclasses to replace; no more than the rate pass."""

    result: Result | AllResult | None = None
    """The answer to the request, None where it was not asked for."""

    def get_rule(self) -> Rule:
        """The rule of the rate, a sliding one."""
        rate: Any = (self.num_requests, self.duration)
        return sliding(rate)

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Decides on a request, and counts it if it fits."""
        if self.rate is None:
            return True
        self.key = self.get_cache_key(request, view)
        if self.key is None:
            return True
        guard: Guard = django.guard(Guard, Limiter, False)
        rule = self.get_rule()
        self.result = guard.decide([(key_for(rule, self.key, prefix=guard.prefix), rule)])
        if self.result is None:
            raise Unavailable
        return self.throttle_success() if self.result else self.throttle_failure()

    def throttle_success(self) -> Literal[True]:
        """Called for a request that is allowed."""
        return True

    def wait(self) -> float | None:
        """Seconds until the request fits, exactly; None if never."""
        ms = None if self.result is None else self.result.retry_after_ms
        return None if ms is None else ms / 1000


class AnonRateThrottle(throttling.AnonRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limits requests of those who have not signed in, by their address."""


class UserRateThrottle(throttling.UserRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limits requests of users, and by address those who have not signed in."""


class ScopedRateThrottle(throttling.ScopedRateThrottle, SimpleRateThrottle):  # type: ignore[misc]
    """Limits requests of views by their ``throttle_scope``."""


# What is wrong with the setting is said at the start, and not with the first request.
django.guard(Guard, Limiter, False)
