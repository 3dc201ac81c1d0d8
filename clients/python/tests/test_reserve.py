"""Reservations that are settled once, whatever gets lost, and calendars, on live servers."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from typing import Any

import pytest
import redis
import redis.asyncio

import redis_rl._sync.limiter as implementation
from redis_rl import AsyncLimiter, Denied, Event, Limiter, Refused, Unavailable, calendar, fixed, lease, sliding
from servers import START_MS, Server, free_port, until

RULE = sliding("1000/hour")
RULES = [RULE, fixed("1000/hour"), fixed("1000/hour", anchored=True), calendar("1000/month", "Europe/Berlin")]


def used(limiter: Limiter, key: str, rule: Any = RULE) -> int:
    return limiter.peek(key, rule, cost=0).used


def lose_replies(limiter: Limiter, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The server carries out the calls of this name, and nobody hears of it."""
    change = limiter._change

    def lost(name: str, *words: Any) -> Any:
        reply = change(name, *words)
        if name == call:
            raise Unavailable("the reply was lost")
        return reply

    monkeypatch.setattr(limiter, "_change", lost)


@pytest.mark.parametrize("rule", RULES, ids=["sliding", "fixed", "anchored", "calendar"])
def test_settled_once(server: Server, limiter: Limiter, rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: START_MS / 1000)
    for actual in (0, 40, 100, 250):
        server.run("FLUSHALL")
        reservation = limiter.reserve("k", rule, 100)
        assert used(limiter, "k", rule) == 100
        with monkeypatch.context() as lossy:
            lose_replies(limiter, lossy, "settle")
            assert reservation.settle(actual) is False
            assert reservation.settle(actual) is False
        assert reservation.settle(actual) is True
        assert reservation.settle(actual) is True
        assert used(limiter, "k", rule) == actual
        with pytest.raises(RuntimeError, match="settled already"):
            reservation.settle(actual + 1)
        assert used(limiter, "k", rule) == actual


