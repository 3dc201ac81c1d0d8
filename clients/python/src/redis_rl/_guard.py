"""What the ASGI middleware and the dependency for FastAPI share: asking the limiter, and what decides in its place."""

from __future__ import annotations

import copy
import logging
import time
from typing import Literal

from ._async.limiter import AsyncLimiter
from ._identity import key_for
from ._local import Local
from ._memory import Denials
from ._rates import units
from ._result import AllResult, Result
from ._rules import Lease, Rule

WithoutIdentity = Literal["refuse", "allow"]
WhenUnavailable = Literal["open", "closed", "local"]

NO_IDENTITY = "The request has no address to count by"
UNAVAILABLE = "The rate limiter is not available"

log = logging.getLogger("redis_rl.asgi")


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
        for name, value, choices in (
            ("when_unavailable", when_unavailable, ("open", "closed", "local")),
            ("without_identity", without_identity, ("refuse", "allow")),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
        # As the user's limiter, with another deadline and memory.
        self.limiter = copy.copy(limiter)
        self.limiter._timeout = timeout
        self.limiter._denials = Denials(deny_cache) if units(deny_cache, "deny_cache") else None
        self.prefix = prefix
        self.refuses = without_identity == "refuse"
        self.opens = when_unavailable == "open"
        self._local = Local(processes) if when_unavailable == "local" else None
        self._unavailable = False

    def limited(self, rule: Rule, identity: str | bytes) -> tuple[str | bytes, Rule]:
        """The key and the rule of an identity."""
        rule = rule.held_by() if isinstance(rule, Lease) else rule
        return key_for(self.prefix, rule, identity), rule

    async def decide(self, limited: list[tuple[str | bytes, Rule]]) -> tuple[Result | AllResult | None, Local | None]:
        """The answer, None if the server is unavailable and nothing else decides; and who decided in its place."""
        limiter = self.limiter
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
            if not self._unavailable:
                self._unavailable = True
                what = "let through" if self.opens else "limited in memory" if self._local else "refused"
                log.warning("limiter %r: the server is unavailable, requests are %s: %s", limiter.name, what, error)
            if self._local is None:
                return None, None
            decided = self._local.decide(limited)
            keys = tuple(key for key, _ in limited)
            limiter._counter.count("all" if len(keys) > 1 else "hit", keys, began, decided, source="local")
            return decided, self._local
        if self._unavailable and not limiter._core.breaker.is_open:
            self._unavailable = False
            log.warning("limiter %r: the server is available again", limiter.name)
        return result, None
