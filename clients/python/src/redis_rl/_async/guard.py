"""Asks the limiter about a request: what the middleware and adapters have in common."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .._calls import Key, Pairs, seconds_above_0
from .._guard import (
    NO_IDENTITY,
    UNAVAILABLE,
    Fallback,
    WhenUnavailable,
    WithoutIdentity,
    check_function,
    requested,
    undecided,
)
from .._identity import fields_of, key_for
from .._protocol import Unavailable
from .._rates import whole
from .._result import AllResult, Result
from .._rules import Lease, Rule
from .io import AsyncKeyOf, AsyncRuleOf, given
from .limiter import AsyncHeldLease, AsyncLimiter


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
        self._opens = when_unavailable == "open"
        chosen = (when_unavailable, processes)
        self._fallback: Fallback = limiter._fallbacks.setdefault(chosen, Fallback(*chosen))

    async def ask(self, request: Any, operation: str | None = None) -> AsyncAnswer:
        """What is to be done with a request.

        Args:
            request: what the functions for keys and rules are called with.
            operation: where it goes, by which rules without a name are limits of their own.
        """
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
        try:
            if len(limited) > 1:
                result: Result | AllResult = await limiter.all(limited)
            else:
                ((key, rule),) = limited
                result = await limiter.hit(key, rule)
        except Unavailable as error:
            fallback.failed(limiter, error)
            if fallback.local is not None:
                result = fallback.local.decide(limited)
            elif self._opens:
                result = undecided(limited)
            else:
                return None
            keys = tuple(key for key, _ in limited)
            limiter._counter.count("all" if len(keys) > 1 else "hit", keys, began, result)
            return result
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
