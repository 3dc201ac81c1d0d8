"""Every command through the limiter, on a server with the module, one with functions and one with scripts alone."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
import time
from typing import Any, Literal

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio

from redis_rl import (
    AllResult,
    AsyncLimiter,
    Denied,
    Error,
    Event,
    Limiter,
    Refunded,
    Refused,
    Result,
    Rule,
    Sliding,
    State,
    Throttle,
    fixed,
    lease,
    sliding,
    throttle,
)
from redis_rl._memory import Denials
from redis_rl._protocol import source
from servers import MODULE, ROOT, START_MS, Server, compact, until


def figures(result: Result) -> tuple[int, ...]:
    return int(result.allowed), result.limit, result.used, result.remaining


def wait(ms: int | None) -> int:
    return -1 if ms is None else ms


def waits(result: Result) -> tuple[int | None, ...]:
    return result.retry_after_ms, result.next_after_ms, result.reset_after_ms


def test_the_carried_sources_are_those_of_the_repository() -> None:
    whats: tuple[Literal["library"], Literal["script"]] = ("library", "script")
    for what in whats:
        parts = [ROOT / "clients/go/lua" / f"{part}.lua" for part in (f"{what}.head", "core", f"{what}.tail")]
        assert source(what) == "".join(part.read_text(encoding="utf-8") for part in parts)


def test_the_mode_is_detected_once(server: Server, limiter: Limiter) -> None:
    assert limiter.mode is None
    limiter.hit("a", sliding("10/minute"))
    assert limiter.mode == server.mode
    server.run("CONFIG", "RESETSTAT")
    for _ in range(10):
        limiter.hit("a", sliding("10/minute"))
    with server.client() as client:
        calls = {name: stats["calls"] for name, stats in client.info("commandstats").items()}
    expected = {"module": "rl.sliding", "functions": "fcall", "script": "evalsha"}[server.mode]
    assert calls[f"cmdstat_{expected}"] == 10
    assert not {"cmdstat_eval", "cmdstat_function|load", "cmdstat_rl.all"} & set(calls)


def test_sliding(server: Server, limiter: Limiter) -> None:
    rule = sliding("3/minute")
    for used in (1, 2, 3):
        result = limiter.hit("a", rule)
        assert figures(result) == (1, 3, used, 3 - used)
        server.set_clock(START_MS + used * 1500)
    result = limiter.hit("a", rule)
    assert figures(result) == (0, 3, 3, 0)
    assert waits(result) == (55_500, 55_500, 58_500)
    assert (result.retry_after, result.next_after, result.reset_after) == (56, 56, 59)
    assert (result.window_ms, result.at_ms) == (60_000, START_MS + 4500)
    # Denied a millisecond before the time that it said, allowed at that time.
    server.set_clock(START_MS + 59_999)
    assert not limiter.hit("a", rule)
    server.set_clock(START_MS + 60_000)
    assert limiter.hit("a", rule)


def test_several_windows(server: Server, limiter: Limiter) -> None:
    rule = sliding("3/minute", "2/second")
    assert figures(limiter.hit("a", rule)) == (1, 2, 1, 1)
    assert figures(limiter.hit("a", rule)) == (1, 2, 2, 0)
    result = limiter.hit("a", rule)
    assert (result.allowed, result.window_ms, result.retry_after_ms) == (False, 1000, 1000)
    assert [(state.allowed, state.used, state.window_ms) for state in result.each] == [(0, 2, 1000), (1, 2, 60_000)]
    server.set_clock(START_MS + 1000)
    assert figures(limiter.hit("a", rule)) == (1, 3, 3, 0)
    result = limiter.hit("a", rule)
    assert (result.window_ms, result.retry_after_ms) == (60_000, 59_000)


def test_fixed(server: Server, limiter: Limiter) -> None:
    server.set_clock(START_MS + 5000)  # 1700000000 is 20 s into its minute.
    rule = fixed("2/minute")
    assert [limiter.hit("a", rule).allowed for _ in range(3)] == [True, True, False]
    result = limiter.hit("a", rule)
    assert figures(result) == (0, 2, 4, 0)  # The plain form counts what it denies.
    assert result.retry_after_ms is not None
    server.set_clock(START_MS + 5000 + result.retry_after_ms - 1)
    assert not limiter.peek("a", rule)
    server.set_clock(START_MS + 5000 + result.retry_after_ms)
    assert figures(limiter.hit("a", rule)) == (1, 2, 1, 1)


def test_anchored(server: Server, limiter: Limiter) -> None:
    rule = fixed("2/minute", anchored=True, cost=1)
    assert limiter.hit("a", rule).reset_after_ms == 60_000
    server.set_clock(START_MS + 59_999)
    assert limiter.hit("a", rule)
    result = limiter.hit("a", rule)
    assert (result.allowed, result.retry_after_ms) == (False, 1)
    server.set_clock(START_MS + 60_000)
    assert figures(limiter.hit("a", rule)) == (1, 2, 1, 1)
    with server.client() as client:
        assert client.keys() == ["a:60s"]


def test_throttle(server: Server, limiter: Limiter) -> None:
    rule = throttle("60/minute", burst=2)
    assert [limiter.hit("a", rule).remaining for _ in range(3)] == [2, 1, 0]
    result = limiter.hit("a", rule)
    assert figures(result) == (0, 3, 3, 0)
    assert waits(result) == (1000, 1000, 3000)
    assert figures(limiter.hit("a", rule, cost=4))[0] == 0
    assert limiter.hit("a", rule, cost=4).retry_after is None
    server.set_clock(START_MS + 1000)
    assert limiter.hit("a", rule)


def test_cost_and_force(limiter: Limiter) -> None:
    rule = sliding("100/minute", cost=60)
    assert figures(limiter.hit("a", rule)) == (1, 100, 60, 40)
    assert figures(limiter.hit("a", rule)) == (0, 100, 60, 40)
    assert figures(limiter.hit("a", rule, cost=40)) == (1, 100, 100, 0)
    assert figures(limiter.hit("a", rule, cost=5, force=True)) == (0, 100, 105, 0)
    never = limiter.hit("a", rule, cost=101)
    assert (never.retry_after_ms, never.retry_after) == (None, None)
    assert "Retry-After" not in never.headers()


def test_peek(server: Server, limiter: Limiter) -> None:
    for rule in (sliding("2/minute"), fixed("2/minute"), fixed("2/minute", anchored=True), throttle("2/minute")):
        assert figures(limiter.peek("a", rule)) == (1, 2, 1, 1)
        assert figures(limiter.peek("a", rule, cost=0)) == (1, 2, 0, 2)
        assert limiter.peek("a", rule, cost=3).retry_after is None
    assert figures(limiter.peek("a", lease(2, 30, holder="me"))) == (1, 2, 1, 1)
    assert [state.used for state in limiter.peek("a", sliding("1/s", "2/m")).each] == [1, 1]
    with server.client() as client:
        assert client.dbsize() == 0


def test_refund(server: Server, limiter: Limiter) -> None:
    rule = sliding("10/minute", cost=4)
    first = limiter.hit("a", rule)
    server.set_clock(START_MS + 1000)
    limiter.hit("a", rule)
    assert limiter.refund("a", rule, cost=1, at_ms=first.at_ms) == Refunded(1, 7, 60)
    assert limiter.refund("a", rule) == Refunded(4, 3, 60)
    assert limiter.refund("a", rule, cost=9) == Refunded(3, 0, 60)
    assert not limiter.refund("a", rule)
    assert limiter.hit("b", fixed("5/minute"), cost=3)
    assert limiter.refund("b", fixed("5/minute"), cost=2).used == 1
    assert limiter.hit("c", throttle("5/minute"), cost=3)
    assert limiter.refund("c", throttle("5/minute"), cost=2).used == 1


def test_reset(limiter: Limiter) -> None:
    limiter.hit("a", sliding("1/minute"))
    limiter.hit("a", fixed("1/minute", "5/hour"))
    limiter.hit("a", fixed("1/minute", anchored=True))
    assert limiter.reset("a") == 1
    assert limiter.reset("a", fixed("1/minute", "5/hour")) == 3
    assert limiter.reset("a", "1/minute", (5, 3600)) == 0
    assert limiter.hit("a", sliding("1/minute"))


def test_leases(server: Server, limiter: Limiter) -> None:
    rule = lease(2, 30)
    first, second = limiter.acquire("a", rule), limiter.acquire("a", rule, holder="me")
    assert figures(first) == (1, 2, 1, 1)
    assert second.holder == "me"
    third = limiter.acquire("a", rule)
    assert (third.allowed, third.used, third.retry_after_ms) == (False, 2, 30_000)
    server.set_clock(START_MS + 20_000)
    assert limiter.acquire("a", rule, holder="me").reset_after_ms == 30_000
    assert first.holder is not None
    assert limiter.release("a", first.holder, "nobody") == 1
    assert limiter.release("a", first.holder) == 0
    server.set_clock(START_MS + 50_000)
    assert limiter.peek("a", lease(2, 30, holder="other")).used == 1


def test_a_held_lease(limiter: Limiter) -> None:
    rule = lease(1, 30)
    with limiter.hold("a", rule) as held:
        assert not held.lost
        with pytest.raises(Denied) as denied, limiter.hold("a", rule):
            pytest.fail("entered")
        assert denied.value.result.retry_after == 30
        assert "30 s" in str(denied.value)
        assert pickle.loads(pickle.dumps(denied.value)).result.retry_after == 30
        assert limiter.peek("a", lease(1, 30, holder=held.holder))
    assert limiter.peek("a", lease(1, 30, holder="other")).used == 1
    with pytest.raises(ZeroDivisionError), limiter.hold("a", rule):
        raise ZeroDivisionError
    assert limiter.acquire("a", rule)


def test_a_held_lease_is_for_one_block(limiter: Limiter) -> None:
    """Two blocks would have one holder, and so one place."""
    block = limiter.hold("a", lease(2, 30))
    with block:
        with pytest.raises(RuntimeError, match="for one block"), block:
            pytest.fail("entered")
        assert limiter.peek("a", lease(2, 30, holder=block.holder)).used == 1
    with pytest.raises(RuntimeError, match="for one block"), block:
        pytest.fail("entered")
    reservation = limiter.reserve("r", sliding("10/hour"), 5)
    with reservation:
        with pytest.raises(RuntimeError, match="for one block"), reservation:
            pytest.fail("entered")
        assert reservation.settle(3)
    assert limiter.peek("r", sliding("10/hour"), cost=0).used == 3


def test_a_held_lease_is_renewed(server: Server) -> None:
    renewals: list[int] = []
    enough = threading.Event()

    def watched(event: Event) -> None:
        if event.call in ("hit", "renew") and event.result is not None:
            renewals.append(event.result.at_ms + (event.result.reset_after_ms or 0))
            server.set_clock(START_MS + 20 * len(renewals))
            if len(renewals) == 4:
                enough.set()

    with redis.Redis(port=server.port) as client, Limiter(client, timeout=10, hook=watched) as limiter:
        with limiter.hold("a", lease(1, 3)) as held:
            assert enough.wait(30)
            assert not held.lost
        assert renewals[:4] == [START_MS + 3000, START_MS + 3020, START_MS + 3040, START_MS + 3060]
        assert limiter.peek("a", lease(1, 1, holder="other")).used == 1
        # A lease is one request, however long it is held.
        assert limiter.statistics.allowed == 1


def test_a_held_lease_may_be_lost(server: Server, limiter: Limiter) -> None:
    """Another has it since the server's clock was set: the next renewal tells."""
    with limiter.hold("a", lease(1, 3)) as held:
        server.set_clock(START_MS + 3000)
        assert limiter.acquire("a", lease(1, 10), holder="other")
        assert held.lost_event.wait(30)
        assert held.lost
    assert not limiter.acquire("a", lease(1, 10))


