"""What the middleware and adapters share that does no I/O: who decides while the server is unavailable, and checks."""

from __future__ import annotations

import math
import os
import time
from collections.abc import MutableMapping
from typing import Any, Literal, TypedDict

from ._calls import Pairs, checked
from ._identity import ClientAddress
from ._local import Local
from ._protocol import log
from ._result import AllResult, Result, State, decided_here
from ._rules import Lease, Rule

WithoutIdentity = Literal["refuse", "allow"]
WhenUnavailable = Literal["open", "closed", "local"]

Scope = MutableMapping[str, Any]
Identity = str | bytes | None

NO_IDENTITY = "The request has no address to count by"
UNAVAILABLE = "The rate limiter is not available"


class Options(TypedDict, total=False):
    """The options of all middleware and adapters: see `redis_rl.asgi.RateLimitMiddleware`."""

    prefix: str
    without_identity: WithoutIdentity
    when_unavailable: WhenUnavailable
    processes: int
    timeout: float
    deny_cache: bool


class Fallback:
    """What decides while the server is unavailable. The adapters of a limiter that chose the same share one."""

    def __init__(self, policy: WhenUnavailable, processes: int) -> None:
        self._policy, self._processes = policy, processes
        # By process: a fork may leave the one before locked.
        self._locals: dict[int, Local] = {}
        self._what = {"open": "let through", "local": "limited in memory", "closed": "refused"}[policy]
        self._is_away = False
        self._told_at = -math.inf

    @property
    def local(self) -> Local | None:
        """The memory of this process, where it decides."""
        return self._locals.setdefault(os.getpid(), Local(self._processes)) if self._policy == "local" else None

    def failed(self, limiter: Any, error: Exception) -> None:
        """The server was unavailable to a request."""
        if limiter._core.breaker.is_open(limiter._timeout):
            if not self._is_away:
                self._is_away = True
                log.warning(
                    "limiter %r: the server is unavailable, requests are %s: %s", limiter.name, self._what, error
                )
        elif time.monotonic() > self._told_at + 60:
            # Not all of them: of a crowd that is too large, or of a slot on the move.
            self._told_at = time.monotonic()
            log.warning(
                "limiter %r: requests that are not answered in time are %s: %s", limiter.name, self._what, error
            )

    def answered(self, limiter: Any) -> None:
        """The server has answered a request. In a cluster all of its nodes have to."""
        if self._is_away and not limiter._core.breaker.is_open(limiter._timeout):
            self._is_away = False
            log.warning("limiter %r: the server is available again", limiter.name)


def undecided(limited: Pairs) -> Result | AllResult:
    """The answer to a request that is let through, with nothing known of its keys."""
    at_ms, answers = round(time.time() * 1000), []
    for _, rule in limited:
        now = rule.now()
        policy = now.policies()[0]
        state = State(True, policy.limit, 0, policy.limit, 0, 0, 0, policy.window_ms or 0, at_ms)
        answers.append((now, [state]))
    return decided_here(answers, "open")


def pairs(rule: Any, key: Any, rules: Any = ()) -> list[tuple[Any, Any]]:
    if (rule is None) == (not rules) or (rules and key is not None):
        raise TypeError("the middleware takes either rule (and key) or rules")
    return list(rules) if rule is None else [(ClientAddress() if key is None else key, rule)]


def check_function(function: object, what: str) -> None:
    if not callable(function):
        raise TypeError(f"{what} must be a function, not {function!r}")


def requested(rule: Any, holds: bool) -> Rule:
    if isinstance(checked(rule), Lease):
        if not holds:
            raise TypeError("a lease is held by RateLimitMiddleware of redis_rl.asgi and redis_rl.wsgi alone")
        if rule.holder is not None:
            raise TypeError("a lease of requests has no holder: each request is one of its own")
    return rule  # type: ignore[no-any-return]
