"""The limiter, leases that are held, and reservations."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, cast, overload

from .._calls import (
    Calls,
    Key,
    Rules,
    chargeable,
    checked,
    peeked,
    read_all,
    read_number,
    read_refund,
    read_rule,
    several,
    weighed,
)
from .._memory import Counter, Denials, Event, Statistics
from .._protocol import Command, Mode
from .._rates import Rate, units
from .._result import AllResult, Denied, Refunded, Result
from .._rules import Fixed, Lease, Rule, Sliding, Throttle
from .core import core_of
from .io import IS_ASYNC, AnyClient, Keeper, sleep

log = logging.getLogger("redis_rl")

# Between two attempts at a lease that others hold: it may be released long before it ends.
FIRST_POLL = 0.02
LONGEST_POLL = 0.5


class Limiter:
    """Rate limits on a Redis or Valkey server.

    The first call detects how the server is used: by the module's commands, by the functions (which it loads if it
    may), or by a script. After an error that says so, after a reconnection and once a minute that is done again, in
    the background.

    A call takes no longer than ``timeout``. After a failure that means that the server is unavailable, calls fail at
    once for a second; then one of them probes.

    Limiters on one client share what they know of the server and their connections, which are derived from the
    client's and use its settings. Close a limiter when you are done.

    Args:
        client: a client of redis-py or valkey-py, for one server or a cluster.
        prefix: put before every key.
        mode: ``"auto"``, or one of ``"module"``, ``"functions"`` and ``"script"``.
        timeout: seconds after which a call fails, whatever the client's own time-outs and retries are.
        deny_cache: for how many keys a denial is remembered, for its wait and at most a second: the same or a heavier
            request by the same rule is then denied without asking the server. 0 for none.
        load_functions: whether the function library ``rl`` may be loaded into the server.
        name: what log lines and the hook call this limiter.
        hook: called with an `Event` after every decision, in the thread or loop of the call.

    Raises:
        The client's own errors, from every method: ConnectionError and TimeoutError if the server is unavailable,
        ResponseError for what it refuses, with its words.
    """

    def __init__(
        self,
        client: AnyClient,
        *,
        prefix: Key = "",
        mode: str = "auto",
        timeout: float = 1.0,
        deny_cache: int = 0,
        load_functions: bool = True,
        name: str = "redis-rl",
        hook: Callable[[Event], object] | None = None,
    ) -> None:
        self._core = core_of(client, mode, load_functions, timeout, asynchronous=IS_ASYNC)
        self._calls = Calls(prefix)
        self._timeout = float(timeout)
        self._denials = Denials(deny_cache) if units(deny_cache, "deny_cache") else None
        self._counter = Counter(name, hook)

    @property
    def name(self) -> str:
        """What log lines and the hook call this limiter."""
        return self._counter.name

    @property
    def mode(self) -> Mode | None:
        """How the server is used: ``"module"``, ``"functions"`` or ``"script"``; None before the first call."""
        return self._core.mode

    @property
    def statistics(self) -> Statistics:
        """What this limiter has decided since it was made."""
        return self._counter.statistics

    @property
    def client_errors(self) -> type[Exception]:
        """The class of all errors of the client library: ``redis.RedisError`` or ``valkey.ValkeyError``."""
        return self._core.errors.all

    def is_unavailable(self, error: BaseException) -> bool:
        """Whether an error means that the server cannot be reached or cannot answer now.

        Other errors, such as a key that holds something else or missing permissions, do not pass by themselves.
        """
        return self._core.errors.is_unavailable(error)

    def probe(self) -> Mode:
        """Detects anew how the server is used, and returns it."""
        return self._core.probe(self._core.mode)

    @overload
    def hit(self, key: Key, rule: Sliding | Fixed, *, cost: int | None = None, force: bool = False) -> Result: ...
    @overload
    def hit(self, key: Key, rule: Sliding | Fixed | Throttle, *, cost: int | None = None) -> Result: ...
    @overload
    def hit(self, key: Key, rule: Rule) -> Result: ...
    def hit(self, key: Key, rule: Rule, *, cost: int | None = None, force: bool = False) -> Result:
        """Decides on a request, and counts it if it fits.

        Args:
            key: who or what is limited.
            rule: made by `sliding`, `fixed`, `throttle` or `lease`.
            cost: units that this request weighs, instead of the rule's own.
            force: count it whether it fits or not (sliding and fixed).
        """
        rule = weighed(rule, cost, force)
        return cast("Result", self._decide("hit", ((key, rule),), self._calls.rule(key, rule)))

    def peek(self, key: Key, rule: Rule, *, cost: int | None = None) -> Result:
        """What `hit` would answer. Changes nothing, and may be answered by a replica.

        Args:
            key, rule: as in `hit`.
            cost: as in `hit`; 0 shows the state as it is, without a request of one's own.
        """
        rule = peeked(rule, cost)
        return cast("Result", self._decide("peek", ((key, rule),), self._calls.peek(key, rule)))

    def all(self, rules: Rules) -> AllResult:
        """One decision over several keys: every rule has room, or nothing is counted anywhere.

        Args:
            rules: 1 to 64 keys with a rule each, as a dict or as pairs. A rule with cost 0 is checked and counts
                nothing. In a cluster the keys must share a hash tag, as ``{org7}:minute`` and ``{org7}:day`` do.
        """
        pairs = several(rules)
        return cast("AllResult", self._decide("all", pairs, self._calls.all(pairs)))

    def wait(self, key: Key, rule: Rule, *, timeout: float | None = None, cost: int | None = None) -> Result:
        """Hits until the request is allowed, and sleeps for the exact wait between.

        Args:
            key, rule, cost: as in `hit`.
            timeout: seconds to wait at most; None waits as long as it takes.

        Returns:
            The last answer. It is a denial if the request never fits, or not within the time that is left: then this
            returns at once.
        """
        if isinstance(rule, Lease):
            rule = rule.held_by()
        rule = weighed(rule, cost)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            result = self.hit(key, rule)
            if result or result.retry_after_ms is None:
                return result
            seconds = result.retry_after_ms / 1000
            if until is not None and time.monotonic() + seconds > until:
                return result
            sleep(seconds)

    def refund(self, key: Key, rule: Rule, *, cost: int | None = None, at_ms: int | None = None) -> Refunded:
        """Gives back what the same rule took.

        Args:
            key, rule: as in the hit.
            cost: units to give back, instead of the rule's own cost.
            at_ms: the ``at_ms`` of the hit's result. Sliding: takes back units of that moment instead of the newest.
                Fixed: a window that has ended since gets nothing back.
        """
        command = self._calls.refund(key, rule if isinstance(rule, Lease) else weighed(rule, cost), at_ms)
        return read_refund(self._change("refund", key, command))

    def reset(self, key: Key, *rules: Rule | Rate) -> int:
        """Gives the key its whole quota back. Returns how many of its keys were removed.

        Args:
            key: as in `hit`.
            rules: the fixed rules (or rates) whose counters go, too.
        """
        return read_number(self._change("reset", key, self._calls.reset(key, rules)))

    def acquire(self, key: Key, rule: Lease, *, holder: str | bytes | None = None) -> Result:
        """Takes or renews a lease. ``result.holder`` is who holds it; give that to `release`.

        Args:
            key: what is held.
            rule: made by `lease`.
            holder: who holds it, instead of the rule's own holder or a random name.
        """
        return self.hit(key, _lease(rule).held_by(holder))

    def release(self, key: Key, *holders: str | bytes) -> int:
        """Ends leases. Returns how many were still held; releasing twice is no error."""
        return read_number(self._change("release", key, self._calls.release(key, holders)))

    def hold(self, key: Key, rule: Lease, *, holder: str | bytes | None = None, timeout: float = 0.0) -> HeldLease:
        """A lease for a block of work, in a ``with`` statement. It raises `Denied` on entry if none is free.

        The lease is renewed in the background, each third of its time, and released at the end of the block. See
        `AsyncHeldLease.lost`.

        Args:
            key, rule, holder: as in `acquire`.
            timeout: seconds to wait for a place.
        """
        return HeldLease(self, key, _lease(rule).held_by(holder), timeout)

    def reserve(self, key: Key, rule: Sliding | Fixed, units: int) -> Reservation:
        """Takes units whose real number is known only afterwards, such as the tokens of a language model.

        Requests that run at the same time cannot spend the same units, since each reserves the most it may cost. What
        it has really cost is settled afterwards: the rest is given back, and more is charged even over the limit.

        Args:
            key: as in `hit`.
            rule: made by `sliding` or `fixed`.
            units: the most that the request may cost, 1 to 2**53 - 1.

        Raises:
            Denied: they do not fit. Nothing was taken.
        """
        rule = chargeable(rule)
        result = self.hit(key, rule, cost=units)
        if not result:
            raise Denied(result)
        return Reservation(self, key, rule, units, result)

    def close(self) -> None:
        """Closes the connections that the limiters on this client share. A later call opens new ones."""
        self._core.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _decide(self, call: str, rules: Sequence[tuple[Key, Rule]], command: Command) -> Result | AllResult:
        began = time.monotonic()
        denials = self._denials if call != "peek" else None
        keys = tuple(key for key, _ in rules)
        if denials is not None:
            known = denials.find(rules)
            if known is not None:
                self._counter.count(call, keys, began, known, source="memory")
                return known
        try:
            reply = self._core.ask(command, self._timeout, self._counter.name)
            result = read_all(rules, reply) if call == "all" else read_rule(rules[0][1], reply)
        except Exception as error:
            self._counter.count(call, keys, began, error=error, unavailable=self.is_unavailable(error))
            raise
        if denials is not None and not result:
            denials.remember(rules, result, began)
        self._counter.count(call, keys, began, result)
        return result

    def _change(self, call: str, key: Key, command: Command) -> Any:
        began = time.monotonic()
        try:
            reply = self.ask(command, key)
        except Exception as error:
            self._counter.count(call, (key,), began, error=error, unavailable=self.is_unavailable(error))
            raise
        self._counter.count(call, (key,), began)
        return reply

    def ask(self, command: Command, key: Key) -> Any:
        """For adapters: the server's answer to a command about this key, whose keys have their prefix."""
        if self._denials is not None:
            self._denials.forget(key)
        try:
            return self._core.ask(command, self._timeout, self._counter.name)
        finally:
            # Also a denial of which another call has heard meanwhile.
            if self._denials is not None:
                self._denials.forget(key)


