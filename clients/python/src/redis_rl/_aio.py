"""The limiter for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Any

from ._calls import Calls, Key, Rules, peeked, read_all, read_refund, read_rule, several, weighed
from ._protocol import Answer, Command, Everywhere, Mode, Pause, Send, Stale, Steps
from ._rates import Rate, units
from ._result import AllResult, Denied, Refunded, Result
from ._rules import Fixed, Lease, Rule, Sliding
from ._sync import log, make_core
from ._transport import AsyncClient, AsyncTransport


class AsyncLimiter:
    """Rate limits on a Redis or Valkey server.

    The first call finds out how the server is called, and remembers it: by the module's commands, by the functions
    (which it loads if it may), or by a script. After a failover to a server that lacks them it finds out anew.

    A limiter belongs to one event loop. It owns nothing: close the client when you are done.

    Args:
        client: a client of redis.asyncio or valkey.asyncio, for one server or a cluster. Set its ``socket_timeout``.
        prefix: put before every key.
        mode: ``"auto"``, or one of ``"module"``, ``"functions"`` and ``"script"`` to decide it yourself.
        load_functions: whether ``"auto"`` may load the function library ``rl`` into the server.
        try_again_for: seconds for which a cluster that answers TRYAGAIN, as it does while a slot moves, is asked
            again.
        resend_lost: whether the client may send a call again when the connection broke before the reply. The
            server may then count a request twice. Without it, the error is raised. (A peek is sent again.)

    Raises:
        The client's own errors, from every method: ConnectionError and TimeoutError if the server cannot be reached,
        ResponseError for what the server refuses, with its words.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        prefix: Key = "",
        mode: str = "auto",
        load_functions: bool = True,
        try_again_for: float = 5.0,
        resend_lost: bool = False,
    ) -> None:
        self._core = make_core(client, mode, load_functions, try_again_for)
        self._calls = Calls(prefix)
        self._transport = AsyncTransport(client, self._core.errors, resend_lost)
        self._lock = asyncio.Lock()

    @property
    def mode(self) -> Mode | None:
        """How the server is called: ``"module"``, ``"functions"`` or ``"script"``; None before the first call."""
        return self._core.mode

    @property
    def client_errors(self) -> type[Exception]:
        """The class of all errors of the client library: ``redis.RedisError`` or ``valkey.ValkeyError``."""
        return self._core.errors.all

    async def look(self) -> Mode:
        """Finds out anew how the server is called, as after loading the module, and returns it."""
        return await self._look(self._core.mode)

    async def hit(self, key: Key, rule: Rule, *, cost: int | None = None, force: bool | None = None) -> Result:
        """Asks whether a request fits, and counts it if it does.

        Args:
            key: who or what is limited.
            rule: made by `sliding`, `fixed`, `throttle` or `lease`.
            cost: units that this request weighs, instead of the rule's own.
            force: count it whether it fits or not (sliding and fixed).
        """
        rule = weighed(rule, cost, force)
        return read_rule(rule, await self.ask(self._calls.rule(key, rule)))

    async def peek(self, key: Key, rule: Rule, *, cost: int | None = None) -> Result:
        """What `hit` would answer. Changes nothing, and may be answered by a replica.

        Args:
            key, rule: as in `hit`.
            cost: as in `hit`; 0 shows the state as it is, without a request of one's own.
        """
        rule = peeked(rule, cost)
        return read_rule(rule, await self.ask(self._calls.peek(key, rule)))

    async def all(self, rules: Rules) -> AllResult:
        """One decision over several keys: every rule has room, or nothing is counted anywhere.

        Args:
            rules: 1 to 64 keys with a rule each, as a dict or as pairs. In a cluster the keys must share a hash tag,
                as ``{org7}:minute`` and ``{org7}:day`` do.
        """
        pairs = several(rules)
        return read_all(pairs, await self.ask(self._calls.all(pairs)))

    async def refund(self, key: Key, rule: Rule, *, cost: int | None = None, at_ms: int | None = None) -> Refunded:
        """Gives back what the same rule took.

        Args:
            key, rule: as in the hit.
            cost: units to give back, instead of the rule's own cost.
            at_ms: the ``at_ms`` of the hit's result. Sliding: takes back units of that moment instead of the newest.
                Fixed: a window that has ended since gets nothing back.
        """
        rule = weighed(rule, cost)
        return read_refund(await self.ask(self._calls.refund(key, rule, at_ms)))

    async def reset(self, key: Key, *rules: Rule | Rate) -> int:
        """Gives the key its whole quota back. Returns how many of its keys were removed.

        Args:
            key: as in `hit`.
            rules: the fixed rules (or rates) whose counters go, too.
        """
        return int(await self.ask(self._calls.reset(key, rules)))

    async def acquire(self, key: Key, rule: Lease, *, holder: str | bytes | None = None) -> Result:
        """Takes or renews a lease. ``result.holder`` is who holds it; give that to `release`.

        Args:
            key: what is held.
            rule: made by `lease`.
            holder: who holds it, instead of the rule's own holder or a random name.
        """
        return await self.hit(key, rule.held_by(holder))

    async def release(self, key: Key, *holders: str | bytes) -> int:
        """Ends leases. Returns how many were still held; releasing twice is no error."""
        return int(await self.ask(self._calls.release(key, holders)))

    def hold(self, key: Key, rule: Lease, *, holder: str | bytes | None = None, renew: bool = False) -> AsyncHeldLease:
        """A lease for an ``async with`` block, which raises `Denied` on entry if none is free.

        Args:
            key, rule, holder: as in `acquire`.
            renew: renew the lease from a task, each third of its time, for as long as the block takes. See
                `AsyncHeldLease.lost`.
        """
        return AsyncHeldLease(self, key, rule.held_by(holder), renew=renew)

    def budget(self, key: Key, rule: Sliding | Fixed) -> AsyncBudget:
        """A budget whose costs are known only afterwards, such as the tokens of a language model."""
        return AsyncBudget(self, key, rule)

    def is_away(self, error: BaseException) -> bool:
        """Whether an error means that the server cannot be reached or cannot answer now.

        Other errors, such as a key that holds something else or missing permissions, do not go away by themselves.
        """
        return self._core.errors.is_away(error)

    async def _look(self, stale: Mode | None) -> Mode:
        core = self._core
        async with self._lock:
            # Somebody else may have looked while this call waited.
            mode: Mode | None = core.mode
            if mode is None or (mode == stale and not core.fixed):
                found: Mode = await self._drive(core.look())
                core.mode = found
                return found
            return mode

    async def ask(self, command: Command) -> Any:
        """For adapters: the server's answer to a command whose keys have their prefix."""
        mode = self._core.mode
        transport = self._transport
        if mode is None or not transport.sends_once or command.reads:
            return await self._persist(command, mode)
        # Nearly every call ends here, without the steps that deal with the rest.
        try:
            return await transport.once(command, mode)
        except Exception as error:
            return await self._persist(command, mode, error)

    async def _persist(self, command: Command, mode: Mode | None, failed: Exception | None = None) -> Any:
        core = self._core
        fresh = mode is None
        if mode is None:
            mode = await self._look(None)
        steps = core.ask(command, mode, fresh, failed)
        del failed
        try:
            return await self._drive(steps)
        except Stale:
            return await self._drive(core.ask(command, await self._look(mode), True))

    async def _drive(self, steps: Steps[Answer]) -> Answer:
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._take(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            result: Answer = done.value
            return result

    async def _take(self, step: Send | Everywhere | Pause) -> Any:
        if isinstance(step, Send):
            return await self._transport.send(step)
        if isinstance(step, Everywhere):
            return await self._transport.everywhere(step)
        await asyncio.sleep(step.seconds)
        return None


class AsyncHeldLease:
    """A lease in an ``async with`` block. Made by `AsyncLimiter.hold`."""

    def __init__(self, limiter: AsyncLimiter, key: Key, rule: Lease, *, renew: bool) -> None:
        self._limiter = limiter
        self._key = key
        self._rule = rule
        self._renews = renew
        self._task: asyncio.Task[None] | None = None
        self._lost = False

    @property
    def holder(self) -> str | bytes:
        """The name under which the lease is held."""
        return self._rule.holder or ""

    @property
    def lost(self) -> bool:
        """Whether a renewal came too late: the lease had ended, and others hold all there are."""
        return self._lost

    async def renew(self) -> Result:
        """Makes the lease last its full time from now. The result is false if it had ended and none is free."""
        result = await self._limiter.hit(self._key, self._rule)
        self._lost = not result
        return result

    async def __aenter__(self) -> AsyncHeldLease:
        result = await self.renew()
        if not result:
            raise Denied(result)
        if self._renews:
            self._task = asyncio.create_task(self._keep(), name="redis-rl lease")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._limiter.release(self._key, self.holder)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._rule.ms / 3000)
            try:
                if not await self.renew():
                    log.warning("a lease ended before it was renewed, and none is free")
            except Exception as error:
                # The next time may work; if it does not, the lease ends by itself.
                log.warning("a lease could not be renewed: %s", error)


