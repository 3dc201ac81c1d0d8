"""What every client package reads, sends and answers: clients/cases, which all of them run."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import valkey

from redis_rl import (
    AllResult,
    Limiter,
    Refunded,
    Result,
    State,
    Window,
    _calls,
    _identity,
    _local,
    _memory,
    _protocol,
    calendar,
    fixed,
    lease,
    sliding,
    throttle,
    wsgi,
)
from redis_rl._calls import read_all, read_number, read_refund, read_rule, read_settled
from redis_rl._identity import ClientAddress, key_for
from redis_rl._protocol import MODES, Command, Errors, Mode, digest
from redis_rl._result import _NAMES as FIELDS
from redis_rl._sync.guard import Guard
from servers import ROOT, Server, compact

CASES = ROOT / "clients/cases"
# Made when the package is built.
sync_limiter: Any = importlib.import_module("redis_rl._sync.limiter")
sync_core: Any = importlib.import_module("redis_rl._sync.core")


def cases(file: str, group: str) -> list[Any]:
    found = json.loads((CASES / f"{file}.json").read_text())
    return [pytest.param(case, id=case.get("name", f"{number}")) for number, case in enumerate(found[group])]


def only(case: dict[str, Any], *fields: str) -> None:
    """A field that is not known is not passed over."""
    assert not set(case) - set(fields), case


def rates_of(case: dict[str, Any]) -> list[Any]:
    return [tuple(rate) if isinstance(rate, list) else rate for rate in case["rates"]]


@pytest.mark.parametrize("make", [sliding, fixed])
@pytest.mark.parametrize("case", cases("rates", "valid"))
def test_rates(case: dict[str, Any], make: Any) -> None:
    only(case, "rates", "windows")
    rule = make(*rates_of(case))
    assert rule.windows == tuple(Window(ms, limit) for limit, ms in case["windows"])


@pytest.mark.parametrize("case", cases("rates", "invalid"))
def test_wrong_rates(case: dict[str, Any]) -> None:
    only(case, "rates", "error", "typed")
    with pytest.raises((ValueError, TypeError)) as error:
        sliding(*rates_of(case))
    # What cannot be printed is shown as Python writes it.
    assert all(repr(part)[1:-1] in str(error.value) for part in case["error"]), str(error.value)


def rule_of(described: Any) -> Any:
    if not isinstance(described, dict):
        return described
    options = dict(described)
    kind, units = options.pop("kind"), options.pop("reserved", None)
    if units is not None:
        return rule_of({"kind": kind, **options}).reserved(units)
    if kind in ("sliding", "fixed"):
        rates = [tuple(rate) if isinstance(rate, list) else rate for rate in options.pop("rates")]
        make: Any = {"sliding": sliding, "fixed": fixed}[kind]
        return make(*rates, **options)
    if kind == "calendar":
        return calendar(options.pop("rate"), **options)
    if kind == "throttle":
        rate = options.pop("rate")
        return throttle(tuple(rate) if isinstance(rate, list) else rate, **options)
    assert kind == "lease"
    return lease(options.pop("limit"), options.pop("ttl"), **options)


@pytest.mark.parametrize("case", cases("local", "cases"))
def test_local(case: dict[str, Any]) -> None:
    only(case, "name", "processes", "steps")
    local = _local.Local(case["processes"])
    for step in case["steps"]:
        only(step, "rules", "times", "result")
        expected = step["result"]
        only(expected, "allowed", "index", "retry", "each")
        rules = [(rule["key"], rule_of({name: rule[name] for name in rule if name != "key"})) for rule in step["rules"]]
        for _ in range(step.get("times", 1)):
            result = local.decide(rules)
            assert result.allowed == expected["allowed"]
            assert {0: "none", None: "never"}.get(result.retry_after_ms, "later") == expected["retry"]
            each = result.each if isinstance(result, AllResult) else [result]
            if isinstance(result, AllResult):
                assert result.index == expected["index"]
            assert [{"allowed": one.allowed, "limit": one.limit, "used": one.used} for one in each] == expected["each"]


class Recorded(BaseException):
    """Ends a call that is not sent."""


def command_of(case: dict[str, Any], ended: bool = False) -> Command:
    """What the limiter makes of a call; ``ended``: after the answer that the window has ended."""
    made: list[Command] = []
    call, rule = case["call"], rule_of(case.get("rule"))
    settles = call in ("settle", "cancel")

    class Recorder(Limiter):
        """Keeps the command, and sends nothing."""

        def __init__(self) -> None:
            super().__init__(redis.Redis(), prefix=case.get("prefix", ""))
            core: Any = SimpleNamespace(ask=self.record, errors=self._core.errors)
            self._core = core

        def record(self, command: Command, *_: Any, **__: Any) -> Any:
            made.append(command)
            if ended and len(made) == 1:
                raise redis.ResponseError("the window has ended")
            if settles and len(made) == 1:
                state = dict.fromkeys(FIELDS, 1)
                return ([state, state] if command.words[-1] == "EACH" else state), None
            raise Recorded

    limiter: Any = Recorder()
    options = dict(case.get("options", {}))
    actual = options.pop("actual", 0)
    for name in ("within", "timeout"):
        if f"{name}_ms" in options:
            options[name] = options.pop(f"{name}_ms") / 1000
    rules = [(key, rule_of(each)) for key, each in zip(case.get("keys", []), case.get("rules", []), strict=True)]
    with suppress(Recorded):
        if call in ("all", "reserve_all"):
            getattr(limiter, call)(rules, **options)
        elif settles:
            reservation = limiter.reserve(case["key"], rule, **options)
            reservation.cancel() if call == "cancel" else reservation.settle(actual)
        elif call == "reset":
            limiter.reset(case["key"], *([rule] if rule else []))
        elif call == "release":
            limiter.release(case["key"], *options["holders"])
        else:
            getattr(limiter, call)(case["key"], rule, **options)
    # What is interrupted is given back after it.
    return made[1 if ended or settles else 0]


def words_of(command: Command, mode: Mode = "module") -> list[str]:
    """As the cases have them: a holder that was made up is HOLDER."""
    words = [str(word) for word in command.sent(mode)]
    for place, word in enumerate(words):
        if word == "HOLD" and command.name != "RESET":
            assert re.fullmatch(r"[0-9a-f]{32}", words[place + 1])
            words[place + 1] = "HOLDER"
    return words


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the clock of this process."""
    return lambda case: monkeypatch.setattr(time, "time", lambda: case.get("now_ms", 1_700_000_000_000) / 1000)


