"""The limiter, leases that are held, and reservations."""

from __future__ import annotations

import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol, Self, cast, overload
from weakref import WeakValueDictionary, ref

from .._calls import (
    LONGEST_TURN,
    Calls,
    Key,
    Pairs,
    Rules,
    checked,
    end_of_wait,
    ended_at,
    is_all,
    longest_turn,
    read_all,
    read_number,
    read_refund,
    read_rule,
    read_settled,
    seconds_above_0,
    several,
    turning,
    weighed,
)
from .._client import clients_of, make_client
from .._memory import Counter, Denials, Event
from .._protocol import PAUSE, Command, Mode, Unavailable, log
from .._rates import Rate, Seconds, milliseconds, whole
from .._result import AllResult, Decision, Denied, Refunded, Result
from .._rules import Fixed, Lease, Rule, Sliding, Throttle, Windowed
from .core import core_of
from .io import IS_ASYNC, afterwards, begun, carried_out, concurrency, finished, here, over, sleep
from .waiting import Line, keep

# Between two attempts at a lease that others hold: it may be released long before it ends.
FIRST_POLL = 0.02
LONGEST_POLL = 0.5

LAST_CALL = 0.1
"""The part of the limiter's deadline that the last call of a wait has at least."""

RENEWALS = 3
"""How often what is held is renewed in its time."""

REMEMBERED = 60.0
"""Seconds for which the server remembers a settlement at least."""


