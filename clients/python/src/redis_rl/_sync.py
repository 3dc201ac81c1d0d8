"""The limiter for threads."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Any

from ._calls import Calls, Key, Rules, peeked, read_all, read_refund, read_rule, several, weighed
from ._protocol import MODES, Answer, Command, Core, Errors, Everywhere, Mode, Pause, Send, Stale, Steps
from ._rates import Rate, units
from ._result import AllResult, Denied, Refunded, Result
from ._rules import Fixed, Lease, Rule, Sliding
from ._transport import SyncClient, SyncTransport

log = logging.getLogger("redis_rl")


def make_core(client: object, mode: str, load: bool, patience: float) -> Core:
    """The core of a limiter, its settings checked."""
    if mode not in (*MODES, "auto"):
        raise ValueError(f"mode must be 'auto', 'module', 'functions' or 'script', not {mode!r}")
    chosen = next((known for known in MODES if known == mode), None)
    return Core(Errors(client), chosen, fixed=chosen is not None, load=load, patience=patience)


class Limiter:
    """Rate limits on a Redis or Valkey server.

    The first call finds out how the server is called, and remembers it: by the module's commands, by the functions
    (which it loads if it may), or by a script. After a failover to a server that lacks them it finds out anew.

    A limiter can be used by several threads. It owns nothing: close the client when you are done.

    Args:
        client: a client of redis-py or valkey-py, for one server or a cluster. Set its ``socket_timeout``.
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
        client: SyncClient,
        *,
        prefix: Key = "",
        mode: str = "auto",
        load_functions: bool = True,
        try_again_for: float = 5.0,
        resend_lost: bool = False,
    ) -> None:
        self._core = make_core(client, mode, load_functions, try_again_for)
        self._calls = Calls(prefix)
        self._transport = SyncTransport(client, self._core.errors, resend_lost)
        self._lock = threading.Lock()

    @property
    def mode(self) -> Mode | None:
        """How the server is called: ``"module"``, ``"functions"`` or ``"script"``; None before the first call."""
        return self._core.mode

    @property
    def client_errors(self) -> type[Exception]:
        """The class of all errors of the client library: ``redis.RedisError`` or ``valkey.ValkeyError``."""
        return self._core.errors.all

    def look(self) -> Mode:
        """Finds out anew how the server is called, as after loading the module, and returns it."""
        return self._look(self._core.mode)

    def hit(self, key: Key, rule: Rule, *, cost: int | None = None, force: bool | None = None) -> Result:
        """Asks whether a request fits, and counts it if it does.

        Args:
            key: who or what is limited.
            rule: made by `sliding`, `fixed`, `throttle` or `lease`.
            cost: units that this request weighs, instead of the rule's own.
            force: count it whether it fits or not (sliding and fixed).
        """
        rule = weighed(rule, cost, force)
        return read_rule(rule, self.ask(self._calls.rule(key, rule)))

    def peek(self, key: Key, rule: Rule, *, cost: int | None = None) -> Result:
        """What `hit` would answer. Changes nothing, and may be answered by a replica.

        Args:
            key, rule: as in `hit`.
            cost: as in `hit`; 0 shows the state as it is, without a request of one's own.
        """
        rule = peeked(rule, cost)
        return read_rule(rule, self.ask(self._calls.peek(key, rule)))

    def all(self, rules: Rules) -> AllResult:
        """One decision over several keys: every rule has room, or nothing is counted anywhere.

        Args:
            rules: 1 to 64 keys with a rule each, as a dict or as pairs. In a cluster the keys must share a hash tag,
                as ``{org7}:minute`` and ``{org7}:day`` do.
        """
        pairs = several(rules)
        return read_all(pairs, self.ask(self._calls.all(pairs)))

    def refund(self, key: Key, rule: Rule, *, cost: int | None = None, at_ms: int | None = None) -> Refunded:
        """Gives back what the same rule took.

        Args:
            key, rule: as in the hit.
            cost: units to give back, instead of the rule's own cost.
            at_ms: the ``at_ms`` of the hit's result. Sliding: takes back units of that moment instead of the newest.
                Fixed: a window that has ended since gets nothing back.
        """
        rule = weighed(rule, cost)
        return read_refund(self.ask(self._calls.refund(key, rule, at_ms)))

    def reset(self, key: Key, *rules: Rule | Rate) -> int:
        """Gives the key its whole quota back. Returns how many of its keys were removed.

        Args:
            key: as in `hit`.
            rules: the fixed rules (or rates) whose counters go, too.
        """
        return int(self.ask(self._calls.reset(key, rules)))

    def acquire(self, key: Key, rule: Lease, *, holder: str | bytes | None = None) -> Result:
        """Takes or renews a lease. ``result.holder`` is who holds it; give that to `release`.

        Args:
            key: what is held.
            rule: made by `lease`.
            holder: who holds it, instead of the rule's own holder or a random name.
        """
        return self.hit(key, rule.held_by(holder))

    def release(self, key: Key, *holders: str | bytes) -> int:
        """Ends leases. Returns how many were still held; releasing twice is no error."""
        return int(self.ask(self._calls.release(key, holders)))

    def hold(self, key: Key, rule: Lease, *, holder: str | bytes | None = None, renew: bool = False) -> HeldLease:
        """A lease for a ``with`` block, which raises `Denied` on entry if none is free.

        Args:
            key, rule, holder: as in `acquire`.
            renew: renew the lease from a thread, each third of its time, for as long as the block takes. See
                `HeldLease.lost`.
        """
        return HeldLease(self, key, rule.held_by(holder), renew=renew)

    def budget(self, key: Key, rule: Sliding | Fixed) -> Budget:
        """A budget whose costs are known only afterwards, such as the tokens of a language model."""
        return Budget(self, key, rule)

    def is_away(self, error: BaseException) -> bool:
        """Whether an error means that the server cannot be reached or cannot answer now.

        Other errors, such as a key that holds something else or missing permissions, do not go away by themselves.
        """
        return self._core.errors.is_away(error)

    def _look(self, stale: Mode | None) -> Mode:
        core = self._core
        with self._lock:
            # Somebody else may have looked while this call waited.
            mode: Mode | None = core.mode
            if mode is None or (mode == stale and not core.fixed):
                found: Mode = self._drive(core.look())
                core.mode = found
                return found
            return mode

    def ask(self, command: Command) -> Any:
        """For adapters: the server's answer to a command whose keys have their prefix."""
        mode = self._core.mode
        transport = self._transport
        if mode is None or not transport.sends_once or command.reads:
            return self._persist(command, mode)
        # Nearly every call ends here, without the steps that deal with the rest.
        try:
            return transport.once(command, mode)
        except Exception as error:
            return self._persist(command, mode, error)

    def _persist(self, command: Command, mode: Mode | None, failed: Exception | None = None) -> Any:
        core = self._core
        fresh = mode is None
        if mode is None:
            mode = self._look(None)
        steps = core.ask(command, mode, fresh, failed)
        del failed
        try:
            return self._drive(steps)
        except Stale:
            return self._drive(core.ask(command, self._look(mode), True))

    def _drive(self, steps: Steps[Answer]) -> Answer:
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._take(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            result: Answer = done.value
            return result

    def _take(self, step: Send | Everywhere | Pause) -> Any:
        if isinstance(step, Send):
            return self._transport.send(step)
        if isinstance(step, Everywhere):
            return self._transport.everywhere(step)
        time.sleep(step.seconds)
        return None


class HeldLease:
    """A lease in a ``with`` block. Made by `Limiter.hold`."""

    def __init__(self, limiter: Limiter, key: Key, rule: Lease, *, renew: bool) -> None:
        self._limiter = limiter
        self._key = key
        self._rule = rule
        self._renews = renew
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost = False

    @property
    def holder(self) -> str | bytes:
        """The name under which the lease is held."""
        return self._rule.holder or ""

    @property
    def lost(self) -> bool:
        """Whether a renewal came too late: the lease had ended, and others hold all there are."""
        return self._lost

    def renew(self) -> Result:
        """Makes the lease last its full time from now. The result is false if it had ended and none is free."""
        result = self._limiter.hit(self._key, self._rule)
        self._lost = not result
        return result

    def __enter__(self) -> HeldLease:
        result = self.renew()
        if not result:
            raise Denied(result)
        if self._renews:
            self._done.clear()
            self._thread = threading.Thread(target=self._keep, name="redis-rl lease", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()
            self._thread = None
        self._limiter.release(self._key, self.holder)

    def _keep(self) -> None:
        while not self._done.wait(self._rule.ms / 3000):
            try:
                if not self.renew():
                    log.warning("a lease ended before it was renewed, and none is free")
            except Exception as error:
                # The next time may work; if it does not, the lease ends by itself.
                log.warning("a lease could not be renewed: %s", error)


class Budget:
    """Units that are reserved before and settled after. Made by `Limiter.budget`.

    Requests that run at the same time cannot spend the same units, since each reserves the most it may cost. What
    it has really cost is settled afterwards: the rest is given back, and more is charged even over the limit.
    """

    def __init__(self, limiter: Limiter, key: Key, rule: Sliding | Fixed) -> None:
        if not isinstance(rule, Sliding | Fixed):
            raise TypeError("a budget needs a sliding or a fixed rule: only these can be charged over their limit")
        self._limiter = limiter
        self._key = key
        self._rule = rule

    def reserve(self, cost: int) -> Reservation:
        """Takes the units, or raises `Denied`.

        Args:
            cost: the most that the request may cost, 1 to 2**53 - 1.
        """
        result = self._limiter.hit(self._key, self._rule, cost=cost)
        if not result:
            raise Denied(result)
        return Reservation(self._limiter, self._key, self._rule, cost, result)

    def peek(self) -> Result:
        """The budget as it is now."""
        return self._limiter.peek(self._key, self._rule, cost=0)


class Reservation:
    """Units taken from a budget. Made by `Budget.reserve`.

    As a ``with`` block it makes nothing happen by itself: what was not settled stays charged as it was reserved,
    also after an error, for the work may have been done.
    """

    def __init__(self, limiter: Limiter, key: Key, rule: Sliding | Fixed, cost: int, result: Result) -> None:
        self._limiter = limiter
        self._key = key
        self._rule = rule
        self._settled = False
        self.cost = cost
        """Units reserved."""
        self.result = result
        """The answer to the reservation."""

    def settle(self, cost: int) -> None:
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
            self._limiter.refund(self._key, self._rule, cost=-more, at_ms=self.result.at_ms)
        elif more > 0:
            self._limiter.hit(self._key, self._rule, cost=more, force=True)

    def cancel(self) -> None:
        """Gives everything back."""
        self.settle(0)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