WORDS = ("call", "key", "keys", "rule", "rules", "prefix", "options")


VALID = [*cases("words", "valid"), *cases("words", "reserve"), *cases("words", "calendar")]


@pytest.mark.parametrize("case", VALID)
def test_words(case: dict[str, Any], clock: Any) -> None:
    only(case, *WORDS, "words", "live", "now_ms")
    clock(case)
    assert words_of(command_of(case)) == case["words"]


@pytest.mark.parametrize("case", cases("words", "calendar_ended"))
def test_words_after_a_window_has_ended(case: dict[str, Any], clock: Any) -> None:
    only(case, *WORDS, "words", "now_ms")
    clock(case)
    assert words_of(command_of(case, ended=True)) == case["words"]


@pytest.mark.parametrize("case", cases("words", "modes") + cases("words", "reserve_modes"))
@pytest.mark.parametrize("mode", MODES)
def test_words_of_each_mode(case: dict[str, Any], mode: Mode) -> None:
    only(case, *WORDS, *MODES)
    assert words_of(command_of(case), mode) == [digest() if word == "SHA1" else word for word in case[mode]]


@pytest.mark.parametrize("case", cases("words", "invalid") + cases("words", "reserve_invalid"))
def test_wrong_words(case: dict[str, Any]) -> None:
    only(case, *WORDS, "error", "typed")
    with pytest.raises((ValueError, TypeError)) as error:
        command_of(case)
    assert all(part in str(error.value) for part in case["error"]), str(error.value)


@pytest.mark.parametrize("case", cases("words", "calendar_invalid"))
def test_wrong_calendars(case: dict[str, Any]) -> None:
    only(case, "rule", "error", "typed")
    with pytest.raises((ValueError, TypeError)) as error:
        rule_of(case["rule"])
    assert all(part in str(error.value) for part in case["error"]), str(error.value)


def periods() -> Iterator[tuple[str, str, int, list[int], list[int]]]:
    """The zone, the unit, the start, and the first moments of consecutive periods of calendar.json."""
    for zone, fields in json.loads((CASES / "calendar.json").read_text())["zones"].items():
        changes = fields.pop("changes")
        for name, runs in fields.items():
            unit, _, start = name.partition(":")
            for first, *minutes in runs:
                firsts = list(accumulate(minutes, lambda time, more: time + more * 60, initial=first))
                yield zone, unit, int(start or 1), firsts, changes


