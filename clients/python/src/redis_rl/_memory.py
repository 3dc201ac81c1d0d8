"""Denials that are remembered, what a hook is told, and counts. No I/O.

There are no locks here, which a fork could leave locked: single operations of dicts are enough, and of two counts that
are made at once one may be lost where threads run without the interpreter's lock.
"""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ._calls import Key, Pairs, short
from ._protocol import Unavailable, log
from ._result import AllResult, Result, Source
from ._rules import Lease, Rule

LONGEST = 1.0
"""Seconds for which a denial is remembered at most."""

MOST = 10_000
MOST_BYTES = 4 << 20
"""Denials that are remembered at most, and what they take."""


@dataclass(frozen=True, slots=True)
class Event:
    """A decision, or a call that failed, as a hook is told it."""

    limiter: str
    """The limiter's name."""
    call: str
    """``"hit"``, ``"turn"``, ``"peek"``, ``"all"``, ``"refund"``, ``"reset"``, ``"release"``, ``"settle"``, or
    ``"renew"`` for what is held."""
    keys: tuple[Key, ...]
    """The keys of the call, without the limiter's prefix."""
    seconds: float
    """How long the call took."""
    source: Source
    """Who decided: the server, a denial in memory, or for an adapter whose server is unavailable its policy."""
    result: Result | AllResult | None
    """The answer of a hit, a peek or an all."""
    error: Exception | None
    """How the call failed, if it did."""


@dataclass(slots=True)
class Statistics:
    """What a limiter has decided since it was made. Peeks do not count."""

    allowed: int = 0
    denied: int = 0
    """Denied by the server or from memory."""
    denied_from_memory: int = 0
    """Of these, without asking the server."""
    unavailable: int = 0
    """Calls for which the server was unavailable."""


class Counter:
    """Counts decisions, and tells the hook."""

    def __init__(self, name: str, hook: Callable[[Event], object] | None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name must be a string, not {name!r}")
        if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
            raise TypeError(f"the hook must be a function that is not asynchronous, not {hook!r}")
        self.name = name
        self.statistics = Statistics()
        self._hook = hook

    def count(
        self,
        call: str,
        keys: tuple[Key, ...],
        began: float,
        result: Result | AllResult | None = None,
        error: Exception | None = None,
    ) -> None:
        statistics = self.statistics
        source: Source = "server" if result is None else result.source
        if isinstance(error, Unavailable):
            statistics.unavailable += 1
        elif error is None and call in ("hit", "turn", "all"):
            if result:
                statistics.allowed += 1
            else:
                statistics.denied += 1
                statistics.denied_from_memory += source == "memory"
        if self._hook is None:
            return
        try:
            self._hook(Event(self.name, call, keys, time.monotonic() - began, source, result, error))
        except Exception:
            # A request does not fail for its metrics.
            log.exception("limiter %r: the hook failed", self.name)


@dataclass(slots=True)
class _Denial:
    keys: tuple[bytes, ...]
    rules: tuple[Rule, ...]
    until: float
    received_at: float
    result: Result | AllResult


@dataclass(slots=True)
class Denials:
    """The denials of the last second, by key. A key belongs to one rule."""

    _known: OrderedDict[bytes, _Denial] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def find(self, rules: Pairs) -> Result | AllResult | None:
        """The denial of the same or a lighter request, as it would be answered now."""
        if not self._known:
            return None
        keys = tuple(short(key) for key, _ in rules)
        for key in keys:
            denial = self._known.get(key)
            if denial is None:
                continue
            now = time.monotonic()
            if now >= denial.until:
                self._pop(key)
            elif keys == denial.keys and all(map(_as_heavy, (rule for _, rule in rules), denial.rules)):
                return replace(denial.result.later(int((now - denial.received_at) * 1000)), source="memory")
        return None

    def remember(self, rules: Pairs, result: Result | AllResult, asked_at: float) -> None:
        """Remembers a denial.

        It ends by when it was asked for, which is not later than it was decided. The waits that are told of it count
        from now, which is not earlier, so that none of them is too short.
        """
        # A holder may have a lease already, and is then let in whatever the limit.
        waits = {
            number: LONGEST if answer.retry_after_ms is None else min(answer.retry_after_ms / 1000, LONGEST)
            for number, answer in enumerate(result.each if isinstance(result, AllResult) else (result,))
            if not answer and not isinstance(rules[number][1], Lease)
        }
        if not waits or any(each.force for _, each in rules):
            return
        binding = max(waits, key=lambda number: waits[number])
        keys = tuple(short(key) for key, _ in rules)
        # At the end, as the youngest.
        self._pop(keys[binding])
        self._known[keys[binding]] = _Denial(
            keys, tuple(rule for _, rule in rules), asked_at + waits[binding], time.monotonic(), result
        )
        self._bytes += _size(keys)
        while len(self._known) > MOST or self._bytes > MOST_BYTES:
            try:
                self._gone(self._known.popitem(last=False)[1])
            except KeyError:
                break

    def forget(self, key: Key) -> None:
        """For a key of which something was given back."""
        if self._known:
            self._pop(short(key))

    def _pop(self, key: bytes) -> None:
        self._gone(self._known.pop(key, None))

    def _gone(self, denial: _Denial | None) -> None:
        if denial is not None:
            self._bytes = self._bytes - _size(denial.keys) if self._known else 0


def _size(keys: Sequence[bytes]) -> int:
    """What a denial takes: a rule and figures for each key."""
    return sum(350 + len(key) for key in keys)


def _as_heavy(rule: Rule, denied: Rule) -> bool:
    if rule is denied:
        return True
    # A request that never fits is not told to wait.
    most = min(policy.limit for policy in rule.policies())
    is_as_heavy = rule.weight == denied.weight or denied.weight < rule.weight <= most
    return is_as_heavy and not rule.force and _plain(rule) == _plain(denied)


def _plain(rule: Rule) -> Rule:
    # A reservation is as any request, and each has a name of its own for a place.
    own: dict[str, Any] = {"holder": None} if isinstance(rule, Lease) else {}
    return replace(rule, cost=None, name=None, unit=None, hold=None, **own)
