"""Limits in this process' memory, for as long as the server is unavailable: one counter for each key and window.

The same limits, divided by the number of processes, and rougher: a window begins with its first request, so up to twice
the limit may pass around its end; a throttle is a window as long as its empty bucket takes to fill; leases are let in.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

from ._calls import Pairs, short
from ._result import AllResult, Result, State, decided_here
from ._rules import Lease, Policy, Rule

MOST = 50_000
"""Counters. Beyond that those used least recently are forgotten: a flood of identities does not take all memory."""


class Local:
    """Decides on requests as long as the server cannot."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        # Between the look at what is used and the count no other thread may count.
        self._lock = threading.Lock()
        # By key and window, units and when the window ends.
        self._counters: OrderedDict[tuple[bytes, int], tuple[int, float]] = OrderedDict()

    def decide(self, rules: Pairs) -> Result | AllResult:
        """Decides on a request, and counts it if it fits everywhere."""
        asked = [(short(key), rule.now()) for key, rule in rules]
        with self._lock:
            windows = [(key, rule, policy) for key, rule in asked for policy in rule.policies()]
            allowed = all(rule.force or self._state(key, rule, policy, False) for key, rule, policy in windows)
            answers = [
                (rule, [self._state(key, rule, policy, allowed) for policy in rule.policies()]) for key, rule in asked
            ]
        return decided_here(answers, "local")

    def _state(self, key: bytes, rule: Rule, policy: Policy, counts: bool) -> State:
        """What a window says to a request, which is counted where all have room."""
        now, cost = time.time(), rule.weight
        limit = max(policy.limit // self._processes, min(policy.limit, 1))
        name = key, policy.end_ms or policy.window_ms or 0
        used, ends = self._counters.get(name, (0, 0.0))
        if now >= ends:
            used, ends = 0, policy.end_ms / 1000 if policy.end_ms else now + (policy.window_ms or 0) / 1000
        fits = isinstance(rule, Lease) or used + max(cost, 1) <= limit
        if counts and cost and not isinstance(rule, Lease):
            used += cost
            self._counters[name] = used, ends
            self._counters.move_to_end(name)
            if len(self._counters) > MOST:
                self._counters.popitem(last=False)
        wait = max(round((ends - now) * 1000), 1) if used else 0
        retry = 0 if fits else wait if cost <= limit else None
        return State(
            fits, limit, used, max(limit - used, 0), retry, wait, wait, policy.window_ms or 0, round(now * 1000)
        )