def test_periods_of_calendars() -> None:
    """Each first moment, last millisecond and change of an offset, in the period that they are in."""
    seen = 0
    for zone, unit, start, firsts, changes in periods():
        rule = calendar(f"5/{unit}", zone, start)
        for begin, end in pairwise(firsts):
            inside = [change * 1000 + ms for change in changes if begin < change < end for ms in (-1, 0, 1)]
            for ms in (begin * 1000, *inside, end * 1000 - 1):
                assert rule.end_ms(ms) == end * 1000, (zone, unit, start, ms)
                seen += 1
            (window,) = rule.now(begin * 1000).windows
            assert window.seconds == f"@{end * 1000}"
    assert seen > 20_000


def test_a_midnight_that_comes_twice() -> None:
    """In Newfoundland clocks were put back at 00:01 until 2011: an hour before midnight the day had begun already."""
    rule = calendar("5/day", "America/St_Johns")
    midnight, put_back, next_day = (
        int(datetime.fromisoformat(f"2010-11-0{text}").timestamp() * 1000)
        for text in ("7T00:00-02:30", "7T00:01-02:30", "8T00:00-03:30")
    )
    assert rule.end_ms(midnight - 1) == midnight
    for ms in (midnight, put_back - 1, put_back, put_back + 30 * 60_000, next_day - 1):
        assert rule.end_ms(ms) == next_day


def test_a_server_takes_the_words(server: Server, limiter: Limiter, clock: Any) -> None:
    # Where a log is a sorted set, a call adds at most 1000 units.
    has_compact_logs = compact(server)
    server.clean()
    for each in VALID:
        (case,) = each.values
        if case.get("live", True):
            server.run("FLUSHALL")
            clock(case)
            with nullcontext() if has_compact_logs else suppress_large_costs():
                limiter._core.ask(command_of(case), 10, "test")


@contextmanager
def suppress_large_costs() -> Iterator[None]:
    try:
        yield
    except redis.ResponseError as error:
        if "COST above 1000 needs a compact log" not in str(error):
            raise


def fields_of(state: Any) -> dict[str, Any]:
    names = ["allowed", "limit", "used", "remaining", "window_ms", "at_ms", "wait_ms"]
    names += [f"{name}_after{unit}" for name in ("retry", "next", "reset") for unit in ("", "_ms")]
    return {name: getattr(state, name) for name in names}


def described(result: Result | AllResult, turns: bool) -> dict[str, Any]:
    fields = fields_of(result) | {"each": [fields_of(each) for each in result.each]}
    if not turns:
        assert {state.wait_ms for state in (result, *result.each)} == {0}
        for state in (fields, *fields["each"]):
            del state["wait_ms"]
    if isinstance(result, AllResult):
        fields["index"] = result.index
    return fields


def read(case: dict[str, Any], reply: Any) -> Any:
    if "call" not in case:
        return read_settled(reply)
    if case["call"] == "all":
        return read_all([("k", rule_of(rule)) for rule in case["rules"]], reply)
    if case["call"] == "refund":
        return read_refund(reply)
    if case["call"] in ("release", "reset"):
        return read_number(reply)
    return read_rule(rule_of(case["rule"]).now(), reply, case["call"] == "turn")


def in_bytes(reply: Any) -> Any:
    """As it comes where replies are not decoded."""
    if isinstance(reply, dict):
        return {name.encode(): value for name, value in reply.items()}
    if isinstance(reply, list):
        return [in_bytes(part) for part in reply]
    return reply.encode() if isinstance(reply, str) else reply


@pytest.mark.parametrize("decoded", [True, False])
@pytest.mark.parametrize("protocol", ["resp2", "resp3"])
@pytest.mark.parametrize("case", cases("replies", "valid") + cases("replies", "calendar"))
def test_replies(case: dict[str, Any], protocol: str, decoded: bool) -> None:
    only(case, "name", "call", "rule", "rules", "resp2", "resp3", "result", "headers", "problem")
    result = read(case, case[protocol] if decoded else in_bytes(case[protocol]))
    assert described(result, case["call"] == "turn") == case["result"]
    assert result.headers() == case["headers"]
    assert result.problem() == case["problem"]