def _lease(rule: Lease) -> Lease:
    if not isinstance(checked(rule), Lease):
        raise TypeError(f"a lease is needed, made by lease(), not {rule!r}")
    return rule


class HeldLease:
    """A lease for a block of work. Made by `hold`."""

    def __init__(self, limiter: Limiter, key: Key, rule: Lease, timeout: float) -> None:
        self._limiter = limiter
        self._key = key
        self._rule = rule
        self._timeout = timeout
        self._keeper: Keeper | None = None

    @property
    def holder(self) -> str | bytes:
        """The name under which the lease is held."""
        return self._rule.holder or ""

    @property
    def lost(self) -> bool:
        """Whether the lease has ended before the block: others may hold it now.

        By the clock of this process, counted from before the last renewal was sent, so that it is never noticed too
        late, also while the server does not answer.
        """
        keeper = self._keeper
        return keeper is not None and (keeper.lost.is_set() or time.monotonic() >= keeper.ends)

    @property
    def lost_event(self) -> Any:
        """An event (of the ``threading`` or ``asyncio`` module) that is set when the lease is lost."""
        if self._keeper is None:
            raise RuntimeError("the lease is not held: it is taken on entry of the block")
        return self._keeper.lost

    def __enter__(self) -> HeldLease:
        until = time.monotonic() + self._timeout
        pause = FIRST_POLL
        while True:
            ends, result = self._acquire()
            if result:
                break
            left = until - time.monotonic()
            if result.retry_after_ms is None or left <= 0:
                raise Denied(result)
            sleep(min(pause, left, result.retry_after_ms / 1000))
            pause = min(pause * 2, LONGEST_POLL)
        self.keep(ends)
        return self

    def keep(self, ends: float) -> None:
        """For adapters: renews a lease that was taken by another call, and ends at this monotonic time."""
        self._keeper = Keeper(self._renew, self._rule.ms / 3000, ends)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        try:
            self._limiter.release(self._key, self.holder)
        except Exception as failure:
            # The outcome of the block matters more, and the lease ends by itself.
            log.warning("limiter %r: a lease could not be released: %s", self._limiter.name, failure)

    def _acquire(self) -> tuple[float, Result]:
        # Counted from before the call: the server's lease does not end earlier.
        ends = time.monotonic() + self._rule.ms / 1000
        return ends, self._limiter.hit(self._key, self._rule)

    def _renew(self) -> float | None:
        """The time at which the lease now ends, or None if it was lost."""
        try:
            ends, result = self._acquire()
        except Exception as error:
            # The next time may work; if it does not, the lease ends by itself.
            log.warning("limiter %r: a lease could not be renewed: %s", self._limiter.name, error)
            return self._keeper.ends if self._keeper else None
        if not result:
            log.warning("limiter %r: a lease ended before it was renewed, and none is free", self._limiter.name)
        return ends if result else None


