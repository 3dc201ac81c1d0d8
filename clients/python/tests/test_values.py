"""Rates, rules, results and headers: what needs no server."""

from __future__ import annotations

import asyncio
import copy
import enum
import json
import pickle
import time
import traceback
from datetime import timedelta
from decimal import Decimal
from typing import Any

import http_sfv
import pytest
import redis
import redis.asyncio

from redis_rl import (
    AllResult,
    AsyncLimiter,
    Limiter,
    Result,
    State,
    Window,
    calendar,
    fixed,
    lease,
    sliding,
    throttle,
)
from redis_rl._calls import Calls
from redis_rl._local import Local
from redis_rl._memory import Denials
from redis_rl._protocol import Command, source
from redis_rl._sync.guard import undecided

MOST = 2**53 - 1


@pytest.mark.parametrize(
    ("rate", "limit", "seconds"),
    [
        ((7, 0.1), 7, "0.1"),
        ((7, Decimal("0.001")), 7, "0.001"),
        ((7, timedelta(milliseconds=1500)), 7, "1.5"),
        (Window(1000, 3), 3, "1"),
    ],
)
def test_rate(rate: Any, limit: int, seconds: str) -> None:
    """Beyond what clients/cases say."""
    (window,) = sliding(rate).windows
    assert (window.limit, window.seconds) == (limit, seconds)


@pytest.mark.parametrize("rate", [(1, float("nan")), (1, float("inf")), (1, Decimal("0.0001"))])
def test_bad_rate(rate: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        sliding(rate)


@pytest.mark.parametrize("rate", [None, 100, (1,), (1, 2, 3), (1.5, 60), (True, 60), (1, "60"), (1, None), b"1/s"])
def test_rate_of_another_type(rate: Any) -> None:
    with pytest.raises(TypeError, match=r".+"):
        sliding(rate)


def test_a_rule_is_made_of_another() -> None:
    assert sliding("1/s").with_cost(7).forced().words() == ["1", 1, "COST", 7, "FORCE"]
    assert lease(16, 0.5).held_by("you").words() == [16, "0.5", "you"]
    assert lease(1, timedelta(minutes=2)).ms == 120_000
    random = lease(16, 1)
    assert random.held_by().holder != random.held_by().holder
    wrong: list[Any] = [throttle("1/s").forced, lease(1, 1).forced, lambda: lease(1, 1).with_cost(2)]
    for call in wrong:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="name"):
        sliding("1/s", name="a\r\nSet-Cookie: b")
    with pytest.raises(TypeError, match="unit"):
        sliding("1/s", unit=5)  # type: ignore[arg-type]


def test_a_rule_is_a_value() -> None:
    assert sliding("100/minute") == sliding((100, 60))
    assert len({sliding("1/s"), sliding((1, 1)), fixed("1/s")}) == 2


def test_commands() -> None:
    calls = Calls("p:")
    command = calls.decision("all", [("a", sliding("1/s")), (b"\xff", lease(2, 3, holder="h"))])
    words = ["SLIDING", "1", 1, "COST", 1, "ACQUIRE", 2, "3", "h", "FULL"]
    assert command.sent("module") == ["RL.ALL", 2, "p:a", b"p:\xff", *words]
    assert command.sent("script", whole=True)[:2] == ["EVAL", source("script")]
    peek = calls.decision("peek", [("a", fixed("1/s", "2/m"))])
    assert peek.sent("script", whole=True)[0] == "EVAL_RO"
    assert peek.sent("script", read_only=False)[0] == "EVALSHA"
    assert Calls(b"\xff").key("\u00fc") == b"\xff\xc3\xbc"
    reset = calls.reset("a", [fixed("1/s", "2/m"), sliding("3/m"), "1/h, 1/d", lease(1, 1)])
    assert reset == Command("RESET", ["p:a"], ["1", "60", "3600", "86400", "HOLD"])


def test_rules_stay_values_after_a_call() -> None:
    rule = sliding("5/minute")
    Calls("").decision("hit", [("a", rule)]).sent("module")
    assert rule == sliding("5/minute")
    assert hash(rule) == hash(sliding("5/minute"))
    for copied in (pickle.loads(pickle.dumps(rule)), copy.deepcopy(rule)):
        assert copied == rule
        assert Calls("").decision("hit", [("a", copied)]) == Calls("").decision("hit", [("a", rule)])
    # What is known of a rule is not known of those made of it.
    assert 2 in Calls("").decision("hit", [("a", rule.with_cost(2))]).words


