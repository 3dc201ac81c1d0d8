"""Header fields of draft-ietf-httpapi-ratelimit-headers-11, as structured fields (RFC 9651).

Times are rounded up to seconds, so that a client that waits as long as it is told is let in.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ._rules import Policy

# An integer of a structured field has at most 15 digits. A larger quota is understated, never overstated.
MAX_INTEGER = 10**15 - 1

PROBLEM_TYPE = "https://iana.org/assignments/http-problem-types#quota-exceeded"
PROBLEM_TITLE = "Request cannot be satisfied as assigned quota has been exceeded"


class State(Protocol):
    """What the fields tell of a window."""

    @property
    def remaining(self) -> int: ...

    @property
    def next_after(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Item:
    """A policy and its present state, as far as it is known."""

    name: str
    policy: Policy
    state: State | None
    denied: bool


def called_apart(items: Iterable[Item], taken: Collection[str]) -> list[Item]:
    """The policies of one answer, of which those with a name that was there before get a number."""
    names = set(taken)
    named = []
    for item in items:
        name, number = item.name, 1
        while name in names:
            number += 1
            name = f"{item.name}-{number}"
        names.add(name)
        named.append(item if number == 1 else replace(item, name=name))
    return named


def problem(violated: list[str]) -> dict[str, Any]:
    return {"type": PROBLEM_TYPE, "title": PROBLEM_TITLE, "status": 429, "violated-policies": violated}


def headers(items: Sequence[Item], wait: int | None) -> dict[str, str]:
    """RateLimit-Policy, RateLimit and, for a denied request that will fit one day, Retry-After."""
    policies, limits = [], []
    for item in items:
        # A string of a structured field is one of JSON, as names are printable ASCII.
        name, unit, window_ms = json.dumps(item.name), item.policy.unit, item.policy.window_ms
        policy = f"{name};q={min(item.policy.limit, MAX_INTEGER)}"
        if unit is not None and unit != "requests":
            policy += f";qu={json.dumps(unit)}"
        # There are no fractions of a second in w, and it is optional.
        if window_ms is not None and window_ms % 1000 == 0:
            policy += f";w={window_ms // 1000}"
        policies.append(policy)
        if item.state is None:
            continue
        limit = f"{name};r={min(item.state.remaining, MAX_INTEGER)}"
        # No t if nothing is used (0) or no more will ever come (None). Retry-After should not be earlier than t, so a
        # policy that did not deny has no t that is later than Retry-After.
        t = item.state.next_after
        if t and (wait is None or t <= wait):
            limit += f";t={t}"
        limits.append(limit)
    fields = {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(limits)}
    if wait is not None:
        fields["Retry-After"] = str(wait)
    return fields
