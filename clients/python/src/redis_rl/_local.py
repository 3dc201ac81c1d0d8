"""Limits in this process' memory, by the library limits, for as long as the server is unavailable.

The same rules, divided by the number of processes. What differs: a throttle is a sliding window as long as its empty
bucket takes to fill, a fixed window begins with its first request, and limits above 10,000 are counted in fixed
windows, as an exact log would take too much memory.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from ._calls import Key, short
from ._result import AllResult, Result, State
from ._rules import Fixed, Lease, Policy, Rule

# A log of limits has an object for each unit, a counter has one.
LONGEST_LOG = 10_000

# Of all units in logs, and ten for each counter. Beyond that what was used least recently is forgotten, so that a flood
# of identities does not take all memory: a unit is some hundred bytes.
MOST_UNITS = 1_000_000


class Local:
    """Decides on requests as long as the server cannot."""

    def __init__(self, processes: int) -> None:
        try:
            from limits.storage import MemoryStorage
        except ModuleNotFoundError as missing:
            raise ImportError("when_unavailable='local' needs limits: pip install redis-rl[limits]") from missing
        self._processes = processes
        # Between the look at what is used and the count no other thread may count.
        self._lock = threading.Lock()
        self._storage = MemoryStorage()
        self._leases: OrderedDict[Key, dict[str | bytes, float]] = OrderedDict()
        # The size of each name, the one used last at the end.
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._size = 0

    def decide(self, rules: Sequence[tuple[Key, Rule]]) -> Result | AllResult:
        """Decides on a request, and counts it if it fits everywhere."""
        with self._lock:
            return self._decide([(short(key), rule.now()) for key, rule in rules])

    def _decide(self, rules: Sequence[tuple[Key, Rule]]) -> Result | AllResult:
        allowed = all(self._fits(key, rule, limited) for key, rule in rules for limited in self._share(rule))
        if allowed:
            for key, rule in rules:
                for limited in self._share(rule):
                    self._take(key, rule, limited)
        results = [
            replace(
                Result.of(rule, [self._state(key, rule, limited, allowed) for limited in self._share(rule)]),
                source="local",
            )
            for key, rule in rules
        ]
        if len(results) == 1:
            return results[0]
        index = next((number for number, result in enumerate(results) if not result), 0)
        answer = AllResult.of(
            [rule for _, rule in rules],
            results,
            allowed=allowed,
            index=index,
            remaining=results[index].remaining,
            retry=results[index].retry_after_ms or 0,
        )
        return replace(answer, source="local")

    def release(self, key: Key, holder: str | bytes) -> None:
        """Ends a lease."""
        key = short(key)
        with self._lock:
            self._leases.get(key, {}).pop(holder, None)
            if not self._leases.get(key):
                self._leases.pop(key, None)

    def _share(self, rule: Rule) -> list[Policy]:
        """The windows of the rule, with the part of each limit that is this process'."""
        return [
            replace(policy, limit=max(policy.limit // self._processes, min(policy.limit, 1)))
            for policy in rule.policies()
        ]

    @staticmethod
    def _logs(rule: Rule, policy: Policy) -> bool:
        return not isinstance(rule, Fixed) and policy.limit <= LONGEST_LOG

    def _used(self, key: Key, rule: Rule, policy: Policy) -> tuple[int, float]:
        """Units in use, and the seconds until the first of them is free."""
        now = time.time()
        if isinstance(rule, Lease):
            held = {holder: end for holder, end in self._leases.get(key, {}).items() if end > now}
            others = [end for holder, end in held.items() if holder != rule.holder]
            return len(others), (min(others) - now if others else 0.0)
        name, seconds = _window(key, policy)
        if self._logs(rule, policy):
            start, used = self._storage.get_moving_window(name, policy.limit, seconds)  # type: ignore[arg-type]
            return used, (start + seconds - now if used else 0.0)
        used = self._storage.get(name)
        return used, (self._storage.get_expiry(name) - now if used else 0.0)

    def _fits(self, key: Key, rule: Rule, policy: Policy) -> bool:
        return getattr(rule, "force", False) or self._used(key, rule, policy)[0] + max(rule.weight, 1) <= policy.limit

    def _take(self, key: Key, rule: Rule, policy: Policy) -> None:
        cost = rule.weight
        if isinstance(rule, Lease):
            self._leases.setdefault(key, {})[rule.holder or ""] = time.time() + rule.ms / 1000
            self._leases.move_to_end(key)
            if len(self._leases) > MOST_UNITS // 10:
                self._leases.popitem(last=False)
            return
        name, seconds = _window(key, policy)
        if self._logs(rule, policy) and cost <= LONGEST_LOG:
            used = self._used(key, rule, policy)[0] + cost
            self._storage.acquire_entry(name, max(policy.limit, used), seconds, cost)  # type: ignore[arg-type]
            self._weigh(name, 10 + used)
        elif cost:
            self._storage.incr(name, seconds, cost)
            self._weigh(name, 10)

    def _weigh(self, name: str, size: int) -> None:
        """Notes the size of a name that was used, and forgets others where all are too large."""
        self._size += size - self._sizes.pop(name, 0)
        self._sizes[name] = size
        while self._size > MOST_UNITS and len(self._sizes) > 1:
            oldest, freed = self._sizes.popitem(last=False)
            self._size -= freed
            self._storage.clear(oldest)

    def _state(self, key: Key, rule: Rule, policy: Policy, allowed: bool) -> State:
        used, free_in = self._used(key, rule, policy)
        window_ms = rule.ms if isinstance(rule, Lease) else policy.window_ms or 0
        had_room = allowed or self._fits(key, rule, policy)
        if allowed and isinstance(rule, Lease):
            used += 1
        following = max(round(free_in * 1000), 1) if used else 0
        all_in = following if policy.end_ms else window_ms
        cost = rule.weight
        retry: int | None = 0
        if not had_room:
            retry = None if cost > policy.limit else following if cost == 1 else all_in
        return State(
            had_room,
            policy.limit,
            used,
            max(policy.limit - used, 0),
            retry,
            following,
            all_in if used else 0,
            window_ms,
            round(time.time() * 1000),
        )


def _window(key: Key, policy: Policy) -> tuple[str, float]:
    """What a window is called, and how long it is, or what is left of a calendar's."""
    if policy.end_ms:
        return f"{key!r}:@{policy.end_ms}", max(policy.end_ms / 1000 - time.time(), 0.001)
    return f"{key!r}:{policy.window_ms}", (policy.window_ms or 0) / 1000