@pytest.mark.parametrize("case", cases("replies", "numbers"))
def test_short_replies(case: dict[str, Any]) -> None:
    only(case, "name", "call", "reply", "result")
    result = read(case, case["reply"])
    assert result == (Refunded(**case["result"]) if case["call"] == "refund" else case["result"])


@pytest.mark.parametrize("case", cases("replies", "settle"))
def test_settlements(case: dict[str, Any]) -> None:
    only(case, "name", "reply", "result")
    assert read(case, case["reply"]) is {"done": True, "error": False}[case["result"]]


@pytest.mark.parametrize("case", cases("replies", "invalid") + cases("replies", "settle_invalid"))
def test_replies_that_cannot_be_read(case: dict[str, Any]) -> None:
    only(case, "name", "call", "rule", "rules", "reply")
    for reply in (case["reply"], in_bytes(case["reply"])):
        with pytest.raises(ValueError, match="cannot be read"):
            read(case, reply)


@pytest.fixture(scope="module")
def parrot() -> Iterator[Any]:
    """A server that answers ECHO with the error that it is given."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while head := self.rfile.readline():
                words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
                # All else is the handshake.
                self.wfile.write(b"-%b\r\n" % words[1] if words[0] == b"ECHO" else b"+OK\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def raised(line: str, library: Any, parrot: Any) -> Exception:
    """An error line, as the client library raises it."""
    make = library.Redis if library is redis else library.Valkey
    with make(port=parrot.server_address[1], protocol=2) as client:
        retry = library.retry.Retry(library.backoff.NoBackoff(), 0)
        client.connection_pool.connection_kwargs["retry"] = retry
        with pytest.raises(Exception) as error:  # noqa: PT011
            client.execute_command("ECHO", line)
    return error.value


@pytest.mark.parametrize("library", [redis, valkey])
@pytest.mark.parametrize("case", cases("errors", "meanings"))
def test_meanings(case: dict[str, Any], library: Any, parrot: Any) -> None:
    only(case, "line", "means")
    error, errors = raised(case["line"], library, parrot), Errors(library.__name__, cluster=False)
    assert [errors.is_ended(error), errors.is_settled(error)] == [case["means"] == "ended", case["means"] == "settled"]
    assert not errors.is_unavailable(error)


@pytest.mark.parametrize("library", [redis, valkey])
@pytest.mark.parametrize("case", cases("errors", "lines"))
def test_errors(case: dict[str, Any], library: Any, parrot: Any) -> None:
    only(case, "line", "unavailable", "retry", "permanent", "probe", "cluster")
    error = raised(case["line"], library, parrot)
    errors = Errors(library.__name__, cluster=case.get("cluster", False))
    probe = errors.is_unknown(error) or isinstance(error, errors.kinds.NoScriptError)
    assert errors.is_unavailable(error) == case["unavailable"], repr(error)
    assert errors.is_try_again(error) == case["retry"]
    assert probe == case["probe"]
    assert (not probe and not errors.is_unavailable(error)) == case["permanent"]


@pytest.mark.parametrize("case", cases("keys", "keys") + cases("keys", "calendar"))
def test_keys_of_adapters(case: dict[str, Any]) -> None:
    only(case, "rule", "prefix", "identity", "policy", "key")
    rule = rule_of(case["rule"])
    assert key_for(rule, "a", prefix="") == f"{case['policy']}:{{a}}"
    prefix, identity = case.get("prefix", "rl:"), case["identity"]
    if isinstance(identity, list):
        identity = "".join(text * times for text, times in identity)
    assert key_for(rule, identity, prefix=prefix) == case["key"]
    assert key_for(rule, identity.encode(), prefix=prefix) == case["key"].encode()


@pytest.mark.parametrize("case", cases("keys", "halves"))
def test_keys_that_are_no_text(case: dict[str, Any]) -> None:
    only(case, "units", "key")
    assert key_for(sliding("1/s", name="api"), "".join(map(chr, case["units"]))) == case["key"]


@pytest.mark.parametrize("case", cases("keys", "addresses"))
def test_addresses(case: dict[str, Any]) -> None:
    only(case, "peer", "forwarded", "trusted", "ipv6_prefix", "identity")
    addresses = ClientAddress(case.get("trusted", []), case.get("ipv6_prefix", 64))
    assert addresses.of(case["peer"], case.get("forwarded", [])) == case["identity"]


@pytest.mark.parametrize("case", cases("keys", "invalid"))
def test_wrong_addresses(case: dict[str, Any]) -> None:
    only(case, "trusted", "ipv6_prefix")
    with pytest.raises(ValueError, match=r".+"):
        ClientAddress(case.get("trusted", []), case.get("ipv6_prefix", 64))


def refusal(**options: Any) -> int:
    """The status of a request without an identity, or while nobody listens."""
    limiter = Limiter(redis.Redis(port=1))
    answer = Guard(limiter, [(options.pop("key"), sliding("1/hour"))], **options).ask(None)
    return int((answer.problem or {})["status"])


def test_defaults() -> None:
    """Every row of defaults.json is what the package has. What happens in time is played by clients/faults."""
    limiter, adapter, reserve = (
        {name: parameter.default for name, parameter in inspect.signature(each).parameters.items()}
        for each in (Limiter, Guard, Limiter.reserve)
    )
    denied = Result.of(sliding("1/hour"), [State(False, 1, 1, 0, 5, 5, 5, 3_600_000, 1)])
    problem = denied.problem() or {}
    refused = wsgi.RateLimitMiddleware(lambda *_: [], limiter=Limiter(redis.Redis()), rule=sliding("1/s"))
    sent: dict[str, str] = {}
    list(refused({}, lambda _, headers: sent.update(headers)))  # type: ignore[arg-type]
    share, pause = sync_limiter.LAST_CALL, _protocol.PAUSE * 1000
    ours = {
        "limiter": {
            "name": limiter["name"],
            "prefix": limiter["prefix"],
            "mode": limiter["mode"],
            "timeout_ms": limiter["timeout"] * 1000,
            "deny_cache": Limiter(redis.Redis())._remembers or "deny_cache" in limiter,
        },
        "adapter": {
            "prefix": adapter["prefix"],
            "timeout_ms": adapter["timeout"] * 1000,
            "when_unavailable": adapter["when_unavailable"],
            "ipv6_prefix": inspect.signature(ClientAddress).parameters["ipv6_prefix"].default,
            "deny_cache": adapter["deny_cache"],
            "without_identity": {"refuse": "refused", "allow": "let through"}[adapter["without_identity"]],
            "status": {
                "denied": problem["status"],
                "unavailable": refusal(key=lambda _: "me", when_unavailable="closed"),
                "without_identity": refusal(key=lambda _: None),
            },
        },
        "deny_cache": {
            "entries": _memory.MOST,
            "bytes": _memory.MOST_BYTES,
            "believed_at_most_ms": _memory.LONGEST * 1000,
        },
        "identity": {
            "longest_bytes": _identity.LONGEST,
            "kept_bytes": _identity.KEPT,
            "mark": _identity.MARK.decode(),
        },
        "local": {"counters": _local.MOST},
        # Which test_tls plays.
        "breaker": {"pause_ms": pause, "certificate_that_fails": "unavailable"},
        "mode": {"modes": ["auto", *MODES], "probed_again_ms": sync_core.PROBE_EVERY * 1000},
        "wait": {
            "outage_poll_ms": pause,
            "turn_at_most_ms": _calls.LONGEST_TURN * 1000,
            "last_call_share_of_timeout": share,
        },
        "hold": {
            "first_poll_ms": sync_limiter.FIRST_POLL * 1000,
            "longest_poll_ms": sync_limiter.LONGEST_POLL * 1000,
            "outage_poll_ms": pause,
            "last_call_share_of_timeout": share,
            "renewals_a_lease": sync_limiter.RENEWALS,
        },
        "reservation": {
            "lease_ms": reserve["lease"] * 1000,
            "remembered_at_least_ms": sync_limiter.REMEMBERED * 1000,
            "renewals_a_lease": sync_limiter.RENEWALS,
            # Which words_of() compares.
            "holder": "^[0-9a-f]{32}$",
        },
        # Which test_leaving.py and test_limiter.py play.
        "caller_leaves": {"hit": "stays charged", "turn": "given back"},
        "hook": {"key": "without the prefix"},
        "headers": sorted(denied.headers()),
        "problem": {"type": problem["type"], "content_type": sent["Content-Type"], "title": problem["title"]},
    }
    cases = json.loads((CASES / "defaults.json").read_text())
    del cases["about"]
    assert ours == cases