def test_another_figure_than_the_one_that_arrived(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    reservation = limiter.reserve("k", RULE, 100)
    with monkeypatch.context() as lossy:
        lose_replies(limiter, lossy, "settle")
        assert not reservation.settle(40)
    with pytest.raises(RuntimeError, match="another figure than 50"):
        reservation.settle(50)
    assert used(limiter, "k") == 40


def test_the_end_of_the_block(limiter: Limiter, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    with limiter.reserve("charged", RULE, 100):
        pass
    with pytest.raises(ZeroDivisionError), limiter.reserve("failed", RULE, 100):
        raise ZeroDivisionError
    with limiter.reserve("settled", RULE, 100) as reservation:
        assert reservation.settle(7)
    with pytest.raises(ZeroDivisionError), limiter.reserve("settled and failed", RULE, 100) as reservation:
        reservation.settle(7)
        raise ZeroDivisionError
    with limiter.reserve("cancelled", RULE, 100) as reservation:
        assert reservation.cancel()
    assert not caplog.records
    # A settlement that fails in the block is made again at its end, and nothing is raised.
    with limiter.reserve("repeated", RULE, 100) as reservation, monkeypatch.context() as away:
        away.setattr(limiter, "_change", lose)
        assert reservation.settle(7) is False
        away.undo()
    assert [record.getMessage() for record in caplog.records] == [
        "limiter 'redis-rl': a reservation could not be settled: the server is away"
    ]
    figures = {"charged": 100, "failed": 0, "settled": 7, "settled and failed": 7, "cancelled": 0, "repeated": 7}
    assert {key: used(limiter, key) for key in figures} == figures


def lose(*_: Any) -> Any:
    raise Unavailable("the server is away")


def test_a_process_that_dies(server: Server, limiter: Limiter) -> None:
    """Nothing renews what it has reserved: the next reservation after the lease has the room."""
    limiter.reserve("k", RULE, 900, lease=5)
    server.set_clock(START_MS + 4999)
    with pytest.raises(Denied) as denied:
        limiter.reserve("k", RULE, 200)
    assert denied.value.result.used == 900
    server.set_clock(START_MS + 5001)
    assert limiter.reserve("k", RULE, 200).result.used == 200


def test_a_settlement_after_the_lease(server: Server, limiter: Limiter) -> None:
    reservation = limiter.reserve("k", RULE, 900, lease=5)
    server.set_clock(START_MS + 6000)
    other = limiter.reserve("k", RULE, 1000)
    # The work was done, and is charged, over the limit.
    assert reservation.settle(30)
    assert used(limiter, "k") == 1030
    assert other.cancel()
    assert used(limiter, "k") == 30


def test_renewed_in_the_block(server: Server, limiter: Limiter) -> None:
    """By the real clock, for longer than its lease."""
    server.set_clock(0)
    renewals: list[Event] = []
    limiter._counter._hook = lambda event: renewals.append(event) if event.call == "renew" else None
    with limiter.reserve("k", RULE, 900, lease=3) as reservation:
        until("it was renewed four times", lambda: len(renewals) >= 4)
        assert not reservation.lost
        with pytest.raises(Denied):
            limiter.reserve("k", RULE, 200)
        assert reservation.settle(30)
    assert used(limiter, "k") == 30
    # Other tests leave threads of their frameworks behind.
    assert "redis-rl lease" not in {thread.name for thread in threading.enumerate()}


def test_lost_while_the_server_hangs(server: Server) -> None:
    server.set_clock(0)
    with redis.Redis(port=server.port) as client, Limiter(client, timeout=10) as limiter:
        with limiter.reserve("k", RULE, 900, lease=2) as reservation:
            limiter._timeout = 0.3
            server.process.send_signal(signal.SIGSTOP)
            try:
                assert not reservation.lost
                assert reservation.lost_event.wait(30)
                assert reservation.lost
                assert reservation.settle(30) is False
            finally:
                server.process.send_signal(signal.SIGCONT)
            until("it is settled", lambda: reservation.settle(30))
            limiter._timeout = 10
        assert used(limiter, "k") == 30


def test_a_renewal_after_a_settlement_that_was_lost(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Renewing ends without a word, and nothing is lost."""
    with limiter.reserve("k", RULE, 100, lease=3) as reservation:
        with monkeypatch.context() as lossy:
            lose_replies(limiter, lossy, "settle")
            assert not reservation.settle(40)
        until("renewing ends", lambda: not reservation._work.is_alive())
        assert not reservation.lost
        assert reservation.settle(40)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_too_late_to_know(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server remembers a settlement for a time. After it another one might charge twice, and is not sent."""
    monkeypatch.setattr(implementation, "REMEMBERED", 10.2)
    reservation = limiter.reserve("k", RULE, 100, lease=10.2)
    with monkeypatch.context() as lossy:
        lose_replies(limiter, lossy, "settle")
        assert not reservation.settle(40)
    time.sleep(0.3)
    with pytest.raises(RuntimeError, match="not known"):
        reservation.settle(40)
    assert used(limiter, "k") == 40


@pytest.mark.parametrize("away", ["refuses", "is known to be away"])
def test_a_settlement_that_was_never_sent(limiter: Limiter, monkeypatch: pytest.MonkeyPatch, away: str) -> None:
    """However long the server was away: nothing can be charged twice."""
    monkeypatch.setattr(implementation, "REMEMBERED", 10.2)
    reservation = limiter.reserve("k", RULE, 10, lease=10.2)
    core = limiter._core
    server: Any = core.servers._only
    if away == "refuses":
        own = server.own.connection_pool
        own.disconnect()
        with monkeypatch.context() as elsewhere:
            elsewhere.setitem(own.connection_kwargs, "port", free_port())
            own.reset()
            assert not reservation.settle(7)
        own.reset()
    else:
        core.breaker.open(("", 10), Unavailable("away"))
        assert not reservation.settle(7)
    time.sleep(0.3)
    core.breaker.close(("", 10))
    assert reservation.settle(7)
    assert used(limiter, "k") == 7


def test_several_keys(server: Server, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: START_MS / 1000)
    month = calendar("2000/month")
    rules = {
        "{o}:requests": sliding("3/hour"),
        "{o}:minute": RULE.reserved(600),
        "{o}:month": month.reserved(700),
        "{o}:busy": lease(1, 60, holder="me"),
    }
    with limiter.reserve_all(rules) as reservation:
        assert [each.used for each in reservation.result.each] == [1, 600, 700, 1]
        with pytest.raises(Denied) as denied:
            limiter.reserve_all(rules)
        assert [each.allowed for each in denied.value.result.each] == [True, False, True, True]
        with pytest.raises(ValueError, match="each of the reserved keys"):
            reservation.settle({"{o}:minute": 5})
        assert reservation.settle({"{o}:minute": 5, "{o}:month": 6})
    assert [used(limiter, "{o}:requests", rules["{o}:requests"]), used(limiter, "{o}:minute")] == [1, 5]
    assert used(limiter, "{o}:month", month) == 6
    reservation = limiter.reserve_all([("{o}:minute", RULE.reserved(600)), ("{o}:month", month.reserved(600))])
    assert reservation.settle(100)
    assert [used(limiter, "{o}:minute"), used(limiter, "{o}:month", month)] == [105, 106]
    # Sent again, it is what it was.
    with limiter.reserve_all({"{o}:minute": RULE.reserved(10), "{o}:requests": sliding("3/hour")}) as reservation:
        assert reservation._renew(10)
        assert used(limiter, "{o}:requests", sliding("3/hour")) == 2


def test_one_key_that_cannot_be_settled(server: Server, limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    """The others are charged with what was used, also where the error ends the block."""
    broken = pytest.raises(Refused, match="WRONGTYPE")
    with broken, limiter.reserve_all({"{k}1": RULE.reserved(5), "{k}2": RULE.reserved(5)}) as reservation:
        server.run("DEL", "{k}1")
        server.run("HSET", "{k}1", "a", "b")
        reservation.settle(30)
    assert used(limiter, "{k}2") == 30
    assert len(caplog.records) == 1


def test_a_long_deadline(server: Server) -> None:
    """Longer than the server remembers a settlement: the first one is still sent."""
    with redis.Redis(port=server.port) as client, Limiter(client, timeout=3600) as limiter:
        assert limiter.reserve("k", RULE, 5).settle(3)
        assert used(limiter, "k") == 3


@pytest.mark.parametrize("rule", RULES, ids=["sliding", "fixed", "anchored", "calendar"])
def test_reset_while_units_are_reserved(limiter: Limiter, rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was reserved is given back by the reset, and not once more by the settlement."""
    monkeypatch.setattr(time, "time", lambda: START_MS / 1000)
    reservation = limiter.reserve("k", rule, 100)
    assert limiter.reset("k", rule)
    limiter.hit("k", rule, cost=50)
    assert reservation.settle(100)
    assert used(limiter, "k", rule) == (50 if isinstance(rule, type(RULE)) else 150)
    assert reservation.settle(100)


def test_lost_is_of_what_is_held(server: Server, limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    """Neither is a reservation lost that is settled, nor one of a period that is over: it counts nowhere."""
    for reservation in (limiter.reserve("k", RULE, 5, lease=0.001), limiter.reserve("k", RULE, 5)):
        assert reservation.settle(3)
        assert not reservation.lost
    with limiter.reserve("k", RULE, 5) as reservation:
        assert reservation.settle(3)
        assert reservation._ends == float("inf")
    month = limiter.reserve("month", calendar("10/month"), 5)
    server.set_clock(int(time.time() * 1000) + 32 * 86_400_000)
    assert month._renew(10)
    assert month._ends == float("inf")
    assert not caplog.records


async def test_a_caller_that_leaves(server: Server, aio: AsyncLimiter) -> None:
    """With asyncio, in the block and on its way out: what it has reserved is given back."""
    entered = asyncio.Event()

    async def work() -> None:
        async with await aio.reserve("k", RULE, 900):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    ended = time.monotonic() + 10
    while (await aio.peek("k", RULE, cost=0)).used:
        assert time.monotonic() < ended
        await asyncio.sleep(0.01)


async def test_asyncio(server: Server, aio: AsyncLimiter, caplog: pytest.LogCaptureFixture) -> None:
    async with await aio.reserve("k", RULE, 900, lease=30) as reservation:
        assert not reservation.lost
        assert await reservation.settle(30)
        assert await reservation.settle(30)
    both = await aio.reserve_all({"{a}": RULE.reserved(5), "{a}b": RULE.reserved(6)})
    assert await both.settle(4)
    assert (await aio.peek("k", RULE, cost=0)).used == 30
    assert (await aio.peek("{a}b", RULE, cost=0)).used == 4
    with pytest.raises(Denied):
        await aio.reserve("k", RULE, 971)
    assert not caplog.records


def test_a_clock_behind_the_servers(server: Server, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The period is over on the server: the call goes on to the next one, for once."""
    month = calendar("5/month", cost=2)
    # The server's time is the 14th of November 2023.
    monkeypatch.setattr(time, "time", lambda: 1_698_796_799.0)
    result = limiter.hit("k", month)
    assert (result.used, result.window_ms) == (2, 0)
    assert result.reset_after_ms == 1_701_388_800_000 - START_MS
    assert server.run("KEYS", "*") == ["k:@1701388800000"]
    assert limiter.all({"{k}": month, "{k}l": RULE}).each[0].used == 2
    assert limiter.peek("k", month, cost=0).used == 2
    monkeypatch.setattr(time, "time", lambda: 1_696_000_000.0)
    with pytest.raises(Refused, match="the window has ended"):
        limiter.hit("k", month)
    monkeypatch.setattr(time, "time", lambda: START_MS / 1000)
    assert limiter.refund("k", month, at_ms=result.at_ms)
    assert used(limiter, "k", month) == 0
    assert limiter.hit("k", month)
    assert limiter.reset("k", month) == 1


def test_a_calendar_in_an_adapter(server: Server, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    from redis_rl.wsgi import RateLimitMiddleware, key_for

    def hello(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        return []

    seen: list[Any] = []

    def start(status: str, headers: Any, *_: Any) -> Any:
        seen.append((status[:3], dict(headers)))

    monkeypatch.setattr(time, "time", lambda: START_MS / 1000)
    month = calendar("2/month", "Europe/Berlin")
    app = RateLimitMiddleware(hello, limiter=limiter, rule=month, timeout=10, deny_cache=False)
    for _ in range(3):
        app({"REMOTE_ADDR": "203.0.113.7"}, start)
    assert [status for status, _ in seen] == ["200", "200", "429"]
    assert seen[0][1]["RateLimit-Policy"] == '"month";q=2'
    # Till the first of December in Berlin.
    assert seen[2][1]["Retry-After"] == str(1_701_385_200 - START_MS // 1000)
    assert limiter.reset(str(key_for(month, "203.0.113.7")), month) == 1
    away = Limiter.from_url("redis://localhost:1")
    local = RateLimitMiddleware(hello, limiter=away, rule=month, when_unavailable="local")
    del seen[:]
    for _ in range(3):
        local({"REMOTE_ADDR": "203.0.113.7"}, start)
    assert [status for status, _ in seen] == ["200", "200", "429"]
    assert seen[2][1]["Retry-After"] == str(1_701_385_200 - START_MS // 1000)


def test_what_is_logged_of_a_settlement(limiter: Limiter, caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []
    limiter._counter._hook = lambda event: events.append(event.call)
    with caplog.at_level(logging.INFO, "redis_rl"), limiter.reserve("k", RULE, 5) as reservation:
        reservation.settle(4)
    assert events == ["hit", "settle"]
