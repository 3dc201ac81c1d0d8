"""From a call of the API to a command and back: what the synchronous and the asynchronous limiter share."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ._protocol import Command
from ._rates import MAX_SECONDS, MAX_UNITS, Rate, Seconds, number_of, whole
from ._rates import windows as read_windows
from ._result import AllResult, Refunded, Result, State, unreadable, wait_of
from ._rules import Fixed, Lease, Rule, Sliding, Throttle, Word, holder_of

Key = str | bytes
Pairs = Sequence[tuple[Key, Rule]]
"""The keys and rules of a call."""
Rules = Mapping[Key, Rule] | Mapping[str, Rule] | Iterable[tuple[Key, Rule]]

MAX_KEYS = 64
LONGEST_TURN = 3600
"""Seconds ahead at which a turn lies at most."""
LONGEST_REMEMBERED = 64


class Calls:
    """Makes commands for keys with a prefix."""

    def __init__(self, prefix: Key) -> None:
        if not isinstance(prefix, str | bytes):
            raise TypeError(f"the prefix must be str or bytes, not {prefix!r}")
        self._prefix = prefix

    def key(self, key: Key) -> Key:
        if not isinstance(key, str | bytes):
            raise TypeError(f"a key must be str or bytes, not {key!r}")
        prefix = self._prefix
        if not prefix:
            return key
        if isinstance(key, str) and isinstance(prefix, str):
            return prefix + key
        return _bytes(prefix) + _bytes(key)

    def decision(self, call: str, rules: Pairs, turn_ms: int | None = None) -> Command:
        """RL.PEEK, the rule's own command, or RL.ALL. ``turn_ms``: of a turn, how long it may take to come."""
        if is_all(call, rules):
            words: list[Word] = []
            for _, rule in rules:
                words += [rule.KIND, *rule.words()]
            holds = any(rule.is_reserved for _, rule in rules)
            return Command("ALL", [self.key(key) for key, _ in rules], [*words, "FULL"], holds)
        ((key, rule),) = rules
        if call == "peek":
            return Command("PEEK", (self.key(key),), (rule.KIND, *rule.sent))
        if turn_ms is not None:
            return Command(rule.KIND, (self.key(key),), (*rule.words(), "WITHIN", turn_ms, rule.form))
        return Command(rule.KIND, (self.key(key),), rule.sent, rule.is_reserved)

    def settle(self, key: Key, rule: Rule, actual: int) -> Command:
        return Command("SETTLE", (self.key(key),), (rule.KIND, *rule.words(), "ACTUAL", actual))

    def refund(self, key: Key, rule: Rule, at_ms: int | None) -> Command:
        if isinstance(rule, Lease):
            raise TypeError("a lease is not refunded: release() gives it back")
        at: list[Word] = [] if at_ms is None else ["AT", whole(at_ms, "at_ms")]
        return Command("REFUND", [self.key(key)], [rule.KIND, *rule.now(at_ms).words(), *at])

    def reset(self, key: Key, rules: Sequence[Rule | Rate]) -> Command:
        windows: dict[str, None] = {}
        for rule in rules:
            if isinstance(rule, Fixed):
                windows.update(dict.fromkeys(window.seconds for window in rule.now().windows))
            elif not isinstance(rule, Rule):
                windows.update(dict.fromkeys(window.seconds for window in read_windows([rule])))
        # A hold that stayed would later give back units of requests that came after the reset.
        return Command("RESET", [self.key(key)], [*windows, "HOLD"] if windows else [])

    def release(self, key: Key, holders: Sequence[str | bytes]) -> Command:
        if not holders:
            raise TypeError("release() needs a holder")
        return Command("RELEASE", [self.key(key)], [holder_of(holder) for holder in holders])


def is_all(call: str, rules: Pairs) -> bool:
    """Whether a call is one of several keys."""
    return call == "all" or len(rules) > 1


def ended_at(rules: Pairs) -> int | None:
    """The earliest end of the calendars' periods, or None without a calendar."""
    ends = [policy.end_ms for _, rule in rules for policy in rule.policies()]
    return min((end for end in ends if end is not None), default=None)


def _bytes(key: Key) -> bytes:
    return key.encode() if isinstance(key, str) else key


def short(key: Key) -> bytes:
    """What a key is remembered by: a digest where it is long, so that a bound of entries is one of memory."""
    key = _bytes(key)
    return key if len(key) <= LONGEST_REMEMBERED else hashlib.blake2b(key, digest_size=32).digest()


