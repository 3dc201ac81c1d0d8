"""What the server answered, as values, and as header fields of draft-ietf-httpapi-ratelimit-headers-11 (RFC 9651).

Times are rounded up to seconds, so that a client that waits as long as it is told is let in.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any, Literal, Self

from ._protocol import Error
from ._rules import Lease, Policy, Rule

# An integer of a structured field has at most 15 digits. A larger quota is understated, never overstated.
MAX_INTEGER = 10**15 - 1

PROBLEM_TYPE = "https://iana.org/assignments/http-problem-types#quota-exceeded"
PROBLEM_TITLE = "Request cannot be satisfied as assigned quota has been exceeded"

Source = Literal["server", "memory", "local", "open"]
"""Who decided: the server; a denial in memory; while the server is unavailable this process, or nobody."""


class Denied(Error):
    """A request did not fit, where a call has no other way to say so (a lease, a reservation).

    Attributes:
        result: the answer; ``result.retry_after`` says when to ask again.
    """

    def __init__(self, result: Result | AllResult) -> None:
        # The result alone, so that the exception can be pickled.
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        wait = self.result.retry_after
        return "denied: it can never fit" if wait is None else f"denied: it fits in {wait} s"


# The names of FULL, which are bytes unless the client decodes replies.
_NAMES = (
    *("allowed", "limit", "used", "remaining", "retry-after-ms", "next-after-ms", "reset-after-ms"),
    *("window-ms", "at-ms"),
)
_by_text = itemgetter(*_NAMES)
_by_bytes = itemgetter(*(name.encode() for name in _NAMES))
_INTEGERS = {int}
_figures = attrgetter(*(name.replace("-", "_") for name in _NAMES), "wait_ms")


def unreadable(reply: object) -> ValueError:
    """What is raised for a reply that is not one of ours. It is never taken for "allowed"."""
    return ValueError(f"the server's reply cannot be read: {reprlib.repr(reply)}")


def wait_of(ms: int) -> int | None:
    """A wait as the server tells it: -1 is never."""
    return None if ms < 0 else ms


def _seconds(ms: int | None) -> int | None:
    return None if ms is None else -(-ms // 1000)


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
    """The server's time of the decision, or of a turn that is yet to come, in milliseconds since the epoch."""
    wait_ms: int = 0
    """Milliseconds until the turn that `turn` was given."""

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
    def read(cls, reply: Any, turns: bool = False) -> State:
        """Reads the map of FULL: a dict over RESP3, a flat array over RESP2. ``turns``: that of a call with WITHIN."""
        try:
            fields = reply if isinstance(reply, Mapping) else dict(zip(reply[::2], reply[1::2], strict=True))
            is_bytes = b"allowed" in fields
            values = _by_bytes(fields) if is_bytes else _by_text(fields)
            turn = fields[b"wait-ms" if is_bytes else "wait-ms"] if turns else 0
        except (KeyError, TypeError, ValueError):
            raise unreadable(reply) from None
        if set(map(type, values)) != _INTEGERS or type(turn) is not int or turn < 0:
            raise unreadable(reply)
        allowed, limit, used, remaining, retry, more, reset, window, at = values
        return cls(
            allowed == 1, limit, used, remaining, wait_of(retry), wait_of(more), wait_of(reset), window, at, turn
        )

    def later(self, ms: int) -> Self:
        """The same state some milliseconds later, if nothing else has happened."""
        changes: dict[str, Any] = {"at_ms": self.at_ms + ms}
        for name in ("retry_after_ms", "next_after_ms", "reset_after_ms"):
            wait = getattr(self, name)
            changes[name] = None if wait is None else max(wait - ms, 0)
        if isinstance(self, Result | AllResult):
            changes["each"] = tuple(state.later(ms) for state in self.each)
        return replace(self, **changes)


Told = tuple[Policy, State | None, bool]
"""A policy, its present state as far as it is known, and whether it denies."""


@dataclass(frozen=True, slots=True)
class Decision(State):
    """What the answers to one rule and to several have in common. True if the request was allowed."""

    source: Source = field(default="server", kw_only=True)
    """Who decided: ``"server"``; ``"memory"``, a denial that was remembered; and where a middleware could not reach
    the server ``"local"``, this process' own memory, or ``"open"``, nobody: the request was let through. What the
    server has not decided it has not counted either."""

    def _policies(self) -> list[Told]:
        """The policies, for headers. A window whose state was not asked for has none."""
        raise NotImplementedError

    @property
    def violated(self) -> list[str]:
        """The names of the policies that the request did not fit into."""
        return [policy.name for policy, _, denies in self._named() if denies]

    def headers(self) -> dict[str, str]:
        """The HTTP fields RateLimit-Policy, RateLimit and (only if denied, and it can fit) Retry-After.

        After draft-ietf-httpapi-ratelimit-headers-11: one policy for each window, ``t`` is the seconds until more
        quota is there, rounded up.

        Returns:
            The fields; none where nobody decided.
        """
        return self.told()[0]

    def problem(self) -> dict[str, Any] | None:
        """The problem document of a denial, for a body of type application/problem+json; None if it was allowed."""
        return self.told()[1]

    def told(self, taken: Collection[str] = ()) -> tuple[dict[str, str], dict[str, Any] | None, list[str]]:
        """For adapters: the fields, the problem document, and the names of the policies, of which none is taken."""
        items, problem = self._named(taken), None
        if not self.allowed:
            violated = [policy.name for policy, _, denies in items if denies]
            problem = {"type": PROBLEM_TYPE, "title": PROBLEM_TITLE, "status": 429, "violated-policies": violated}
        fields = {} if self.source == "open" else _fields(items, None if self.allowed else self.retry_after)
        return fields, problem, [policy.name for policy, _, _ in items]

    def _named(self, taken: Collection[str] = ()) -> list[Told]:
        """The policies, of which those with a name that was there before get a number."""
        names, items = set(taken), []
        for policy, state, denies in self._policies():
            name, number = policy.name, 1
            while name in names:
                number += 1
                name = f"{policy.name}-{number}"
            names.add(name)
            items.append((policy if number == 1 else replace(policy, name=name), state, denies))
        return items