class AsyncClient(Protocol):
    """A client of redis-py or valkey-py of this kind, for one server or a cluster."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...

    def __aenter__(self) -> Any: ...


class AsyncLimiter:
    """Rate limits on a Redis or Valkey server.

    Its connections are derived from the client's, and shared with other limiters on this client. Close a limiter when
    you are done; the last one closes them.

    Args:
        client: a client of redis-py or valkey-py, for one server or a cluster.
        prefix: put before every key.
        mode: how the server is used: by the ``"module"``, by its ``"functions"``, or by a ``"script"``; unless given,
            by the best that it has.
        timeout: seconds after which a call fails, whatever the client's own time-outs and retries are. After a failure
            that means that the server is unavailable, calls fail at once for a second; then one of them probes.
        name: what log lines and the hook call this limiter.
        hook: called with an `Event` after every decision, in the thread or loop of the call.

    Raises:
        Unavailable: from every method, if the server cannot be reached or cannot answer now.
        Refused: from every method, what the server refuses, with its words.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        prefix: Key = "",
        mode: Literal["auto", "module", "functions", "script"] = "auto",
        timeout: float = 1.0,
        name: str = "redis-rl",
        hook: Callable[[Event], object] | None = None,
    ) -> None:
        self._calls = Calls(prefix)
        self._timeout = seconds_above_0(timeout, "timeout")
        # For adapters, of which each may remember denials.
        self._denials = Denials()
        self._remembers = False
        self._counter = Counter(name, hook)
        self.name = name
        self.statistics = self._counter.statistics
        """What this limiter has decided since it was made."""
        self._logged_as = name
        self._core = core_of(client, mode, asynchronous=IS_ASYNC)
        self._core.users.add(self)
        self._owned: Any = None
        # For adapters, which share what they do while the server is unavailable.
        self._fallbacks: dict[Any, Any] = {}
        self._lines: WeakValueDictionary[Any, Line] = WeakValueDictionary()

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Self:
        """A limiter with a client of its own, which is closed with it.

        Args:
            url: ``redis://``, ``unix://``, ``redis+cluster://h1:p1,h2:p2`` or ``redis+sentinel://h1:p1,h2:p2/service``;
                with ``rediss`` by TLS, and the same with ``valkey``. Options of the client are its query.
            options: those of the limiter.
        """
        client = make_client(url, {}, asynchronous=IS_ASYNC)
        limiter = cls(client, **options)
        limiter._owned = client
        return limiter

    @property
    def mode(self) -> Mode | None:
        """How the server is used: ``"module"``, ``"functions"`` or ``"script"``; None before the first call."""
        return self._core.mode

    @overload
    async def hit(self, key: Key, rule: Sliding | Fixed, *, cost: int | None = None, force: bool = False) -> Result: ...
    @overload
    async def hit(self, key: Key, rule: Sliding | Fixed | Throttle, *, cost: int | None = None) -> Result: ...
    @overload
    async def hit(self, key: Key, rule: Rule) -> Result: ...
    async def hit(self, key: Key, rule: Rule, *, cost: int | None = None, force: bool = False) -> Result:
        """Decides on a request, and counts it if it fits.

        Args:
            key: who or what is limited.
            rule: made by `sliding`, `fixed`, `throttle` or `lease`.
            cost: units that this request weighs, instead of the rule's own.
            force: count it whether it fits or not (sliding and fixed).
        """
        rule = weighed(rule, cost, force)
        return cast("Result", await self._decide("hit", ((key, rule),)))

    @overload
    async def peek(self, key: Key, rule: Sliding | Fixed | Throttle, *, cost: int | None = None) -> Result: ...
    @overload
    async def peek(self, key: Key, rule: Rule) -> Result: ...
    async def peek(self, key: Key, rule: Rule, *, cost: int | None = None) -> Result:
        """What `hit` would answer. Changes nothing, and may be answered by a replica.

        Args:
            key, rule: as in `hit`.
            cost: as in `hit`; 0 shows the state as it is, without a request of one's own.
        """
        rule = checked(rule) if cost is None else checked(rule).with_cost(cost)
        return cast("Result", await self._decide("peek", ((key, rule),)))

    async def all(self, rules: Rules) -> AllResult:
        """One decision over several keys: every rule has room, or nothing is counted anywhere.

        Args:
            rules: 1 to 64 keys with a rule each, as a dict or as pairs. A rule with cost 0 is checked and counts
                nothing. In a cluster the keys must share a hash tag, as ``{org7}:minute`` and ``{org7}:day`` do.
        """
        pairs = several(rules)
        return cast("AllResult", await self._decide("all", pairs))

    async def turn(self, key: Key, rule: Sliding | Throttle, within: Seconds, *, cost: int | None = None) -> Result:
        """Asks for a turn: the request is counted at the first time at which it fits, and nobody overtakes it.

        For those who schedule, as a task queue does; `wait` sleeps, too. Of the result, ``wait_ms`` says how long to
        wait, from now, and ``at_ms`` when the turn is: ``refund(key, rule, at_ms=...)`` gives it back.

        Args:
            key, cost: as in `hit`.
            rule: made by `sliding` or `throttle`, and not forced.
            within: the longest wait that is taken, in seconds, from 0 to an hour. Your choice, and never a client's:
                longer ones starve shorter ones.

        Returns:
            A denial where no turn is within that time; then nothing was counted.
        """
        rules = ((key, turning(rule, cost)),)
        return cast("Result", await self._decide("turn", rules, turn_ms=longest_turn(within)))

    @overload
    async def wait(
        self, key: Key, rule: Sliding | Fixed | Throttle, *, timeout: float | None = None, cost: int | None = None
    ) -> Result: ...
    @overload
    async def wait(self, key: Key, rule: Rule, *, timeout: float | None = None) -> Result: ...
    async def wait(self, key: Key, rule: Rule, *, timeout: float | None = None, cost: int | None = None) -> Result:
        """Waits until the request is allowed.

        By a sliding or throttle rule it asks for a `turn`, and sleeps until it comes; a caller that leaves gives it
        back. By other rules, and where no turn is to be had, it comes again after the exact wait; for a lease it looks
        for a place as `hold` does. While the server is unavailable it tries again each second.

        Args:
            key, rule, cost: as in `hit`.
            timeout: seconds to wait at most; None waits as long as it takes.

        Returns:
            The last answer. It is a denial if the request never fits, or not within the time that is left: then this
            returns at once.
        """
        until = end_of_wait(math.inf if timeout is None else timeout)
        rule = weighed(rule, cost) if isinstance(rule, Fixed | Lease) else turning(rule, cost)
        if rule.force:
            raise ValueError("a request that is forced is not waited for: it would be counted each time")
        if isinstance(rule, Lease):
            return (await self._await_place(key, rule.held_by(), until))[1]
        denial: Result | None = None
        least = self._least(until)
        while True:
            found = denial = await self._tried(key, rule, until, least, denial)
            if found is None:
                await _sleep_out(until)
                continue
            if found.wait_ms:
                try:
                    await sleep(found.wait_ms / 1000)
                except BaseException:
                    afterwards(partial(self._give_back, key, rule, found.at_ms))
                    raise
            if found or found.retry_after_ms is None or time.monotonic() + found.retry_after_ms / 1000 > until:
                return found
            await sleep(found.retry_after_ms / 1000)

    async def _give_back(self, key: Key, rule: Rule, at_ms: int) -> None:
        """For a turn that nobody waits for any more."""
        try:
            await self._change("refund", key, self._calls.refund(key, rule, at_ms))
        except Exception as error:
            log.info("limiter %r: a turn could not be given back: %s", self.name, error)

    def _least(self, until: float) -> float:
        """The deadline that the last call of a wait has at least; all of it where there is no time to wait."""
        return self._timeout * LAST_CALL if until > time.monotonic() else self._timeout

    async def _tried(self, key: Key, rule: Rule, until: float, least: float, denial: Result | None) -> Result | None:
        """A try by one who waits: None where the server was unavailable, if there is time left.

        At the end of the last one what is known is the denial before it.
        """
        left = until - time.monotonic()
        call, ms = "hit", None
        if isinstance(rule, Sliding | Throttle):
            call, ms = "turn", int(min(max(left, 0), LONGEST_TURN) * 1000)
        try:
            return cast("Result", await self._decide(call, ((key, rule),), max(left, least), ms))
        except Unavailable:
            if time.monotonic() < until:
                return None
            if denial is not None:
                return denial
            raise

    async def _await_place(self, key: Key, rule: Lease, until: float) -> tuple[float, Result]:
        """Acquires a lease, waiting for a place. Returns when it ends by this process' clock, and the last answer.

        Those who wait for a key in this process stand in line, and the first of them asks: from time to time, and when
        a lease is released here.
        """
        line = self._lines.setdefault((here(), self._calls.key(key)), Line())
        least = self._least(until)
        left = until - time.monotonic()
        has_turn = await line.enter(max(left, 0.0))
        if not has_turn and left > 0 and line.denial is not None:
            # Of those who wait one asks, and the others know what is known.
            return until, line.denial
        found: Result | None = None
        pause = FIRST_POLL
        try:
            while True:
                # The server's lease does not end earlier, as the call takes time.
                ends = time.monotonic() + rule.ms / 1000
                found = await self._tried(key, rule, until, least, found)
                if found is None:
                    # What was known before an outage is no answer for the others either.
                    line.denial = None
                    await _sleep_out(until)
                    continue
                left = until - time.monotonic()
                line.denial = None if found else found
                if found or found.retry_after_ms is None or left <= 0:
                    return ends, found
                jittered = pause * random.uniform(0.5, 1.0)  # noqa: S311
                woken = await line.wait(min(jittered, left, max(found.retry_after_ms / 1000, 0.001)))
                pause = FIRST_POLL if woken else min(pause * 2, LONGEST_POLL)
        finally:
            if has_turn:
                line.turn.release()

    async def refund(
        self, key: Key, rule: Sliding | Fixed | Throttle, *, cost: int | None = None, at_ms: int | None = None
    ) -> Refunded:
        """Gives back what the same rule took: what the server has counted (`Result.source`), and no denial.

        Args:
            key, rule: as in the hit.
            cost: units to give back, instead of the rule's own cost.
            at_ms: the ``at_ms`` of the hit's result. Sliding: takes back units of that moment instead of the newest.
                Fixed: a window that has ended since gets nothing back.
        """
        return read_refund(await self._change("refund", key, self._calls.refund(key, weighed(rule, cost), at_ms)))

    async def reset(self, key: Key, *rules: Rule | Rate) -> int:
        """Gives the key its whole quota back. Returns how many of its keys were removed.

        Args:
            key: as in `hit`.
            rules: the fixed rules (or rates) whose counters and reservations go, too.
        """
        return read_number(await self._change("reset", key, self._calls.reset(key, rules)))

    async def acquire(self, key: Key, rule: Lease, *, holder: str | bytes | None = None) -> Result:
        """Takes or renews a lease. ``result.holder`` is who holds it; give that to `release`.

        Args:
            key, rule: what is held, made by `lease`.
            holder: who holds it, instead of the rule's own holder or a random name.
        """
        return await self.hit(key, _lease(rule).held_by(holder))

    async def release(self, key: Key, *holders: str | bytes) -> int:
        """Ends leases. Returns how many were still held; releasing twice is no error."""
        released = read_number(await self._change("release", key, self._calls.release(key, holders)))
        line = self._lines.get((here(), self._calls.key(key)))
        if line is not None:
            line.freed.set()
        return released

    def hold(self, key: Key, rule: Lease, *, holder: str | bytes | None = None, timeout: float = 0.0) -> AsyncHeldLease:
        """A lease for a block of work, in a ``with`` statement. It raises `Denied` on entry if none is free.

        It is for one block: call this for each. The lease is renewed in the background, each third of its time, and
        released at the end of the block. See `AsyncHeldLease.lost`.

        Args:
            key, rule, holder: as in `acquire`.
            timeout: seconds to wait for a place.
        """
        self._calls.key(key)
        end_of_wait(timeout)
        # A block gives it back in any case.
        return AsyncHeldLease(self, key, replace(_lease(rule).held_by(holder), is_ours=True), timeout)

    async def reserve(self, key: Key, rule: Sliding | Fixed, units: int, *, lease: Seconds = 60) -> AsyncReservation:
        """Takes units whose real number is known only afterwards, such as the tokens of a language model.

        Requests that run at the same time cannot spend the same units, since each reserves the most it may cost. What
        it has really cost is settled afterwards: the rest is given back, and more is charged even over the limit.

        Args:
            key, rule: as in `hit`, made by `sliding`, `fixed` or `calendar`.
            units: the most that the request may cost, 1 to 2**53 - 1.
            lease: seconds after which the units are given back unless they are settled, as after a crash. In a
                ``with`` block the reservation is renewed as long as the block takes.

        Raises:
            Denied: they do not fit. Nothing was taken.
        """
        if not isinstance(checked(rule), Windowed):
            raise TypeError("a reservation needs a sliding or fixed rule, or a calendar: only these can be settled")
        self._calls.key(key)
        return await self._reserve("hit", [(key, rule.reserved(units))], milliseconds(lease, "the lease"))

    async def reserve_all(self, rules: Rules, *, lease: Seconds = 60) -> AsyncReservation:
        """Takes units of several keys in one decision, as `all` does: all have room, or nothing is taken anywhere.

        Args:
            rules: as in `all`. Those with ``rule.reserved(units)`` are settled afterwards, the others are counted.
            lease: as in `reserve`.

        Raises:
            Denied: one of them has no room.
        """
        return await self._reserve("all", several(rules, reserves=True), milliseconds(lease, "the lease"))

    async def _reserve(self, call: str, rules: Pairs, ms: int) -> AsyncReservation:
        holder = secrets.token_hex(16)
        held = [(key, replace(rule, hold=(holder, ms)) if rule.is_reserved else rule) for key, rule in rules]
        ends = time.monotonic() + ms / 1000

        async def give_back(result: Result | AllResult | None) -> None:
            if result is None or result:
                await AsyncReservation(self, held, ends, ms, result).cancel()

        # Nobody would know of units that a cancelled call has taken.
        result = await carried_out(lambda: self._decided(call, held, math.inf), give_back)
        if not result:
            raise Denied(result)
        return AsyncReservation(self, held, ends, ms, result)

    async def aclose(self) -> None:
        """Closes the limiter, and with the last one of a client their connections. A later call opens new ones."""
        await self._core.leave(self, self._timeout)
        for client in clients_of(self._owned):
            await client.aclose()

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _decide(
        self, call: str, rules: Pairs, within: float = math.inf, turn_ms: int | None = None
    ) -> Result | AllResult:
        # Where the caller has named the holder, the call may renew what it has.
        leases = [(key, rule.holder) for key, rule in rules if isinstance(rule, Lease) and rule.is_ours and rule.holder]
        if call == "peek" or not (leases or call == "turn"):
            return await self._decided(call, rules, within)

        async def give_back(result: Decision | None) -> None:
            if call == "turn" and result:
                ((key, rule),) = rules
                await self._give_back(key, rule, result.at_ms)
            for key, holder in leases:
                await self.release(key, holder)

        # Nobody would know of a turn or a lease that a cancelled call has taken.
        return await carried_out(lambda: self._decided(call, rules, within, turn_ms), give_back)

    async def _decided(self, call: str, rules: Pairs, within: float, turn_ms: int | None = None) -> Result | AllResult:
        began = asked_at = time.monotonic()
        keys = tuple(key for key, _ in rules)
        remembers = self._remembers and call not in ("peek", "renew", "turn")
        now = [(key, rule.now()) for key, rule in rules]
        ask = partial(self._core.ask, timeout=self._timeout, name=self._logged_as)

        def known() -> Result | AllResult | None:
            nonlocal asked_at
            asked_at = time.monotonic()
            return self._denials.find(now) if remembers else None

        result = known()
        if result is None:
            try:
                try:
                    reply, result = await ask(self._calls.decision(call, now, turn_ms), within=within, known=known)
                except self._core.errors.response as error:
                    ended = ended_at(now)
                    if ended is None or not self._core.errors.is_ended(error):
                        raise
                    now = [(key, rule.now(ended)) for key, rule in rules]
                    left = began + min(self._timeout, within) - time.monotonic()
                    reply, result = await ask(self._calls.decision(call, now), within=left, known=known)
                if result is None:
                    turns = turn_ms is not None
                    result = read_all(now, reply) if is_all(call, now) else read_rule(now[0][1], reply, turns)
                    if remembers and not result:
                        self._denials.remember(now, result, asked_at)
            except Exception as error:
                raised = self._core.errors.raised(error)
                # In a crowd another call may have brought the answer.
                result = known() if isinstance(raised, Unavailable) else None
                if result is None:
                    self._counter.count(call, keys, began, error=raised)
                    raise raised from error
        self._counter.count(call, keys, began, result)
        return result

    async def _change(self, call: str, key: Key, command: Command) -> Any:
        began = time.monotonic()
        self._denials.forget(key)
        try:
            reply, _ = await self._core.ask(command, self._timeout, self.name)
        except Exception as error:
            raised = self._core.errors.raised(error)
            self._counter.count(call, (key,), began, error=raised)
            raise raised from error
        finally:
            # Also a denial of which another call has heard meanwhile.
            self._denials.forget(key)
        self._counter.count(call, (key,), began)
        return reply


