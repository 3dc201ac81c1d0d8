"""Rates, rules, results and headers: what needs no server."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import timedelta
from decimal import Decimal
from typing import Any

import http_sfv
import pytest
import redis

from redis_rl import Limiter, Result, State, Window, fixed, lease, sliding, throttle
from redis_rl._calls import Calls, several
from redis_rl._protocol import MODES, Command, Mode, digest, source

MOST = 2**53 - 1


@pytest.mark.parametrize(
    ("rate", "limit", "seconds"),
    [
        ("100/minute", 100, "60"),
        ("100/min", 100, "60"),
        ("100 per minute", 100, "60"),
        ("1_000 / hours", 1000, "3600"),
        ("5 per 2 seconds", 5, "2"),
        ("5/250ms", 5, "0.25"),
        ("5/1.5s", 5, "1.5"),
        ("1/day", 1, "86400"),
        ("0/w", 0, "604800"),
        ((7, 0.1), 7, "0.1"),
        ((7, 60), 7, "60"),
        ((7, Decimal("0.001")), 7, "0.001"),
        ((7, timedelta(milliseconds=1500)), 7, "1.5"),
        ((MOST, 2**31 - 1), MOST, "2147483647"),
        (Window(1000, 3), 3, "1"),
    ],
)
def test_rate(rate: Any, limit: int, seconds: str) -> None:
    window = Window.parse(rate)
    assert (window.limit, window.seconds) == (limit, seconds)


@pytest.mark.parametrize(
    "rate",
    [
        "",
        "100",
        "100/",
        "/minute",
        "-1/minute",
        "100/fortnight",
        "1e3/s",
        "100minute",
        "100/0s",
        "5/0.5ms",
        "٣/s",
        f"{MOST + 1}/s",
        (1, 0),
        (1, 0.0001),
        (1, 2**31),
        (1, float("nan")),
        (1, float("inf")),
        (-1, 60),
    ],
)
def test_bad_rate(rate: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Window.parse(rate)


@pytest.mark.parametrize("rate", [None, 100, (1,), (1, 2, 3), (1.5, 60), (True, 60), (1, "60"), (1, None), b"1/s"])
def test_rate_of_another_type(rate: Any) -> None:
    with pytest.raises(TypeError, match=r".+"):
        Window.parse(rate)


def test_words() -> None:
    assert sliding("1000/hour", "10/s").words() == ["1", 10, "3600", 1000]
    assert sliding("1/s", cost=1).words() == ["1", 1, "COST", 1]
    assert sliding("1/s", cost=5, force=True).words() == ["1", 1, "COST", 5, "FORCE"]
    assert sliding("1/s").with_cost(7).forced().words() == ["1", 1, "COST", 7, "FORCE"]
    assert fixed("1/s", anchored=True, cost=2, force=True).words() == ["1", 1, "ANCHORED", "COST", 2, "FORCE"]
    assert throttle("100/minute").words() == [99, 100, 60]
    assert throttle("100/minute", max_burst=15, cost=3).words() == [15, 100, 60, 3]
    assert lease(16, 120, holder="me").words() == [16, "120", "me"]
    assert lease(16, 0.5).held_by("you").words() == [16, "0.5", "you"]
    random = lease(16, 1)
    assert random.held_by().holder != random.held_by().holder


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: sliding(), ValueError),
        (lambda: sliding(*[f"1/{n}s" for n in range(1, 18)]), ValueError),
        (lambda: sliding("1/60s", "2/minute"), ValueError),
        (lambda: sliding("1/s", cost=0), ValueError),
        (lambda: sliding("1/s", cost=MOST + 1), ValueError),
        (lambda: sliding("1/s", cost=1.5), TypeError),  # type: ignore[arg-type]
        (lambda: sliding("1/s", name=""), ValueError),
        (lambda: sliding("1/s", name="größe"), ValueError),
        (lambda: sliding("1/s", name="a\r\nSet-Cookie: b"), ValueError),
        (lambda: sliding("1/s", unit=5), TypeError),  # type: ignore[arg-type]
        (lambda: throttle("1/0.5s"), ValueError),
        (lambda: throttle("0/s"), ValueError),
        (lambda: throttle("1/s", max_burst=-1), ValueError),
        (lambda: throttle((2_000_000_000, 1)), ValueError),
        (lambda: throttle("1/s").forced(), TypeError),
        (lambda: lease(1, 0), ValueError),
        (lambda: lease(-1, 1), ValueError),
        (lambda: lease(1, 1, holder=""), ValueError),
        (lambda: lease(1, 1).with_cost(2), TypeError),
        (lambda: lease(1, 1).words(), ValueError),
        (lambda: several({}), ValueError),
        (lambda: several([("k", sliding("1/s"))] * 65), ValueError),
    ],
)
def test_bad_rule(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_a_rule_is_a_value() -> None:
    assert sliding("100/minute") == sliding((100, 60))
    assert len({sliding("1/s"), sliding((1, 1)), fixed("1/s")}) == 2


def test_commands() -> None:
    calls = Calls("p:")
    command = calls.all([("a", sliding("1/s")), (b"\xff", lease(2, 3, holder="h"))])
    words = ["SLIDING", "1", 1, "ACQUIRE", 2, "3", "h", "FULL"]
    assert command.send("module").words == ["RL.ALL", 2, "p:a", b"p:\xff", *words]
    assert command.send("functions").words == ["FCALL", "rl_all", 2, "p:a", b"p:\xff", *words]
    assert command.send("script").words == ["EVALSHA", digest(), 2, "p:a", b"p:\xff", "all", *words]
    assert command.send("script", whole=True).words[:2] == ["EVAL", source("script")]
    peek = calls.peek("a", fixed("1/s", "2/m"))
    assert peek.send("module").words == ["RL.PEEK", "p:a", "FIXED", "1", 1, "60", 2, "EACH"]
    assert peek.send("functions").words[:2] == ["FCALL_RO", "rl_peek"]
    assert peek.send("module").reads
    assert peek.send("script").words[:1] == ["EVALSHA_RO"]
    assert peek.send("script", whole=True).words[:1] == ["EVAL_RO"]
    assert peek.send("script").reads
    assert peek.send("script", promise=False).words[:1] == ["EVALSHA"]
    assert not peek.send("script", promise=False).reads
    assert not calls.rule("a", fixed("1/s")).send("module").reads
    reset = calls.reset("a", [fixed("1/s", "2/m"), sliding("3/m"), "1/h", lease(1, 1)])
    assert reset == Command("RESET", ["p:a"], ["1", "60", "3600"])
    with pytest.raises(TypeError):
        calls.refund("a", lease(1, 1, holder="h"), None)
    with pytest.raises(TypeError):
        calls.release("a", [])
    with pytest.raises(TypeError):
        calls.key(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_packed_commands(mode: Mode) -> None:
    """Packed once for all keys, they are what the client would pack."""
    client: Any = redis.connection.Connection()  # type: ignore[no-untyped-call]
    rules = [
        sliding("5/minute"),
        sliding("5/minute", "9/hour", cost=3),
        fixed((2**53 - 1, 0.25), anchored=True, force=True),
        throttle("60/minute"),
        lease(1, 2, holder="h\u00e4"),
        lease(1, 2, holder=b"\x00\xff\r\n"),
    ]
    for rule in rules:
        for key in ("a", b"\xff\x00\r\n", "gr\u00f6\u00dfe", "x" * 100_000, ""):
            # Twice: the second time it is known.
            for _ in range(2):
                command = Calls("p:").rule(key, rule)
                assert command.packed(mode) == b"".join(client.pack_command(*command.send(mode).words))
    assert Calls("").peek("a", rules[0]).packed(mode) is None
    assert Calls("").all([("a", rules[0])]).packed(mode) is None


def test_rules_stay_values_after_a_call() -> None:
    rule = sliding("5/minute")
    Calls("").rule("a", rule).packed("module")
    assert rule == sliding("5/minute")
    assert hash(rule) == hash(sliding("5/minute"))
    for copied in (pickle.loads(pickle.dumps(rule)), copy.deepcopy(rule)):
        assert copied == rule
        assert Calls("").rule("a", copied).packed("module") == Calls("").rule("a", rule).packed("module")
    # What is known of a rule is not known of those made of it.
    assert b"COST" in (Calls("").rule("a", rule.with_cost(2)).packed("module") or b"")


def test_limiter_arguments() -> None:
    with pytest.raises(ValueError, match="mode must be"):
        Limiter(redis.Redis(), mode="lua")
    with pytest.raises(TypeError, match="redis-py or valkey-py"):
        Limiter(object())  # type: ignore[arg-type]
    assert Limiter(redis.Redis(), mode="script").mode == "script"
    assert Limiter(redis.Redis()).mode is None


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


@pytest.mark.parametrize("shape", ["map", "map of bytes", "flat", "flat of bytes"])
def test_reply(shape: str) -> None:
    names = ["allowed", "limit", "used", "remaining", "retry-after-ms", "next-after-ms", "reset-after-ms"]
    names += ["window-ms", "at-ms"]
    values = [0, 5, 5, 0, -1, 1, 2, 60_000, 1_700_000_000_000]
    keys: list[Any] = [name.encode() for name in names] if "bytes" in shape else list(names)
    reply: Any = dict(zip(keys, values, strict=True))
    if "flat" in shape:
        reply = [part for pair in reply.items() for part in pair]
    read = State.read(reply)
    assert read == State(False, 5, 5, 0, None, 1, 2, 60_000, 1_700_000_000_000)
    assert not read
    assert (read.retry_after, read.next_after, read.reset_after) == (None, 1, 1)


@pytest.mark.parametrize(("ms", "seconds"), [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (None, None)])
def test_seconds_are_rounded_up(ms: int | None, seconds: int | None) -> None:
    assert state(retry_after_ms=ms).retry_after == seconds


def test_headers_of_an_allowed_request() -> None:
    fields = Result.of(sliding("10/minute"), [state()]).headers()
    assert parsed(fields["RateLimit-Policy"]) == [("default", {"q": 10, "w": 60})]
    assert parsed(fields["RateLimit"]) == [("default", {"r": 6, "t": 2})]
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
    assert parsed(fields["RateLimit"]) == [("default", {"r": 6, "t": 2})]
    nothing = Result.of(sliding("0/minute"), [state(False, limit=0, retry_after_ms=None, next_after_ms=None)])
    assert parsed(nothing.headers()["RateLimit"]) == [("default", {"r": 6})]


def test_headers_with_everything() -> None:
    rule = fixed((MOST, 0.25), name='a "b" \\ c', unit="content-bytes")
    fields = Result.of(rule, [state(limit=MOST, remaining=MOST - 4, window_ms=250)]).headers(partition_key=b"u\xff7")
    most = 10**15 - 1
    assert parsed(fields["RateLimit-Policy"]) == [
        ('a "b" \\ c', {"q": most, "qu": "content-bytes", "pk": b"u\xff7"}),
    ]
    assert parsed(fields["RateLimit"]) == [('a "b" \\ c', {"r": most, "t": 2, "pk": b"u\xff7"})]


def test_headers_of_a_lease_and_a_throttle() -> None:
    held = Result.of(lease(10, 30, holder="h"), [state(window_ms=30_000)])
    assert parsed(held.headers()["RateLimit-Policy"]) == [("default", {"q": 10, "qu": "concurrent-requests"})]
    assert held.holder == "h"
    paced = Result.of(throttle("60/minute", max_burst=9, unit="requests"), [state(window_ms=10_000)])
    assert parsed(paced.headers()["RateLimit-Policy"]) == [("default", {"q": 10, "w": 10})]
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
