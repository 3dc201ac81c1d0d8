"""Denials that are remembered, what a hook is told, and counts. No I/O."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ._calls import Key
from ._result import AllResult, Result
from ._rules import Lease, Rule

log = logging.getLogger("redis_rl")

LONGEST = 1.0
"""Seconds for which a denial is remembered at most."""

Source = Literal["server", "memory", "local"]


@dataclass(frozen=True, slots=True)
class Event:
    """A decision, or a call that failed, as a hook is told it."""

    limiter: str
    """The limiter's name."""
    call: str
    """``"hit"``, ``"peek"``, ``"all"``, ``"refund"``, ``"reset"`` or ``"release"``."""
    keys: tuple[Key, ...]
    """The keys of the call, without the limiter's prefix."""
    seconds: float
    """How long the call took."""
    source: Source
    """Who decided: the server, a denial in memory, or the local fallback of an adapter."""
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
        self.name = name
        self.statistics = Statistics()
        self._hook = hook
        self._lock = threading.Lock()

    def count(
        self,
        call: str,
        keys: tuple[Key, ...],
        began: float,
        result: Result | AllResult | None = None,
        error: Exception | None = None,
        source: Source = "server",
        unavailable: bool = False,
    ) -> None:
        """A call has ended."""
        statistics = self.statistics
        if unavailable or (error is None and call in ("hit", "all")):
            with self._lock:
                if unavailable:
                    statistics.unavailable += 1
                elif result:
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
    rules: tuple[tuple[Key, Rule], ...]
    binding: int
    until: float
    received_at: float
    result: Result | AllResult


@dataclass(slots=True)
class Denials:
    """The denials of the last second, by key. A key belongs to one rule."""

    entries: int
    _known: OrderedDict[Key, _Denial] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, rules: Sequence[tuple[Key, Rule]]) -> Result | AllResult | None:
        """The denial of the same or a lighter request, as it would be answered now."""
        for key, _ in rules:
            denial = self._known.get(key)
            if denial is None:
                continue
            now = time.monotonic()
            if now >= denial.until:
                self.forget(key)
            elif _as_heavy(rules, denial):
                return denial.result.later(int((now - denial.received_at) * 1000))
        return None

    def remember(self, rules: Sequence[tuple[Key, Rule]], result: Result | AllResult, asked_at: float) -> None:
        """Remembers a denial.

        It ends by when it was asked for, which is not later than it was decided. The waits that are told of it count
        from now, which is not earlier, so that none of them is too short.
        """
        binding = result.index if isinstance(result, AllResult) else 0
        key, rule = rules[binding]
        if not _is_memorable(rule) or any(getattr(each, "force", False) for _, each in rules):
            return
        wait = LONGEST if result.retry_after_ms is None else min(result.retry_after_ms / 1000, LONGEST)
        with self._lock:
            self._known[key] = _Denial(tuple(rules), binding, asked_at + wait, time.monotonic(), result)
            self._known.move_to_end(key)
            if len(self._known) > self.entries:
                self._known.popitem(last=False)

    def forget(self, *keys: Key) -> None:
        """For keys of which something was given back."""
        with self._lock:
            for key in keys:
                self._known.pop(key, None)


def _is_memorable(rule: Rule) -> bool:
    # A holder may have a lease already, and is then let in whatever the limit.
    return not isinstance(rule, Lease)


def _as_heavy(rules: Sequence[tuple[Key, Rule]], denial: _Denial) -> bool:
    if len(rules) != len(denial.rules):
        return False
    for number, ((key, rule), (denied_key, denied)) in enumerate(zip(rules, denial.rules, strict=True)):
        if rule is denied and key == denied_key:
            continue
        if key != denied_key or getattr(rule, "force", False):
            return False
        if _plain(rule) != _plain(denied):
            return False
        cost, least = _cost(rule), _cost(denied)
        # A request that never fits is not told to wait.
        if number == denial.binding and cost != least and not least < cost <= _most(rule):
            return False
    return True


def _plain(rule: Rule) -> Rule:
    return replace(rule, cost=None, name=None, unit=None)


def _most(rule: Rule) -> int:
    return min(policy.limit for policy in rule.policies())


def _cost(rule: Rule) -> int:
    return 1 if rule.cost is None else rule.cost