async def _sleep_out(until: float) -> None:
    """Waits for the next try in an outage."""
    await sleep(max(min(until - time.monotonic(), PAUSE), 0.0))


def _lease(rule: Lease) -> Lease:
    if not isinstance(checked(rule), Lease):
        raise TypeError(f"a lease is needed, made by lease(), not {rule!r}")
    return rule


class AsyncKept:
    """What a holder has for a time, and renews in a block of work."""

    def __init__(self, limiter: AsyncLimiter, rules: Pairs, ms: int) -> None:
        self._limiter = limiter
        self._rules = rules
        self._ms = ms
        self._block = threading.Lock()
        self._done = concurrency.Event()
        self._work: Any = None
        self._ends = math.inf
        self.lost_event: Any = concurrency.Event()
        """An event (of the ``threading`` or ``asyncio`` module) that is set when it is lost in a block."""

    @property
    def lost(self) -> bool:
        """Whether it has ended before the block: others may have it now.

        By the clock of this process, counted from before the last renewal was sent, so that it is never noticed too
        late, also while the server does not answer.
        """
        return time.monotonic() >= self._ends or bool(self.lost_event.is_set())

    def _enter(self) -> None:
        # Two blocks would have one holder, and so one place.
        if not self._block.acquire(blocking=False):
            raise RuntimeError("it is for one block: make another for each")

    async def __aexit__(self, kind: object, *_: object) -> None:
        await finished(partial(self.end, kind is not None))

    async def end(self, failed: bool = False) -> None:
        """The block has ended. For adapters, what is held is not needed any more."""
        raise NotImplementedError

    def keep(self, ends: float) -> None:
        """For adapters: renews what was taken by another call, and ends at this monotonic time."""
        self._ends = ends
        self._work = begun(partial(keep, ref(self), ends, self._ms / 1000 / RENEWALS, self._done, self.lost_event))

    async def _stop(self) -> None:
        """Ends renewing. A renewal that is under way is waited for, as it would take the lease again."""
        self._done.set()
        await over(self._work)

    async def _renew(self, within: float) -> bool:
        """Renews it, within these seconds. Returns whether it is still held, as far as that is known."""
        limiter, ends = self._limiter, time.monotonic() + self._ms / 1000
        try:
            result = await limiter._decided("renew", self._rules, within)
        except Exception as error:
            if limiter._core.errors.is_settled(error) or limiter._core.errors.is_ended(error):
                # By a call whose reply was lost; or the calendar's period is over, and its units count nowhere.
                self._ends = math.inf
            else:
                # The next time may work; if it does not, it ends by itself.
                log.warning("limiter %r: a lease could not be renewed: %s", limiter.name, error)
            return True
        if result:
            self._ends = ends
        else:
            log.warning("limiter %r: a lease ended before it was renewed, and none is free", limiter.name)
        return bool(result)