def test_numbers_of_an_enumeration() -> None:
    """Client libraries do not send them."""
    two = enum.IntEnum("Numbers", {"TWO": 2}).TWO  # type: ignore[attr-defined]
    for rule in (sliding((two, 60), cost=two), throttle((two, 60), burst=two), lease(two, 60).held_by("me")):
        assert {type(word) for word in rule.words()} <= {int, str}


def test_a_reply_that_cannot_be_read_is_shown_in_short() -> None:
    for reply in ([1] * 1_000_000, "x" * 1_000_000, [["x" * 1_000_000] * 1000] * 1000):
        with pytest.raises(ValueError, match="cannot be read") as error:
            State.read(reply)
        assert len(str(error.value)) < 2000


def test_limiter_arguments() -> None:
    options: list[tuple[dict[str, Any], str]] = [
        ({"mode": "lua"}, "mode must be 'auto', 'module', 'functions' or 'script', not 'lua'"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0, not 0"),
        ({"timeout": "1"}, "timeout must be"),
        ({"timeout": 1e10}, "timeout must be"),
    ]
    for wrong, message in options:
        with pytest.raises(ValueError, match=message):
            Limiter(redis.Redis(), **wrong)
    for client in (redis.ConnectionPool(), redis.Redis().pipeline(), redis.Redis, None, "redis://:secret@host"):
        with pytest.raises(TypeError, match="redis-py or valkey-py is needed, not ") as caught:
            Limiter(client)  # type: ignore[arg-type]
        assert "secret" not in str(caught.value)
    with pytest.raises(TypeError, match=r"is for AsyncLimiter, and this is a redis\.asyncio\.client\.Redis$"):
        Limiter(redis.asyncio.Redis(password="secret"))  # type: ignore[arg-type]
    for wrong_rules in ("ab", 5, [("a",)]):
        with pytest.raises(TypeError, match="a dict of keys and rules, or pairs of them, is needed, not "):
            Limiter(redis.Redis()).all(wrong_rules)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"is needed, not a builtins\.object$"):
        Limiter(object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is for AsyncLimiter"):
        Limiter(redis.asyncio.Redis())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is for Limiter"):
        AsyncLimiter(redis.Redis())  # type: ignore[arg-type]
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"name": 5}, "name must be a string"),
        ({"hook": "x"}, "hook must be a function"),
        ({"hook": asyncio.sleep}, "not asynchronous"),
    ]
    for wrong, message in mistakes:
        with pytest.raises(TypeError, match=message):
            Limiter(redis.Redis(), **wrong)
    with pytest.raises(TypeError, match="prefix must be str or bytes"):
        Limiter(redis.Redis(), prefix=None)  # type: ignore[arg-type]
    limiter: Any = Limiter(redis.Redis())
    for never in (-1, "5", True, float("nan")):
        with pytest.raises(ValueError, match="timeout must be a number of seconds, not "):
            limiter.wait("a", sliding("1/s"), timeout=never)
        with pytest.raises(ValueError, match="timeout must be a number of seconds, not "):
            limiter.hold("a", lease(1, 1), timeout=never)
    with pytest.raises(TypeError, match="a lease has no cost"):
        limiter.wait("a", lease(1, 1), timeout=0, cost=2)
    for no_url in (None, b"redis://:secret@localhost"):
        with pytest.raises(TypeError, match=r"the URL must be a string, not of <class '[A-Za-z]+'>$"):
            Limiter.from_url(no_url)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at_ms must be an integer from 0 to "):
        limiter.refund("a", calendar("5/day"), at_ms="5")
    with pytest.raises(ValueError, match="within must be from 0 to 3600 seconds"):
        limiter.turn("a", sliding("1/s"), Decimal("NaN"))
    with pytest.raises(ValueError, match="the holder must be a name, not None"):
        limiter.release("a", None)
    assert Limiter(redis.Redis(), mode="script").mode == "script"
    assert Limiter(redis.Redis()).mode is None


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:secret/part@host:6379",
        "redis://:secret#part@host",
        "redis+cluster://:secret/part@h1:1,h2:2",
        "redis+sentinel://:secret?part@host:26379/name",
        "valkey://:secret\u2100@host",
        "redis://[:secret@host",
    ],
)
def test_no_password_in_the_error_of_an_url(url: str) -> None:
    with pytest.raises(ValueError, match="the URL cannot be read") as caught:
        Limiter.from_url(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("library", ["redis", "valkey"])
@pytest.mark.parametrize("tls", ["", "s"])
async def test_what_an_url_says(library: str, tls: str) -> None:
    """Of a cluster and of sentinels, as of one server: a login that is escaped, the options, and TLS."""
    rest = "://us%2Fer:p%2Fss@h1:1,h2:2{}?client_name=mine&health_check_interval=5"
    cluster: Any = AsyncLimiter.from_url(f"{library}{tls}+cluster{rest.format('')}")._owned
    seen = [(cluster.connection_kwargs, cluster.connection_kwargs.get("connection_class"))]
    for kind in (Limiter, AsyncLimiter):
        url = f"{library}{tls}+sentinel{rest.format('/name')}"
        pool = kind.from_url(url)._owned.connection_pool
        assert pool.service_name == "name"
        seen.append((pool.connection_kwargs, pool.connection_class))
        asked = pool.sentinel_manager.sentinels[0].connection_pool
        assert (asked.connection_kwargs["username"], asked.connection_kwargs["password"]) == ("us/er", "p/ss")
        assert ("SSL" in asked.connection_class.__name__) == bool(tls)
    for options, connection_class in seen:
        assert (options["username"], options["password"]) == ("us/er", "p/ss")
        assert (options["client_name"], options["health_check_interval"]) == ("mine", 5)
        assert ("SSL" in getattr(connection_class, "__name__", "")) == bool(tls)
    with pytest.raises(ValueError, match="schemes"):
        Limiter.from_url("http+cluster://h1:1")


def state(allowed: bool = True, **values: int | None) -> State:
    fields: dict[str, Any] = {
        "limit": 10,
        "used": 4,
        "remaining": 6,
        "retry_after_ms": 0,
        "next_after_ms": 1001,
        "reset_after_ms": 60_000,
        "window_ms": 60_000,
        "at_ms": 1,
        **values,
    }
    return State(allowed=allowed, **fields)


def parsed(field: str) -> list[tuple[str, dict[str, Any]]]:
    """The items of a list of structured fields, read by somebody else's parser."""
    items = http_sfv.List()  # type: ignore[attr-defined]
    items.parse(field.encode())
    return [(item.value, dict(item.params)) for item in items]


@pytest.mark.parametrize(("ms", "seconds"), [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (None, None)])
def test_seconds_are_rounded_up(ms: int | None, seconds: int | None) -> None:
    assert state(retry_after_ms=ms).retry_after == seconds


def test_headers_of_an_allowed_request() -> None:
    fields = Result.of(sliding("10/minute"), [state()]).headers()
    assert parsed(fields["RateLimit-Policy"]) == [("60s", {"q": 10, "w": 60})]
    assert parsed(fields["RateLimit"]) == [("60s", {"r": 6, "t": 2})]
    assert set(fields) == {"RateLimit-Policy", "RateLimit"}


def test_headers_of_a_denied_request() -> None:
    rule = sliding("10/minute", "100/hour", "1000/day", name="api")
    states = [
        state(False, used=10, remaining=0, retry_after_ms=5500, next_after_ms=2500),
        state(limit=100, remaining=50, next_after_ms=3_000_000, window_ms=3_600_000),
        state(False, limit=1000, used=1000, remaining=0, retry_after_ms=9001, next_after_ms=9001, window_ms=86_400_000),
    ]
    result = Result.of(rule, states)
    fields = result.headers()
    assert parsed(fields["RateLimit-Policy"]) == [
        ("api-60s", {"q": 10, "w": 60}),
        ("api-3600s", {"q": 100, "w": 3600}),
        ("api-86400s", {"q": 1000, "w": 86400}),
    ]
    # Retry-After is not earlier than any t: the hour, which has room, says none.
    assert parsed(fields["RateLimit"]) == [
        ("api-60s", {"r": 0, "t": 3}),
        ("api-3600s", {"r": 50}),
        ("api-86400s", {"r": 0, "t": 10}),
    ]
    assert fields["Retry-After"] == "10"
    assert result.violated == ["api-60s", "api-86400s"]
    assert result.limit == 1000


def test_headers_of_a_request_that_never_fits() -> None:
    fields = Result.of(sliding("10/minute"), [state(False, retry_after_ms=None)]).headers()
    assert "Retry-After" not in fields
    assert parsed(fields["RateLimit"]) == [("60s", {"r": 6, "t": 2})]
    nothing = Result.of(sliding("0/minute"), [state(False, limit=0, retry_after_ms=None, next_after_ms=None)])
    assert parsed(nothing.headers()["RateLimit"]) == [("60s", {"r": 6})]


def test_headers_with_everything() -> None:
    rule = fixed((MOST, 0.25), name='a "b" \\ c', unit="content-bytes")
    fields = Result.of(rule, [state(limit=MOST, remaining=MOST - 4, window_ms=250)]).headers()
    most = 10**15 - 1
    assert parsed(fields["RateLimit-Policy"]) == [('a "b" \\ c', {"q": most, "qu": "content-bytes"})]
    assert parsed(fields["RateLimit"]) == [('a "b" \\ c', {"r": most, "t": 2})]


def test_headers_of_a_lease_and_a_throttle() -> None:
    held = Result.of(lease(10, 30, holder="h"), [state(window_ms=30_000)])
    assert parsed(held.headers()["RateLimit-Policy"]) == [("30s", {"q": 10, "qu": "concurrent-requests"})]
    assert held.holder == "h"
    paced = Result.of(throttle("60/minute", burst=9, unit="requests"), [state(window_ms=10_000)])
    assert parsed(paced.headers()["RateLimit-Policy"]) == [("10s", {"q": 10, "w": 10})]
    assert paced.holder is None


def test_binding_window() -> None:
    rule = sliding("10/minute", "100/hour")

    def binding(*states: State) -> int:
        return Result.of(rule, states).window_ms

    minute, hour = state(), state(limit=100, used=95, window_ms=3_600_000)
    assert binding(minute, hour) == 3_600_000  # The fewest units left.
    assert binding(minute, state(limit=100, used=94, window_ms=3_600_000)) == 60_000  # Of equals, the shorter.
    denying = state(False, used=10, retry_after_ms=5)
    assert binding(denying, hour) == 60_000
    assert binding(denying, state(False, limit=100, retry_after_ms=6, window_ms=3_600_000)) == 3_600_000
    never = state(False, retry_after_ms=None)
    assert binding(never, state(False, limit=100, retry_after_ms=6, window_ms=3_600_000)) == 60_000
    assert not Result.of(rule, [denying, hour]).allowed


def test_results_go_into_json() -> None:
    # As a log line would have them.
    assert json.dumps([Result.of(sliding("10/minute"), [state()]).headers()])


def test_what_is_impossible_does_not_type_check() -> None:
    limiter = Limiter(redis.Redis())
    with pytest.raises(TypeError, match="throttle"):
        limiter.hit("a", throttle("1/s"), force=True)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="lease"):
        limiter.hit("a", lease(1, 1, holder="h"), cost=2)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="rule is made by"):
        limiter.hit("a", "1/s")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="key must be"):
        limiter.hit(None, sliding("1/s"))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a lease is not refunded"):
        limiter.refund("a", lease(1, 1, holder="h"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a lease has no cost"):
        limiter.peek("a", lease(1, 1, holder="h"), cost=0)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="mode must be"):
        Limiter(redis.Redis(), mode="lua")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a reservation is not forced"):
        limiter.reserve("a", sliding("5/s", force=True), 2)
    with pytest.raises(ValueError, match="timeout must be"):
        limiter.hold("a", lease(1, 1), timeout=None)  # type: ignore[arg-type]


def test_who_has_decided() -> None:
    rule = sliding("10/minute")
    through = undecided([("a", rule)])
    assert (through.allowed, through.source, through.headers()) == (True, "open", {})
    local = Local(1).decide([("a", rule)])
    assert (local.allowed, local.source) == (True, "local")
    both = Local(1).decide([("a", rule), ("b", rule)])
    assert isinstance(both, AllResult)
    assert both.each[0].source == "local"
    assert Result.of(rule, [state(False, used=10, retry_after_ms=5)]).source == "server"


def test_memory_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bytes as well as of entries, whatever the keys are."""
    monkeypatch.setattr("redis_rl._memory.MOST", 1000)
    denials = Denials()
    rule = sliding("1/hour")
    denied = Result.of(rule, [state(False, limit=1, used=1, retry_after_ms=3_600_000)])
    for number in range(3000):
        key = f"{number}" + "k" * 60_000
        denials.remember([(key, rule)], denied, time.monotonic())
    assert len(denials._known) == 1000
    assert max(map(len, denials._known)) <= 64
    assert denials.find([(key, rule)]) is not None
    assert denials.find([(key[:-1], rule)]) is None
    # As bytes it is the same key.
    denials.forget(key.encode())
    assert denials.find([(key, rule)]) is None
    monkeypatch.setattr("redis_rl._memory.MOST_BYTES", 100_000)
    several = [(f"{number}", rule) for number in range(50)]
    all_denied = AllResult.of([denied] * 50, 0)
    for number in range(50):
        denials.remember([(f"first{number}", rule), *several[1:]], all_denied, time.monotonic())
    assert 3 <= len(denials._known) <= 6
    for number in range(50):
        denials.forget(f"first{number}")
    assert denials._bytes == 0


def test_local_memory_says_never_of_several_rules() -> None:
    """Of what does not fit into an empty window either."""
    result = Local(1).decide([("a", sliding("5/minute")), ("b", sliding("3/minute", cost=4))])
    assert not result
    assert result.retry_after_ms is None
    assert "Retry-After" not in result.headers()


def test_local_memory_has_a_bound(monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
    monkeypatch.setattr("redis_rl._local.MOST", 100)
    local = Local(1)
    month = sliding("50/30d")
    for number in range(2000):
        assert local.decide([(f"{number}", month)])
        assert local.decide([("used all the time", sliding("2000/30d"))])
    assert len(local._counters) == 100
    # What is used is not forgotten.
    assert not local.decide([("used all the time", sliding("2000/30d"))])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Clock:
        now = 1_700_000_000.0

        def time(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(time, "time", clock.time)
    return clock


@pytest.mark.parametrize("make", [sliding, fixed, throttle])
def test_local_limits(make: Any, clock: Any) -> None:
    local = Local(2)
    rule = make("6/minute")
    results = [local.decide([("a", rule)]) for _ in range(4)]
    assert [result.allowed for result in results] == [True, True, True, False]
    assert [result.remaining for result in results] == [2, 1, 0, 0]
    denied = results[-1]
    assert (denied.limit, denied.retry_after, denied.headers()["Retry-After"]) == (3, 60, "60")
    assert local.decide([("b", rule)])
    clock.now += 59
    assert not local.decide([("a", rule)])
    clock.now += 2
    assert local.decide([("a", rule)])
    # None of a limit is not less than none of it for each.
    assert not local.decide([("c", make("0/minute"))]) if make is not throttle else True
    assert Local(100).decide([("c", make("6/minute"))])


def test_local_limits_of_several_windows_and_costs(clock: Any) -> None:
    local = Local(1)
    rule = sliding("2/s", "3/minute")
    assert [local.decide([("a", rule)]).allowed for _ in range(3)] == [True, True, False]
    clock.now += 1.5
    assert local.decide([("a", rule)])
    denied = local.decide([("a", rule)])
    assert isinstance(denied, Result)
    assert (denied.allowed, denied.window_ms) == (False, 60_000)
    budget = sliding("200_000/minute")
    assert local.decide([("t", budget.with_cost(150_000))])
    assert not local.decide([("t", budget.with_cost(50_001))])
    assert local.decide([("t", budget.with_cost(50_000))])
    assert local.decide([("t", budget.with_cost(200_001))]).retry_after is None
    both = [("x", sliding("1/minute")), ("y", sliding("5/minute"))]
    assert local.decide(both)
    several = local.decide(both)
    assert isinstance(several, AllResult)
    assert (several.allowed, several.index, several.violated) == (False, 0, ["60s"])
    # What was denied counts nowhere.
    assert local.decide([("y", sliding("5/minute"))]).used == 2


def test_local_leases(clock: Any) -> None:
    """Nobody would give them back: they are let in, and the other rules of the request hold."""
    local = Local(1)
    held = [lease(1, 30).held_by() for _ in range(3)]
    assert all(local.decide([("a", each)]) for each in held)
    assert [local.decide([("a", each), ("b", sliding("2/minute"))]).allowed for each in held] == [True, True, False]