class Reservation:
    """Units that were taken. Made by `reserve`.

    At the end of a ``with`` block nothing happens by itself: what was not settled stays charged as it was reserved,
    also after an error, for the work may have been done.
    """

    def __init__(self, limiter: Limiter, key: Key, rule: Sliding | Fixed, units: int, result: Result) -> None:
        self._limiter = limiter
        self._key = key
        self._rule = rule
        self._settled = False
        self.units = units
        """Units reserved."""
        self.result = result
        """The answer to the reservation."""

    def settle(self, units: int) -> None:
        """Charges what the request has really cost, in place of what was reserved.

        Args:
            units: 0 to 2**53 - 1. 0 gives everything back.

        Raises:
            RuntimeError: it is settled already.
            The client's errors: the call failed. Where the server was unavailable it may have been done, and cannot
            be called again.
        """
        more = real_units(units) - self.units
        if self._settled:
            raise RuntimeError("the reservation is settled already")
        self._settled = True
        try:
            if more < 0:
                self._limiter.refund(self._key, self._rule, cost=-more, at_ms=self.result.at_ms)
            elif more > 0:
                self._limiter.hit(self._key, self._rule, cost=more, force=True)
        except Exception as error:
            # After a lost reply it may have been done, and is not to be done twice.
            self._settled = self._limiter.is_unavailable(error)
            raise

    def cancel(self) -> None:
        """Gives everything back."""
        self.settle(0)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def real_units(value: int) -> int:
    """The units of a settlement."""
    return units(value, "units")