def test_a_place_is_waited_for(limiter: Limiter) -> None:
    rule = lease(1, 30)
    with limiter.hold("a", rule):
        other = threading.Timer(0.1, lambda: limiter.release("b", "me"))
        limiter.acquire("b", rule, holder="me")
        other.start()
        with limiter.hold("b", rule, timeout=30) as held:
            assert not held.lost
        other.join()
        with pytest.raises(Denied), limiter.hold("a", rule, timeout=0.05):
            pytest.fail("entered")


def test_all(server: Server, limiter: Limiter) -> None:
    rules: dict[str | bytes, Rule] = {
        "rpm": sliding("10/minute"),
        "tpm": sliding("2000/minute", cost=900, name="tokens", unit="tokens"),
        "busy": lease(2, 120, holder="first"),
        "pace": throttle("100/minute"),
        "day": fixed("50/day"),
    }
    first = limiter.all(rules)
    assert isinstance(first, AllResult)
    assert (first.allowed, first.index, first.remaining, first.retry_after) == (True, 2, 1, 0)
    assert [result.used for result in first.each] == [1, 900, 1, 1, 1]
    second = limiter.all((rules | {"busy": lease(2, 120, holder="second")}).items())
    assert [each.each[2].holder for each in (first, second)] == ["first", "second"]
    server.set_clock(START_MS + 500)
    third = limiter.all(rules | {"busy": lease(2, 120, holder="third")})
    assert (third.allowed, third.index, third.retry_after_ms) == (False, 2, 119_500)
    assert [result.allowed for result in third.each] == [True, False, False, True, True]
    assert [result.used for result in third.each] == [2, 1800, 2, 2, 2]
    assert third.violated == ["tokens", "120s"]
    assert third.headers()["Retry-After"] == "120"
    assert third.at_ms == START_MS + 500