class AsyncHeldLease(AsyncKept):
    """A lease for a block of work. Made by `hold`."""

    def __init__(self, limiter: AsyncLimiter, key: Key, rule: Lease, timeout: float) -> None:
        super().__init__(limiter, [(key, rule)], rule.ms)
        self._key = key
        self._rule = rule
        self._timeout = timeout

    @property
    def holder(self) -> str | bytes:
        """The name under which the lease is held."""
        return self._rule.holder or ""

    async def __aenter__(self) -> AsyncHeldLease:
        self._enter()
        ends, result = await self._limiter._await_place(self._key, self._rule, end_of_wait(self._timeout))
        if not result:
            raise Denied(result)
        self.keep(ends)
        return self

    async def end(self, failed: bool = False) -> None:
        await self._stop()
        if not self.lost:
            self._ends = math.inf
        try:
            await self._limiter.release(self._key, self.holder)
        except Exception as failure:
            # The outcome of the block matters more, and the lease ends by itself.
            log.warning("limiter %r: a lease could not be released: %s", self._limiter.name, failure)


class AsyncReservation(AsyncKept):
    """Units that were taken. Made by `reserve` and `reserve_all`.

    In a ``with`` block it is renewed. At its end a settlement that has failed is made once more; where there was none,
    everything is given back after an error, and charged as it was reserved after none. Without a block, and after a
    crash of the process, what is not settled is given back when the lease ends.
    """

    def __init__(
        self, limiter: AsyncLimiter, rules: Pairs, ends: float, ms: int, result: Result | AllResult | None
    ) -> None:
        # Of a calendar, the period in which it was taken.
        if result is None:
            rules = [(key, rule.now()) for key, rule in rules]
        else:
            answers = result.each if isinstance(result, AllResult) else (result,)
            rules = [(key, answer.rule) for (key, _), answer in zip(rules, answers, strict=True)]
        super().__init__(limiter, rules, ms)
        self._ends = ends
        self._reserved = {key: rule for key, rule in rules if rule.is_reserved}
        self._settled: dict[Key, int] = {}
        # The figures that were last to be settled, and when the first settlement of a key was sent.
        self._wanted: dict[Key, int] = {}
        self._sent: dict[Key, float] = {}
        self.result = cast("Result | AllResult", result)
        """The answer to the reservation."""

    async def settle(self, actual: int | Mapping[Key, int]) -> bool:
        """Charges what the request has really cost, in place of what was reserved.

        May be called again after any error and however often, and charges once.

        Args:
            actual: 0 to 2**53 - 1, for each reserved key; or a dict with a figure for each of them. 0 gives everything
                back.

        Returns:
            Whether the server has confirmed it. If not, the server was unavailable, which is logged.

        Raises:
            RuntimeError: it was settled already with another figure; or a settlement without an answer is so long ago
                that the server has forgotten it, and a further one might charge twice.
            The client's errors, where they do not pass by themselves.
        """
        figures = actual if isinstance(actual, Mapping) else dict.fromkeys(self._reserved, actual)
        if set(figures) != set(self._reserved):
            raise ValueError(f"a figure for each of the reserved keys is needed, not {actual!r}")
        figures = {key: whole(figure, "actual") for key, figure in figures.items()}
        self._wanted = figures
        is_confirmed, failures = True, []
        for key, rule in self._reserved.items():
            # One that fails does not keep the others from being settled.
            try:
                is_confirmed &= await self._settle(key, rule, figures[key])
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        if is_confirmed:
            await self._stop()
            self._ends = math.inf
        return is_confirmed

    async def cancel(self) -> bool:
        """Gives everything back: ``settle(0)``."""
        return await self.settle(0)

    async def _settle(self, key: Key, rule: Rule, actual: int) -> bool:
        limiter, now = self._limiter, time.monotonic()
        if key in self._settled:
            if self._settled[key] != actual:
                raise RuntimeError(f"the reservation is settled already with {self._settled[key]}, not {actual}")
            return True
        if key in self._sent and now > self._sent[key] + max(self._ms / 1000, REMEMBERED) - limiter._timeout:
            raise RuntimeError(
                "whether the reservation was settled is not known any more: its first try is too long ago"
            )
        command = limiter._calls.settle(key, rule, actual)
        try:
            reply = await limiter._change("settle", key, command)
        except Unavailable as error:
            log.warning("limiter %r: a reservation could not be settled: %s", limiter.name, error)
            return False
        finally:
            if command.is_sent:
                self._sent.setdefault(key, now)
        if not read_settled(reply):
            raise RuntimeError(f"the reservation is settled already with another figure than {actual}")
        self._settled[key] = actual
        return True

    async def __aenter__(self) -> AsyncReservation:
        self._enter()
        self.keep(self._ends)
        return self

    async def end(self, failed: bool = False) -> None:
        figures = {key: 0 if failed else rule.weight for key, rule in self._reserved.items()}
        try:
            await self.settle(figures | self._wanted | self._settled)
        except Exception as failure:
            # The outcome of the block matters more.
            log.warning("limiter %r: a reservation could not be settled: %s", self._limiter.name, failure)
        await self._stop()
