"""What the ASGI middleware and the dependency for FastAPI share: asking the limiter, and what decides in its place."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from typing import Any, Literal

from ._async.limiter import AsyncLimiter
from ._calls import checked, seconds_above_0
from ._identity import key_for
from ._local import Local
from ._rates import units
from ._result import AllResult, Result
from ._rules import Lease, Rule

WithoutIdentity = Literal["refuse", "allow"]
WhenUnavailable = Literal["open", "closed", "local"]

Scope = MutableMapping[str, Any]
Identity = str | bytes | None
KeyOf = Callable[[Scope], Identity | Awaitable[Identity]]
RuleOf = Rule | Callable[[Scope], Rule | Awaitable[Rule | None] | None]

NO_IDENTITY = "The request has no address to count by"
UNAVAILABLE = "The rate limiter is not available"

log = logging.getLogger("redis_rl.asgi")


class Fallback:
    """What decides while the server is unavailable. The adapters of a limiter that chose the same share one."""

    def __init__(self, policy: WhenUnavailable, processes: int) -> None:
        self.local = Local(processes) if policy == "local" else None
        self._what = {"open": "let through", "local": "limited in memory", "closed": "refused"}[policy]
        self._is_away = False
        self._told_at = -math.inf

    def failed(self, limiter: AsyncLimiter, error: Exception) -> None:
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

    def answered(self, limiter: AsyncLimiter) -> None:
        """The server has answered a request. In a cluster all of its nodes have to."""
        if self._is_away and not limiter._core.breaker.is_open(limiter._timeout):
            self._is_away = False
            log.warning("limiter %r: the server is available again", limiter.name)


class Guard:
    """Decides on requests by a limiter, with settings of its own."""

    def __init__(
        self,
        limiter: AsyncLimiter,
        *,
        prefix: str,
        without_identity: WithoutIdentity,
        when_unavailable: WhenUnavailable,
        processes: int,
        timeout: float,
        deny_cache: int,
    ) -> None:
        if not isinstance(limiter, AsyncLimiter):
            raise TypeError(f"an AsyncLimiter is needed, not {limiter!r}")
        if not isinstance(prefix, str):
            raise TypeError(f"the prefix must be a string, not {prefix!r}")
        for name, value, choices in (
            ("when_unavailable", when_unavailable, ("open", "closed", "local")),
            ("without_identity", without_identity, ("refuse", "allow")),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
        units(processes, "processes", 1)
        # As the user's limiter, whose denials it shares, with another deadline.
        self.limiter = copy.copy(limiter)
        self.limiter._timeout = seconds_above_0(timeout, "timeout")
        self.limiter._logged_as = ""
        self.limiter._remembers = units(deny_cache, "deny_cache") > 0
        limiter._denials.entries = max(limiter._denials.entries, deny_cache)
        self.prefix = prefix
        self.refuses = without_identity == "refuse"
        self._opens = when_unavailable == "open"
        chosen = (when_unavailable, processes)
        if chosen not in limiter._fallbacks:
            limiter._fallbacks[chosen] = Fallback(when_unavailable, processes)
        self._fallback: Fallback = limiter._fallbacks[chosen]

    def limited(self, rule: Rule, identity: str | bytes) -> tuple[str | bytes, Rule]:
        """The key and the rule of an identity."""
        rule = rule.held_by() if isinstance(rule, Lease) else rule
        return key_for(rule, identity, prefix=self.prefix), rule

    async def decide(self, limited: list[tuple[str | bytes, Rule]]) -> Result | AllResult | None:
        """The answer; None if the server is unavailable and requests are refused meanwhile."""
        limiter, fallback = self.limiter, self._fallback
        began = time.monotonic()
        try:
            if len(limited) > 1:
                result: Result | AllResult = await limiter.all(limited)
            else:
                ((key, rule),) = limited
                result = await limiter.hit(key, rule)
        except Exception as error:
            if not limiter.is_unavailable(error):
                raise
            fallback.failed(limiter, error)
            if fallback.local is not None:
                result = fallback.local.decide(limited)
            elif self._opens:
                result = _undecided(limited)
            else:
                return None
            keys = tuple(key for key, _ in limited)
            limiter._counter.count("all" if len(keys) > 1 else "hit", keys, began, result)
            return result
        if result.source == "server":
            fallback.answered(limiter)
        return result

    def release(self, key: str | bytes, rule: Lease) -> None:
        """Ends a lease that was taken in this process' memory."""
        if self._fallback.local is not None and rule.holder is not None:
            self._fallback.local.release(key, rule.holder)


def _undecided(limited: list[tuple[str | bytes, Rule]]) -> Result | AllResult:
    rules, at_ms = [rule for _, rule in limited], round(time.time() * 1000)
    results = [Result.undecided(rule, at_ms) for rule in rules]
    if len(results) == 1:
        return results[0]
    return replace(
        AllResult.of(rules, results, allowed=True, index=0, remaining=results[0].remaining, retry=0), source="open"
    )


def check_rule(rule: object) -> None:
    """TypeError unless it is the rule of a request, or a function of the request that may return one."""
    if not callable(rule):
        requested(rule)


def check_function(function: object, what: str) -> None:
    """TypeError unless it can be called."""
    if not callable(function):
        raise TypeError(f"{what} must be a function, not {function!r}")


def requested(rule: Any) -> Rule:
    """The rule of a request, or TypeError."""
    if isinstance(checked(rule), Lease) and rule.holder is not None:
        raise TypeError("a lease of requests has no holder: each request is one of its own")
    return rule  # type: ignore[no-any-return]


async def rule_for(scope: Scope, rule: RuleOf) -> Rule | None:
    """The rule of a request, None if it is not limited."""
    if isinstance(rule, Rule):
        return rule
    found = rule(scope)
    if inspect.isawaitable(found):
        found = await found
    return None if found is None else requested(found)


async def identity_for(scope: Scope, key: KeyOf) -> Identity:
    """Who a request counts for, None if that is not known."""
    identity = key(scope)
    if inspect.isawaitable(identity):
        identity = await identity
    if identity is not None and not isinstance(identity, str | bytes):
        raise TypeError(f"a key must be str, bytes or None, not {identity!r}")
    return identity or None