def test_reservations(server: Server, limiter: Limiter) -> None:
    rule = sliding("1000/minute")
    with limiter.reserve("a", rule, 1) as least, limiter.reserve("a", rule, 600) as reservation:
        assert reservation.result.used == 601
        with pytest.raises(Denied):
            limiter.reserve("a", rule, 600)
        server.set_clock(START_MS + 5000)
        other = limiter.reserve("a", rule, 300)
        reservation.settle(250)
        least.cancel()
    assert limiter.peek("a", rule, cost=0).used == 550
    with pytest.raises(RuntimeError):
        reservation.settle(100)
    other.settle(900)
    state = limiter.peek("a", rule, cost=0)
    assert (state.used, state.remaining) == (1150, 0)
    # What was given back is of the moment when it was taken.
    server.set_clock(START_MS + 60_000)
    assert limiter.peek("a", rule, cost=0).used == 900
    for wrong in (throttle("1/s"), lease(1, 1)):
        with pytest.raises(TypeError):
            limiter.reserve("a", wrong, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="actual"):
        other.settle(-1)
    with limiter.reserve("a", rule, 50):
        pass
    assert limiter.peek("a", rule, cost=0).used == 950


def test_reservations_of_any_size(server: Server, limiter: Limiter) -> None:
    rule: Any = sliding("200000/minute")
    if not compact(server):
        with pytest.raises(Refused, match="COST above 1000 needs a compact log"):
            limiter.reserve("a", rule, 128_000)
        rule = fixed("200000/minute", anchored=True)
    limiter.reserve("b", rule, 1).settle(2)
    limiter.reserve("b", rule, 128_000).settle(131_072)
    assert limiter.peek("b", rule, cost=0).used == 131_074