@dataclass(frozen=True, slots=True)
class Result(Decision):
    """The answer to one rule: the state of its binding window, and of each window.

    The binding window is the one that denies with the longest wait or, if the request is allowed, the one with the
    fewest units left. A result is true if the request was allowed.
    """

    each: tuple[State, ...] = field(default=(), kw_only=True)
    """Every window of the rule, shortest first. With ``force``, and in `Limiter.all`, only the binding one."""
    rule: Rule = field(kw_only=True, repr=False)
    """The rule that was asked."""

    @property
    def holder(self) -> str | bytes | None:
        """Who holds the lease, if the rule is one."""
        return self.rule.holder if isinstance(self.rule, Lease) else None

    def _policies(self) -> list[Told]:
        policies = self.rule.policies()
        known = {state.window_ms: state for state in self.each}
        states = [self.each[0] if len(policies) == 1 else known.get(policy.window_ms or 0) for policy in policies]
        return [(one, state, state is not None and not state) for one, state in zip(policies, states, strict=True)]

    @classmethod
    def of(cls, rule: Rule, states: Sequence[State]) -> Result:
        """The result of a rule whose windows are in these states."""
        # It is allowed if all of them allow, as one that denies binds before those that do not.
        binding = states[0] if len(states) == 1 else _binding(states)
        return cls(*_figures(binding), each=tuple(states), rule=rule)


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
class AllResult(Decision):
    """The answer to several rules at once: the state of the rule that binds, and a result of each.

    ``allowed``, ``remaining`` and ``retry_after`` are those of the whole call: if it was denied, nothing was counted
    anywhere.
    """

    index: int = field(kw_only=True)
    """The position of the rule that binds, from 0."""
    each: tuple[Result, ...] = field(kw_only=True)
    """One result a rule, in the order of the call; of several windows, the binding one."""

    def _policies(self) -> list[Told]:
        # A rule that is forced never denies.
        return [
            (policy, state, denies and not result.rule.force)
            for result in self.each
            for policy, state, denies in result._policies()
        ]

    @classmethod
    def of(cls, each: Sequence[Result], index: int, **known: Any) -> AllResult:
        """The result of several, of which one binds. ``known``: what it does not say of the whole call."""
        return replace(cls(*_figures(each[index]), index=index, each=tuple(each)), **known)


def decided_here(answers: Sequence[tuple[Rule, Sequence[State]]], source: Source) -> Result | AllResult:
    """The answer to a request on whose rules this process has decided."""
    each = [replace(Result.of(rule, states), source=source) for rule, states in answers]
    if len(each) == 1:
        return each[0]
    # A rule that is forced never denies.
    judged = [replace(one, allowed=True, retry_after_ms=0) if one.rule.force else one for one in each]
    bound = _binding(judged)
    known = {"allowed": bound.allowed, "remaining": bound.remaining, "retry_after_ms": bound.retry_after_ms}
    index = next(index for index, one in enumerate(judged) if one is bound)
    return AllResult.of(each, index, source=source, **known)


@dataclass(frozen=True, slots=True)
class Refunded:
    """The answer to a refund. True if anything was given back."""

    refunded: int
    """Units given back."""
    used: int
    """Units still in use in the first (shortest) window."""
    ttl: int
    """Seconds: the first window's length, or what is left of it (fixed), or until all is free (throttle)."""

    def __bool__(self) -> bool:
        return self.refunded > 0


def _fields(items: Sequence[Told], wait: int | None) -> dict[str, str]:
    """RateLimit-Policy, RateLimit and, for a denied request that will fit one day, Retry-After."""
    policies, limits = [], []
    for named, state, _ in items:
        # A string of a structured field is one of JSON, as names are printable ASCII.
        name, unit, window_ms = json.dumps(named.name), named.unit, named.window_ms
        policy = f"{name};q={min(named.limit, MAX_INTEGER)}"
        if unit is not None and unit != "requests":
            policy += f";qu={json.dumps(unit)}"
        # There are no fractions of a second in w, and it is optional.
        if window_ms is not None and window_ms % 1000 == 0:
            policy += f";w={window_ms // 1000}"
        policies.append(policy)
        if state is None:
            continue
        limit = f"{name};r={min(state.remaining, MAX_INTEGER)}"
        # No t if nothing is used (0) or no more will ever come (None). Retry-After should not be earlier than t, so a
        # policy that did not deny has no t that is later than Retry-After.
        t = state.next_after
        if t and (wait is None or t <= wait):
            limit += f";t={t}"
        limits.append(limit)
    fields = {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(limits)}
    if wait is not None:
        fields["Retry-After"] = str(wait)
    return fields