class AsyncBudget:
    """Units that are reserved before and settled after. Made by `AsyncLimiter.budget`.

    Requests that run at the same time cannot spend the same units, since each reserves the most it may cost. What
    it has really cost is settled afterwards: the rest is given back, and more is charged even over the limit.
    """

    def __init__(self, limiter: AsyncLimiter, key: Key, rule: Sliding | Fixed) -> None:
        if not isinstance(rule, Sliding | Fixed):
            raise TypeError("a budget needs a sliding or a fixed rule: only these can be charged over their limit")
        self._limiter = limiter
        self._key = key
        self._rule = rule

    async def reserve(self, cost: int) -> AsyncReservation:
        """Takes the units, or raises `Denied`.

        Args:
            cost: the most that the request may cost, 1 to 2**53 - 1.
        """
        result = await self._limiter.hit(self._key, self._rule, cost=cost)
        if not result:
            raise Denied(result)
        return AsyncReservation(self._limiter, self._key, self._rule, cost, result)

    async def peek(self) -> Result:
        """The budget as it is now."""
        return await self._limiter.peek(self._key, self._rule, cost=0)


class AsyncReservation:
    """Units taken from a budget. Made by `AsyncBudget.reserve`.

    As an ``async with`` block it makes nothing happen by itself: what was not settled stays charged as it was reserved,
    also after an error, for the work may have been done.
    """

    def __init__(self, limiter: AsyncLimiter, key: Key, rule: Sliding | Fixed, cost: int, result: Result) -> None:
        self._limiter = limiter
        self._key = key
        self._rule = rule
        self._settled = False
        self.cost = cost
        """Units reserved."""
        self.result = result
        """The answer to the reservation."""

    async def settle(self, cost: int) -> None:
        """Charges what the request has really cost, in place of what was reserved.

        Args:
            cost: 0 to 2**53 - 1. 0 gives everything back.

        Raises:
            RuntimeError: if it is settled already.
        """
        more = units(cost, "the cost") - self.cost
        if self._settled:
            raise RuntimeError("the reservation is settled already")
        # First, so that a call whose reply is lost is not made twice.
        self._settled = True
        if more < 0:
            await self._limiter.refund(self._key, self._rule, cost=-more, at_ms=self.result.at_ms)
        elif more > 0:
            await self._limiter.hit(self._key, self._rule, cost=more, force=True)

    async def cancel(self) -> None:
        """Gives everything back."""
        await self.settle(0)

    async def __aenter__(self) -> AsyncReservation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