def test_waiting(server: Server, limiter: Limiter) -> None:
    """By the real clock, and each with one call."""
    server.set_clock(0)
    rule = sliding("2/300ms")
    results = [limiter.wait("a", rule) for _ in range(6)]
    assert all(results)
    assert results[2].at_ms - results[0].at_ms >= 300
    assert results[4].at_ms - results[2].at_ms >= 300
    assert limiter.statistics.denied == 0
    assert limiter.wait("b", sliding("1/hour"), timeout=5)
    began = time.monotonic()
    # It would have a turn within that time if it came again then.
    assert 3590 < (limiter.wait("b", sliding("1/hour"), timeout=5).retry_after or 0) <= 3596
    assert limiter.wait("b", sliding("1/hour"), cost=2).retry_after is None
    assert time.monotonic() - began < 5
    forced: list[Any] = [sliding("1/hour", force=True), fixed("1/hour", force=True)]
    for rule in forced:
        with pytest.raises(ValueError, match="forced"):
            limiter.wait("c", rule)
    assert limiter.peek("c", fixed("1/hour"), cost=0).used == 0


def test_a_denial_is_remembered(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than the test takes on a machine that is busy.
    monkeypatch.setattr("redis_rl._memory.LONGEST", 60.0)
    events: list[Event] = []
    with (
        redis.Redis(port=server.port) as client,
        Limiter(client, hook=events.append, timeout=10) as limiter,
    ):
        limiter._remembers = True
        rule = sliding("3/minute")

        def asked(call: Any) -> Any:
            """The answer, and whether the server has given it."""
            before = calls(server)
            result = call()
            return bool(result), calls(server) > before

        assert [asked(lambda: limiter.hit("a", rule)) for _ in range(4)] == [(True, True)] * 3 + [(False, True)]
        assert asked(lambda: limiter.hit("a", rule)) == (False, False)
        assert asked(lambda: limiter.hit("a", sliding("3/minute"), cost=2)) == (False, False)
        # Another rule, another key, and a forced call are asked.
        assert asked(lambda: limiter.hit("a", sliding("4/minute"))) == (True, True)
        assert asked(lambda: limiter.hit("b", rule)) == (True, True)
        assert asked(lambda: limiter.hit("a", rule, force=True)) == (False, True)
        assert asked(lambda: limiter.peek("a", rule, cost=0)) == (False, True)
        # A lighter request may fit.
        assert asked(lambda: limiter.hit("c", rule, cost=2)) == (True, True)
        assert asked(lambda: limiter.hit("c", rule, cost=2)) == (False, True)
        assert asked(lambda: limiter.hit("c", rule)) == (True, True)
        # One that never fits has another answer.
        assert asked(lambda: limiter.hit("d", sliding("1/minute"))) == (True, True)
        assert asked(lambda: limiter.hit("d", sliding("1/minute"))) == (False, True)
        assert limiter.hit("d", sliding("1/minute"), cost=2).retry_after is None
        assert asked(lambda: limiter.hit("d", sliding("1/minute"), cost=2)) == (False, False)
        # What was given back is known at once.
        assert limiter.refund("a", rule)
        assert not asked(lambda: limiter.hit("a", rule))[0]
        assert asked(lambda: limiter.hit("a", rule)) == (False, False)
        assert limiter.reset("a")
        assert asked(lambda: limiter.hit("a", rule)) == (True, True)
        # Several rules are one request.
        pairs = [("a", rule), ("b", sliding("1/minute"))]
        assert asked(lambda: limiter.all(pairs)) == (False, True)
        assert asked(lambda: limiter.all(pairs)) == (False, False)
        assert asked(lambda: limiter.all([("a", rule)])) == (True, True)
        remembered = limiter.all(pairs)
        assert (remembered.index, remembered.violated) == (1, ["60s-2"])
        assert remembered.retry_after_ms is not None
        assert limiter.statistics.denied_from_memory == 6
        assert sum(event.source == "memory" for event in events) == 6
        assert {event.limiter for event in events} == {"redis-rl"}


def test_a_remembered_wait_is_never_too_short() -> None:
    """It counts from when the reply came: the server decided before that, at a time that is not known."""
    rule = sliding("1/minute")
    denial = Result.of(rule, [State(False, 1, 1, 0, 900, 900, 900, 60_000, START_MS)])
    denials = Denials()
    denials.remember([("a", rule)], denial, time.monotonic() - 0.5)
    known = denials.find([("a", rule)])
    assert known is not None
    assert known.retry_after_ms is not None
    assert 400 < known.retry_after_ms <= 900
    denials.remember([("a", rule)], denial, time.monotonic() - 0.9)
    assert denials.find([("a", rule)]) is None


def test_a_denial_is_forgotten_after_its_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis_rl._memory.LONGEST", 60.0)
    monkeypatch.setattr("redis_rl._memory.MOST", 2)
    with redis.Redis(port=server.port) as client, Limiter(client, timeout=10) as limiter:
        limiter._remembers = True
        rule = sliding("1/s")
        server.set_clock(0)
        for _ in range(3):
            until("it is let in", lambda: limiter.hit("a", rule))
        # In two waits the server was asked at their begin, and at their end some times too early.
        assert limiter.statistics.denied_from_memory > 0
        assert limiter.statistics.denied - limiter.statistics.denied_from_memory <= 20
        # Of more keys than it has entries it remembers the last ones.
        for key in "xyz":
            limiter.hit(key, sliding("1/hour"))
            limiter.hit(key, sliding("1/hour"))
        before = limiter.statistics.denied_from_memory
        for key in "zyx":
            limiter.hit(key, sliding("1/hour"))
        assert limiter.statistics.denied_from_memory == before + 2


def test_the_hook(server: Server) -> None:
    events: list[Event] = []

    def hook(event: Event) -> None:
        events.append(event)
        raise ZeroDivisionError

    with redis.Redis(port=server.port) as client, Limiter(client, name="api", hook=hook, timeout=10) as limiter:
        limiter.hit("a", sliding("1/minute"))
        limiter.all([("a", sliding("1/minute")), ("b", fixed("1/minute"))])
        server.run("LPUSH", "list", "x")
        with pytest.raises(Refused):
            limiter.hit("list", sliding("1/minute"))
        limiter.reset("a")
    seen = [(event.limiter, event.call, event.keys, bool(event.result), event.error is not None) for event in events]
    assert seen == [
        ("api", "hit", ("a",), True, False),
        ("api", "all", ("a", "b"), False, False),
        ("api", "hit", ("list",), False, True),
        ("api", "reset", ("a",), False, False),
    ]
    assert all(0 <= event.seconds < 60 for event in events)
    statistics = limiter.statistics
    assert (statistics.allowed, statistics.denied, statistics.unavailable) == (1, 1, 0)


def test_prefix_and_bytes(server: Server) -> None:
    with server.client() as client, redis.Redis(port=server.port) as raw:
        limiter = Limiter(client, prefix="app:", timeout=10)
        limiter.hit("a", sliding("1/minute"))
        limiter.hit(b"\xff\x00", sliding("1/minute"))
        limiter.hit(b"a", sliding("2/minute"))
        assert sorted(raw.keys()) == [b"app:a", b"app:\xff\x00"]


def calls(server: Server) -> int:
    """Calls of ours that the server has had."""
    with server.client() as client:
        stats = client.info("commandstats")
    kinds = ("rl.sliding", "rl.fixed", "rl.all", "rl.peek", "fcall", "fcall_ro", "evalsha", "evalsha_ro", "eval")
    return sum(stats[name]["calls"] for kind in kinds if (name := f"cmdstat_{kind}") in stats)


def test_errors_are_the_servers_own(server: Server, limiter: Limiter) -> None:
    with server.client() as client:
        client.lpush("list", "x")
    with pytest.raises(Refused, match="WRONGTYPE"):
        limiter.hit("list", sliding("1/minute"))
    with pytest.raises(Refused, match="takes each key once"):
        limiter.all([("a", sliding("1/minute")), ("a", fixed("1/minute"))])


@pytest.fixture(params=["redis", "valkey"])
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("single", [False, True])
async def test_clients(server: Server, library: str, protocol: int, decode: bool, single: bool) -> None:
    """redis-py and valkey-py, over RESP2 and RESP3, with one connection and with a pool."""
    options: dict[str, Any] = {"port": server.port, "protocol": protocol, "decode_responses": decode}
    options["single_connection_client"] = single
    sync = redis.Redis(**options) if library == "redis" else valkey.Valkey(**options)
    aio = redis.asyncio.Redis(**options) if library == "redis" else valkey.asyncio.Valkey(**options)
    pairs: dict[str | bytes, Sliding | Throttle] = {"a": sliding("5/s", "10/minute"), "b": throttle("7/s")}
    with sync, Limiter(sync, timeout=10) as limiter:
        assert limiter.all(pairs).each[0].used == 1
        assert limiter.hit("a", pairs["a"]).each[1].remaining == 8
        assert limiter.refund("a", pairs["a"]) == Refunded(1, 1, 1)
        with pytest.raises(Error, match=r"WRONGTYPE|not an integer|syntax|kind of value|out of range"):
            limiter.hit("a", pairs["b"])
    async with aio, AsyncLimiter(aio, timeout=10) as limiter_aio:
        assert (await limiter_aio.all(pairs)).each[0].used == 2
        assert (await limiter_aio.hit("a", pairs["a"])).each[1].remaining == 7
        assert await limiter_aio.refund("a", pairs["a"]) == Refunded(1, 2, 1)


async def test_asyncio(server: Server, aio: AsyncLimiter) -> None:
    """The whole surface once, as above."""
    rule = sliding("3/minute")
    assert aio.mode is None
    assert [(await aio.hit("a", rule)).remaining for _ in range(3)] == [2, 1, 0]
    assert aio.mode == server.mode
    assert aio.mode == server.mode
    assert (await aio.hit("a", rule)).retry_after == 60
    assert (await aio.peek("a", rule, cost=0)).used == 3
    assert await aio.refund("a", rule) == Refunded(1, 2, 60)
    assert await aio.reset("a") == 1
    taken = await aio.acquire("l", lease(1, 30))
    assert taken.holder is not None
    assert await aio.release("l", taken.holder) == 1
    async with aio.hold("l", lease(1, 30)) as held:
        assert not held.lost
        with pytest.raises(Denied):
            async with aio.hold("l", lease(1, 30)):
                pytest.fail("entered")
        assert held.holder
    budget = sliding("1000/minute")
    async with await aio.reserve("b", budget, 600) as reservation:
        await reservation.settle(700)
    await (await aio.reserve("b", budget, 300)).cancel()
    assert (await aio.peek("b", budget, cost=0)).used == 700
    with pytest.raises(Denied):
        await aio.reserve("b", budget, 400)
    server.set_clock(0)
    waited = [await aio.wait("w", sliding("1/100ms")) for _ in range(2)]
    assert waited[1].at_ms - waited[0].at_ms >= 100
    assert await aio.wait("x", sliding("1/hour"), timeout=10)
    assert not await aio.wait("x", sliding("1/hour"), timeout=10)


async def test_asyncio_renews(server: Server) -> None:
    renewals: list[int] = []
    enough = asyncio.Event()

    def watched(event: Event) -> None:
        if event.call in ("hit", "renew") and event.result is not None:
            renewals.append(event.result.at_ms + (event.result.reset_after_ms or 0))
            server.set_clock(START_MS + 20 * len(renewals))
            if len(renewals) == 4:
                enough.set()

    async with (
        redis.asyncio.Redis(port=server.port) as client,
        AsyncLimiter(client, timeout=10, hook=watched) as aio,
    ):
        async with aio.hold("a", lease(1, 3)) as held:
            await asyncio.wait_for(enough.wait(), 30)
            assert not held.lost
        assert renewals[:4] == [START_MS + 3000, START_MS + 3020, START_MS + 3040, START_MS + 3060]
        assert (await aio.peek("a", lease(1, 1, holder="other"))).used == 1


def test_threads(server: Server, limiter: Limiter) -> None:
    """Many at once at first sight of the server: each is counted, and no more than the limit pass."""
    allowed: list[bool] = []

    def ask() -> None:
        allowed.extend(limiter.hit("a", sliding("50/minute")).allowed for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(allowed), len(allowed)) == (50, 160)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_binding_window_is_the_servers(server: Server, limiter: Limiter, seed: int) -> None:
    """What is computed of EACH is what the server says with FULL, over random histories."""
    chance = random.Random(seed)
    now = START_MS
    with server.client() as client:
        for _ in range(150):
            now += chance.choice([0, 1, 250, 1000, 7000])
            server.set_clock(now)
            rates, cost = ("4/second", "9/5s", "20/minute"), chance.randint(1, 5)
            rule: Rule = chance.choice([sliding(*rates, cost=cost), fixed(*rates, cost=cost)])
            if chance.random() < 0.1:
                rule = rule.forced()
            key = rule.KIND
            words: list[Any] = [key, rule.KIND, *rule.words(), "FULL"]
            ours = limiter.peek(key, rule)
            if server.mode == "module":
                words = ["RL.PEEK", *words]
            elif server.mode == "functions":
                words = ["FCALL", "rl_peek", 1, *words]
            else:
                words = ["EVAL", source("script"), 1, key, "peek", *words[1:]]
            reply: Any = client.execute_command(*words)
            pairs = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
            said = {name: int(value) for name, value in pairs.items()}
            assert said == {
                "allowed": int(ours.allowed),
                "limit": ours.limit,
                "used": ours.used,
                "remaining": ours.remaining,
                "retry-after-ms": wait(ours.retry_after_ms),
                "next-after-ms": wait(ours.next_after_ms),
                "reset-after-ms": wait(ours.reset_after_ms),
                "window-ms": ours.window_ms,
                "at-ms": ours.at_ms,
            }
            limiter.hit(key, rule)


def test_the_module_is_here() -> None:
    """So that a run without it does not look like a success."""
    assert MODULE.exists(), f"build the module first, or say where it is in MODULE: {MODULE}"


@pytest.mark.parametrize("library", [redis.Redis, valkey.Valkey])
def test_clients_with_an_encoding_of_their_own(server: Server, library: Any) -> None:
    """Keys and holders go out as those of the client's other commands do."""
    with library(port=server.port, encoding="latin-1") as client:
        limiter = Limiter(client, prefix="p\u00e4:", timeout=10)
        assert limiter.hit("gr\u00f6\u00dfe", sliding("5/minute")).used == 1
        limiter.acquire("busy", lease(1, 60), holder="J\u00fcrgen")
        assert client.zscore("p\u00e4:busy", "J\u00fcrgen")
        assert client.exists("p\u00e4:gr\u00f6\u00dfe")
    # hiredis, with which redis-py packs here, takes UTF-8 alone.
    with valkey.Valkey(port=server.port, encoding_errors="surrogateescape") as client:
        assert Limiter(client, timeout=10).hit("\udcff", sliding("5/minute")).used == 1
        assert client.exists(b"\xff")
