"""Asks the limiter about a request, and decides where the server cannot: what the middleware and adapters share."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from .._calls import Key, Pairs, checked, seconds_above_0
from .._identity import ClientAddress, fields_of, key_for
from .._local import Local
from .._protocol import Unavailable, log
from .._rates import whole
from .._result import AllResult, Result, State, decided_here
from .._rules import Lease, Rule
from .io import AsyncKeyOf, AsyncRuleOf, given
from .limiter import AsyncHeldLease, AsyncLimiter

WithoutIdentity = Literal["refuse", "allow"]
WhenUnavailable = Literal["open", "closed", "local"]

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

    def decide(self, limited: Pairs) -> Result | AllResult | None:
        """The answer to a request; None where requests are refused."""
        if self._policy == "local":
            return self._locals.setdefault(os.getpid(), Local(self._processes)).decide(limited)
        return undecided(limited) if self._policy == "open" else None

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


class AsyncGuard:
    """Decides on requests by a limiter, with settings of its own."""

    def __init__(
        self,
        limiter: AsyncLimiter,
        rules: Sequence[tuple[AsyncKeyOf, AsyncRuleOf]] = (),
        *,
        prefix: str = "rl:",
        without_identity: WithoutIdentity = "refuse",
        when_unavailable: WhenUnavailable = "open",
        processes: int = 1,
        timeout: float = 0.25,
        deny_cache: bool = True,
        holds: bool = True,
    ) -> None:
        """``holds``: whether the end of each answer is told, so that a rule may be a lease."""
        if not isinstance(limiter, AsyncLimiter):
            kind = AsyncLimiter.__name__
            raise TypeError(f"the limiter must be of the class {kind}, not {limiter!r}")
        if not isinstance(prefix, str):
            raise TypeError(f"the prefix must be a string, not {prefix!r}")
        for name, value, choices in (
            ("when_unavailable", when_unavailable, ("open", "closed", "local")),
            ("without_identity", without_identity, ("refuse", "allow")),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
        whole(processes, "processes", 1)
        for pair in rules:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise TypeError(f"rules must be pairs of a key function and a rule, not {pair!r}")
            check_function(pair[0], "key")
            if not callable(pair[1]):
                requested(pair[1], holds)
        self._rules = rules
        self._holds = holds
        # As the user's limiter, whose denials it shares, with another deadline.
        self.limiter = copy.copy(limiter)
        self._of = limiter  # As long as it is there, others leave the connections open.
        self.limiter._timeout = seconds_above_0(timeout, "timeout")
        self.limiter._logged_as = ""
        self.limiter._remembers = bool(deny_cache)
        self.prefix = prefix
        self._refuses = without_identity == "refuse"
        chosen = (when_unavailable, processes)
        self._fallback: Fallback = limiter._fallbacks.setdefault(chosen, Fallback(*chosen))

    async def ask(self, request: Any, operation: str | None = None) -> AsyncAnswer:
        """What is to be done with a request. Rules without a name are limits of each ``operation`` by itself."""
        limited: list[tuple[Key, Rule]] = []
        for key_of, rule_of in self._rules:
            rule = rule_of if isinstance(rule_of, Rule) else await given(rule_of(request))
            if rule is None:
                continue
            rule = requested(rule, self._holds)
            identity = await given(key_of(request))
            if identity is not None and not isinstance(identity, str | bytes):
                raise TypeError(f"a key must be str, bytes or None, not {identity!r}")
            if identity:
                key = key_for(rule, identity, prefix=self.prefix, operation=None if rule.name else operation)
                limited.append((key, rule.held_by() if isinstance(rule, Lease) else rule))
            elif self._refuses:
                return AsyncAnswer(problem={"title": NO_IDENTITY, "status": 403})
        if not limited:
            return AsyncAnswer()
        asked_at = time.monotonic()
        result = await self.decide(limited)
        if result is None:
            return AsyncAnswer(problem={"title": UNAVAILABLE, "status": 503})
        kept = []
        for key, rule in limited if result and result.source == "server" else ():
            if isinstance(rule, Lease):
                lease = self.limiter.hold(key, rule)
                lease.keep(asked_at + rule.ms / 1000)
                kept.append(lease)
        # Of several limits that the request passes, one response tells.
        taken: set[str] = fields_of(request).setdefault("redis_rl.policies", set())
        headers, problem, names = result.told(taken)
        taken.update(names)
        return AsyncAnswer(result, problem, headers, kept)

    async def decide(self, limited: Pairs) -> Result | AllResult | None:
        """The answer; None if the server is unavailable and requests are refused meanwhile."""
        limiter, fallback = self.limiter, self._fallback
        began = time.monotonic()
        # What weighs nothing is checked by RL.ALL alone.
        several = len(limited) > 1 or limited[0][1].cost == 0
        try:
            if several:
                result: Result | AllResult = await limiter.all(limited)
            else:
                ((key, rule),) = limited
                result = await limiter.hit(key, rule)
        except Unavailable as error:
            fallback.failed(limiter, error)
            decided = fallback.decide(limited)
            if decided is not None:
                keys = tuple(key for key, _ in limited)
                limiter._counter.count("all" if several else "hit", keys, began, decided)
            return decided
        if result.source == "server":
            fallback.answered(limiter)
        return result


@dataclass
class AsyncAnswer:
    """What is to be done with a request: it is refused where there is a problem, else passed on with the headers."""

    result: Result | AllResult | None = None
    """The limiter's answer; None for a request that is not limited, or that nobody has decided."""
    problem: dict[str, Any] | None = None
    """The body of the response to a request that is refused; ``status`` is its status."""
    headers: dict[str, str] = field(default_factory=dict)
    kept: Sequence[AsyncHeldLease] = ()
    """The leases to give back when the response has been sent."""

    async def end(self) -> None:
        """The response has been sent. Calling it again does nothing."""
        kept, self.kept = self.kept, ()
        for lease in kept:
            await lease.end()