def checked(rule: Rule, reserves: bool = False) -> Rule:
    """The rule, or TypeError if it is not one. ``reserves``: it may be reserved."""
    if not isinstance(rule, Rule):
        raise TypeError(f"a rule is made by sliding(), fixed(), calendar(), throttle() or lease(), not {rule!r}")
    if rule.is_reserved and not reserves:
        raise TypeError("a rule that is reserved is for reserve_all()")
    return rule


def weighed(rule: Rule, cost: int | None, force: bool = False) -> Rule:
    checked(rule)
    if cost is not None:
        rule = rule.with_cost(cost)
    if force:
        rule = rule.forced()
    if rule.cost == 0:
        raise ValueError(f"the cost must be from 1 to {MAX_UNITS}, not 0: only peek() and all() check without counting")
    return rule


def seconds_above_0(value: float, what: str) -> float:
    """The value as a float, or ValueError if it is not a deadline."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        raise ValueError(f"{what} must be a number of seconds above 0, not {value!r}")
    return float(value)


def end_of_wait(timeout: float) -> float:
    """The monotonic time at which a wait is over, or ValueError if this is not a time to wait."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ValueError(f"timeout must be a number of seconds, not {timeout!r}")
    return time.monotonic() + timeout


def turning(rule: Rule, cost: int | None) -> Rule:
    """The rule of a request that may be given a turn, or an error if it cannot."""
    if not isinstance(checked(rule), Sliding | Throttle):
        raise TypeError(f"a turn is for sliding and throttle rules, not {rule!r}")
    if rule.force:
        raise ValueError("a turn is not for a rule that is forced: it is counted at once")
    return weighed(rule, cost)


def longest_turn(within: Seconds) -> int:
    """The milliseconds within which a turn has to come, or an error if this is no such time."""
    seconds = float(number_of(within, "within"))
    if not 0 <= seconds <= LONGEST_TURN:
        raise ValueError(f"within must be from 0 to {LONGEST_TURN} seconds, an hour, not {within}")
    return round(seconds * 1000)


def several(rules: Rules, reserves: bool = False) -> list[tuple[Key, Rule]]:
    """The keys and rules of one call. ``reserves``: some of the rules are reserved."""
    pairs = cast("Iterable[tuple[Key, Rule]]", rules.items() if isinstance(rules, Mapping) else rules)
    given = list(pairs) if isinstance(pairs, Iterable) else [pairs]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in given):
        raise TypeError(f"a dict of keys and rules, or pairs of them, is needed, not {rules!r}")
    listed = [(key, checked(rule, reserves)) for key, rule in given]
    if not 1 <= len(listed) <= MAX_KEYS:
        raise ValueError(f"a call takes 1 to {MAX_KEYS} keys, not {len(listed)}")
    if reserves and not any(rule.is_reserved for _, rule in listed):
        raise ValueError("none of the rules is reserved: rule.reserved(units)")
    return listed


def read_rule(rule: Rule, reply: Any, turns: bool = False) -> Result:
    """Reads FULL or EACH. ``turns``: of a call with WITHIN."""
    if rule.form == "FULL":
        return Result.of(rule, (State.read(reply, turns),))
    if not isinstance(reply, list) or len(reply) != len(rule.policies()):
        raise unreadable(reply)
    return Result.of(rule, tuple(State.read(state, turns) for state in reply))


def read_all(rules: Pairs, reply: Any) -> AllResult:
    try:
        *figures, states = reply
        allowed, index, remaining, retry = read_numbers(figures, 4)
        each = [Result.of(rule, (State.read(state),)) for (_, rule), state in zip(rules, states, strict=True)]
        if not 0 <= index < len(each):
            raise unreadable(reply)
    except (TypeError, ValueError):
        raise unreadable(reply) from None
    return AllResult.of(each, index, allowed=allowed == 1, remaining=remaining, retry_after_ms=wait_of(retry))


def read_refund(reply: Any) -> Refunded:
    return Refunded(*read_numbers(reply, 3))


def read_settled(reply: Any) -> bool:
    """Reads the reply of RL.SETTLE: whether these units are what is charged."""
    settled, _, _ = read_numbers(reply, 3)
    if settled not in (0, 1, 2, 3):
        raise unreadable(reply)
    return settled > 0


def read_numbers(reply: Any, count: int) -> list[int]:
    if not isinstance(reply, list) or [type(number) for number in reply] != [int] * count:
        raise unreadable(reply)
    return reply


def read_number(reply: Any) -> int:
    return read_numbers([reply], 1)[0]
