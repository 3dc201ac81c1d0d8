"""From a call of the API to a command and back: what the synchronous and the asynchronous limiter share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ._protocol import Command
from ._rates import Rate, Window, units
from ._result import AllResult, Refunded, Result, State
from ._rules import Lease, Rule, Windowed, Word

Key = str | bytes
Rules = Mapping[Key, Rule] | Mapping[str, Rule] | Iterable[tuple[Key, Rule]]

MAX_KEYS = 64


class Calls:
    """Makes commands for keys with a prefix, and reads their replies."""

    def __init__(self, prefix: Key) -> None:
        self._prefix = prefix

    def key(self, key: Key) -> Key:
        """The key as the server sees it."""
        if not isinstance(key, str | bytes):
            raise TypeError(f"a key must be str or bytes, not {key!r}")
        prefix = self._prefix
        if not prefix:
            return key
        if isinstance(key, str) and isinstance(prefix, str):
            return prefix + key
        return _bytes(prefix) + _bytes(key)

    def rule(self, key: Key, rule: Rule) -> Command:
        """The rule's own command."""
        return Command(rule.KIND, (self.key(key),), rule.sent, rule.frames)

    def peek(self, key: Key, rule: Rule) -> Command:
        """RL.PEEK."""
        return Command("PEEK", (self.key(key),), (rule.KIND, *rule.sent))

    def all(self, rules: Sequence[tuple[Key, Rule]]) -> Command:
        """RL.ALL."""
        words: list[Word] = []
        for _, rule in rules:
            words += [rule.KIND, *rule.words()]
        return Command("ALL", [self.key(key) for key, _ in rules], [*words, "FULL"])

    def refund(self, key: Key, rule: Rule, at_ms: int | None) -> Command:
        """RL.REFUND."""
        if isinstance(rule, Lease):
            raise TypeError("a lease is given back with release()")
        words = [rule.KIND, *rule.words()]
        if at_ms is not None:
            words += ["AT", units(at_ms, "at_ms")]
        return Command("REFUND", [self.key(key)], words)

    def reset(self, key: Key, rules: Sequence[Rule | Rate]) -> Command:
        """RL.RESET."""
        windows: dict[str, None] = {}
        for rule in rules:
            if isinstance(rule, Windowed):
                windows.update(dict.fromkeys(window.seconds for window in rule.windows))
            elif not isinstance(rule, Rule):
                windows[Window.parse(rule).seconds] = None
        return Command("RESET", [self.key(key)], list(windows))

    def release(self, key: Key, holders: Sequence[str | bytes]) -> Command:
        """RL.RELEASE."""
        if not holders:
            raise TypeError("release() needs a holder")
        return Command("RELEASE", [self.key(key)], list(holders))


def _bytes(key: Key) -> bytes:
    return key.encode() if isinstance(key, str) else key


def weighed(rule: Rule, cost: int | None, force: bool | None = None) -> Rule:
    """The rule as this call wants it. A lease without a holder gets one."""
    if cost is not None:
        rule = rule.with_cost(cost)
    if force:
        rule = rule.forced()
    if isinstance(rule, Lease):
        rule = rule.held_by()
    return rule


def peeked(rule: Rule, cost: int | None) -> Rule:
    """The rule as a peek wants it, which may weigh nothing."""
    if cost == 0 and not isinstance(cost, bool) and not isinstance(rule, Lease):
        return replace(rule, cost=0)
    return weighed(rule, cost)


def several(rules: Rules) -> list[tuple[Key, Rule]]:
    """The keys and rules of one call."""
    pairs: Iterable[tuple[Key, Rule]] = rules.items() if isinstance(rules, Mapping) else rules
    checked = [(key, weighed(rule, None)) for key, rule in pairs]
    if not 1 <= len(checked) <= MAX_KEYS:
        raise ValueError(f"a call takes 1 to {MAX_KEYS} keys, not {len(checked)}")
    return checked


def read_rule(rule: Rule, reply: Any) -> Result:
    """Reads FULL or EACH."""
    states = tuple(map(State.read, reply)) if rule.form == "EACH" else (State.read(reply),)
    return Result.of(rule, states)


def read_all(rules: Sequence[tuple[Key, Rule]], reply: Any) -> AllResult:
    """Reads the reply of RL.ALL with FULL."""
    allowed, index, remaining, retry, states = reply
    return AllResult(
        allowed=int(allowed) == 1,
        index=int(index),
        remaining=int(remaining),
        retry_after_ms=None if int(retry) < 0 else int(retry),
        results=tuple(
            Result.of(rule, (State.read(state),), f"policy-{number}")
            for number, ((_, rule), state) in enumerate(zip(rules, states, strict=True))
        ),
    )


def read_refund(reply: Any) -> Refunded:
    """Reads the reply of RL.REFUND."""
    return Refunded(*(int(number) for number in reply))
