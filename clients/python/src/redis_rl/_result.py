"""What the server answered, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ._http import Item, ceil_seconds
from ._http import headers as http_headers
from ._rules import Lease, Rule


class Denied(Exception):
    """A request did not fit, where a call has no other way to say so (a lease, a reservation).

    Attributes:
        result: the answer; ``result.retry_after`` says when to ask again.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(
            "denied: it can never fit" if result.retry_after is None else f"denied: it fits in {result.retry_after} s"
        )
        self.result = result


# The names of FULL, which are bytes unless the client decodes replies.
_NAMES = (
    *("allowed", "limit", "used", "remaining", "retry-after-ms", "next-after-ms", "reset-after-ms"),
    *("window-ms", "at-ms"),
)
_by_text = itemgetter(*_NAMES)
_by_bytes = itemgetter(*(name.encode() for name in _NAMES))


def _wait(ms: int) -> int | None:
    return None if ms < 0 else ms


def _seconds(ms: int | None) -> int | None:
    return None if ms is None else ceil_seconds(ms)


@dataclass(frozen=True, slots=True)
class State:
    """One window after a call. Units are what the rule counts; times are from ``at_ms``."""

    allowed: bool
    """Whether the request fitted into this window."""
    limit: int
    """The window's limit, in units."""
    used: int
    """Units in use."""
    remaining: int
    """Units free: limit - used, at least 0."""
    retry_after_ms: int | None
    """Milliseconds until the same call fits: 0 if it was allowed, None if never. Exact."""
    next_after_ms: int | None
    """Milliseconds until more is free than now: 0 if nothing is used, None if never."""
    reset_after_ms: int | None
    """Milliseconds until everything is free: 0 if nothing is used, None if never."""
    window_ms: int
    """Length of the window (the lease, or the time in which an empty bucket fills) in milliseconds."""
    at_ms: int
    """The server's time of the decision, in milliseconds since the epoch."""

    @property
    def retry_after(self) -> int | None:
        """Seconds until the same call fits, rounded up: 0 if it was allowed, None if never."""
        return _seconds(self.retry_after_ms)

    @property
    def next_after(self) -> int | None:
        """Seconds until more is free than now, rounded up: 0 if nothing is used, None if never."""
        return _seconds(self.next_after_ms)

    @property
    def reset_after(self) -> int | None:
        """Seconds until everything is free, rounded up: 0 if nothing is used, None if never."""
        return _seconds(self.reset_after_ms)

    def __bool__(self) -> bool:
        return self.allowed

    @classmethod
    def read(cls, reply: Any) -> State:
        """Reads the map of FULL: a dict over RESP3, a flat array over RESP2."""
        fields = reply if isinstance(reply, Mapping) else dict(zip(reply[::2], reply[1::2], strict=True))
        values = _by_bytes(fields) if b"allowed" in fields else _by_text(fields)
        allowed, limit, used, remaining, retry, following, reset, window, at = values
        return cls(allowed == 1, limit, used, remaining, _wait(retry), _wait(following), _wait(reset), window, at)


@dataclass(frozen=True, slots=True)
class Result(State):
    """The answer to one rule: the state of its binding window, and of each window.

    The binding window is the one that denies with the longest wait or, if the request is allowed, the one with the
    fewest units left. A result is true if the request was allowed.
    """

    each: tuple[State, ...] = ()
    """Every window of the rule, shortest first. With ``force``, and in `Limiter.all`, only the binding one."""
    rule: Rule = field(kw_only=True, repr=False)
    """The rule that was asked."""
    fallback: str = field(default="default", kw_only=True, repr=False)

    @property
    def holder(self) -> str | bytes | None:
        """Who holds the lease, if the rule is one."""
        return self.rule.holder if isinstance(self.rule, Lease) else None

    @property
    def violated(self) -> list[str]:
        """The names of the policies that the request did not fit into."""
        return [
            item.name for item, state in zip(self.items(), self._states(), strict=True) if not (state or state is None)
        ]

    def _states(self) -> list[State | None]:
        known: dict[int, State] = {state.window_ms: state for state in self.each}
        policies = self.rule.policies(self.fallback)
        if len(policies) == 1:
            return [self.each[0]]
        return [known.get(policy.window_ms or 0) for policy in policies]

    def items(self) -> list[Item]:
        """The rule's policies with their state, for headers. A window whose state was not asked for has none."""
        return [
            Item(
                policy.name,
                policy.limit,
                policy.window_ms,
                policy.unit,
                None if state is None else state.remaining,
                None if state is None else state.next_after_ms,
            )
            for policy, state in zip(self.rule.policies(self.fallback), self._states(), strict=True)
        ]

    def headers(self, *, partition_key: bytes | None = None) -> dict[str, str]:
        """The HTTP fields RateLimit-Policy, RateLimit and (only if denied, and it can fit) Retry-After.

        After draft-ietf-httpapi-ratelimit-headers-11: one policy for each window, ``t`` is the seconds until more
        quota is there, rounded up.

        Args:
            partition_key: sent as ``pk`` with each item, for clients to tell their quotas apart.
        """
        return http_headers(
            self.items(),
            allowed=self.allowed,
            retry_after_ms=self.retry_after_ms,
            partition_key=partition_key,
        )

    @classmethod
    def of(cls, rule: Rule, states: Sequence[State], fallback: str = "default") -> Result:
        """The result of a rule whose windows are in these states."""
        # It is allowed if all of them allow, as one that denies binds before those that do not.
        binding = states[0] if len(states) == 1 else _binding(states)
        return cls(
            binding.allowed,
            binding.limit,
            binding.used,
            binding.remaining,
            binding.retry_after_ms,
            binding.next_after_ms,
            binding.reset_after_ms,
            binding.window_ms,
            binding.at_ms,
            tuple(states),
            rule=rule,
            fallback=fallback,
        )


def _binding(states: Sequence[State]) -> State:
    """The window that binds, as the server picks it for its one-map reply."""

    def free(state: State) -> int:
        return state.limit - state.used

    def wait(state: State) -> float:
        return float("inf") if state.retry_after_ms is None else state.retry_after_ms

    denying = [state for state in states if not state]
    if denying:
        return min(denying, key=lambda state: (-wait(state), free(state), state.window_ms))
    return min(states, key=lambda state: (free(state), state.window_ms))


@dataclass(frozen=True, slots=True)
class AllResult:
    """The answer to several rules at once. True if all of them had room."""

    allowed: bool
    """Whether every rule had room. If not, nothing was counted anywhere."""
    index: int
    """The position of the rule that binds, from 0."""
    remaining: int
    """Units of that rule that are free after the call."""
    retry_after_ms: int | None
    """Milliseconds until the rules that deny have room: 0 if allowed, None if one never fits."""
    results: tuple[Result, ...]
    """One result a rule, in the order of the call; of several windows, the binding one."""

    @property
    def retry_after(self) -> int | None:
        """Seconds until the rules that deny have room, rounded up: 0 if allowed, None if one never fits."""
        return _seconds(self.retry_after_ms)

    @property
    def at_ms(self) -> int:
        """The server's time of the decision, in milliseconds since the epoch."""
        return self.results[0].at_ms

    @property
    def violated(self) -> list[str]:
        """The names of the policies that the request did not fit into."""
        return [name for result in self.results for name in result.violated]

    def __bool__(self) -> bool:
        return self.allowed

    def headers(self, *, partition_key: bytes | None = None) -> dict[str, str]:
        """As `Result.headers`, with the policies of all rules. Those without a name are policy-0, policy-1, ..."""
        return http_headers(
            [item for result in self.results for item in result.items()],
            allowed=self.allowed,
            retry_after_ms=self.retry_after_ms,
            partition_key=partition_key,
        )


@dataclass(frozen=True, slots=True)
class Refunded:
    """The answer to a refund. True if anything was given back."""

    units: int
    """Units given back."""
    used: int
    """Units still in use in the first (shortest) window."""
    ttl: int
    """Seconds: the first window's length, or what is left of it (fixed), or until all is free (throttle)."""

    def __bool__(self) -> bool:
        return self.units > 0
