"""What every client package reads, sends and answers: clients/cases, which all of them run."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
    Window,
    fixed,
    lease,
    sliding,
    throttle,
)
from redis_rl._calls import read_all, read_number, read_refund, read_rule
from redis_rl._identity import Addresses, key_for, policy_of
from redis_rl._protocol import MODES, Command, Errors, Mode, digest
from servers import ROOT, Server, compact

CASES = ROOT / "clients/cases"


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
    kind = options.pop("kind")
    if kind in ("sliding", "fixed"):
        rates = [tuple(rate) if isinstance(rate, list) else rate for rate in options.pop("rates")]
        make: Any = {"sliding": sliding, "fixed": fixed}[kind]
        return make(*rates, **options)
    if kind == "throttle":
        rate = options.pop("rate")
        return throttle(tuple(rate) if isinstance(rate, list) else rate, **options)
    assert kind == "lease"
    return lease(options.pop("limit"), options.pop("ttl"), **options)


class Recorded(BaseException):
    """Ends a call that is not sent."""


def command_of(case: dict[str, Any]) -> Command:
    """What the limiter makes of a call."""
    made = []

    class Recorder(Limiter):
        """Keeps the command, and sends nothing."""

        def __init__(self) -> None:
            super().__init__(redis.Redis(), prefix=case.get("prefix", ""))
            core: Any = SimpleNamespace(ask=self.record)
            self._core = core

        def record(self, command: Command, *_: Any, **__: Any) -> Any:
            made.append(command)
            raise Recorded

    limiter: Any = Recorder()
    options = dict(case.get("options", {}))
    call, rule = case["call"], rule_of(case.get("rule"))
    try:
        if call == "all":
            limiter.all(list(zip(case["keys"], map(rule_of, case["rules"]), strict=True)))
        elif call == "reset":
            limiter.reset(case["key"], *([rule] if rule else []))
        elif call == "release":
            limiter.release(case["key"], *options["holders"])
        else:
            getattr(limiter, call)(case["key"], rule, **options)
    except Recorded:
        pass
    # A lease whose call is interrupted is released after it.
    return made[0]


WORDS = ("call", "key", "keys", "rule", "rules", "prefix", "options")


@pytest.mark.parametrize("case", cases("words", "valid"))
def test_words(case: dict[str, Any]) -> None:
    only(case, *WORDS, "words", "live")
    assert [str(word) for word in command_of(case).sent("module")] == case["words"]


@pytest.mark.parametrize("case", cases("words", "modes"))
@pytest.mark.parametrize("mode", MODES)
def test_words_of_each_mode(case: dict[str, Any], mode: Mode) -> None:
    only(case, *WORDS, *MODES)
    words = [str(word) for word in command_of(case).sent(mode)]
    assert words == [digest() if word == "SHA1" else word for word in case[mode]]


@pytest.mark.parametrize("case", cases("words", "invalid"))
def test_wrong_words(case: dict[str, Any]) -> None:
    only(case, *WORDS, "error", "typed")
    with pytest.raises((ValueError, TypeError)) as error:
        command_of(case)
    assert all(part in str(error.value) for part in case["error"]), str(error.value)


def test_a_server_takes_the_words(server: Server, limiter: Limiter) -> None:
    # Where a log is a sorted set, a call adds at most 1000 units.
    has_compact_logs = compact(server)
    server.clean()
    for each in cases("words", "valid"):
        (case,) = each.values
        if case.get("live", True):
            server.run("FLUSHALL")
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
    names = ["allowed", "limit", "used", "remaining", "window_ms", "at_ms"]
    names += [f"{name}_after{unit}" for name in ("retry", "next", "reset") for unit in ("", "_ms")]
    return {name: getattr(state, name) for name in names}


def described(result: Result | AllResult) -> dict[str, Any]:
    fields = fields_of(result) | {"each": [fields_of(each) for each in result.each]}
    if isinstance(result, AllResult):
        fields["index"] = result.index
    return fields


def read(case: dict[str, Any], reply: Any) -> Any:
    if case["call"] == "all":
        return read_all([("k", rule_of(rule)) for rule in case["rules"]], reply)
    if case["call"] == "refund":
        return read_refund(reply)
    if case["call"] in ("release", "reset"):
        return read_number(reply)
    return read_rule(rule_of(case["rule"]), reply)


def in_bytes(reply: Any) -> Any:
    """As it comes where replies are not decoded."""
    if isinstance(reply, dict):
        return {name.encode(): value for name, value in reply.items()}
    if isinstance(reply, list):
        return [in_bytes(part) for part in reply]
    return reply.encode() if isinstance(reply, str) else reply


@pytest.mark.parametrize("decoded", [True, False])
@pytest.mark.parametrize("protocol", ["resp2", "resp3"])
@pytest.mark.parametrize("case", cases("replies", "valid"))
def test_replies(case: dict[str, Any], protocol: str, decoded: bool) -> None:
    only(case, "name", "call", "rule", "rules", "resp2", "resp3", "result", "headers", "problem")
    result = read(case, case[protocol] if decoded else in_bytes(case[protocol]))
    assert described(result) == case["result"]
    assert result.headers() == case["headers"]
    assert result.problem() == case["problem"]


@pytest.mark.parametrize("case", cases("replies", "numbers"))
def test_short_replies(case: dict[str, Any]) -> None:
    only(case, "name", "call", "reply", "result")
    result = read(case, case["reply"])
    assert result == (Refunded(**case["result"]) if case["call"] == "refund" else case["result"])


@pytest.mark.parametrize("case", cases("replies", "invalid"))
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


@pytest.mark.parametrize("library", [redis, valkey])
@pytest.mark.parametrize("case", cases("errors", "lines"))
def test_errors(case: dict[str, Any], library: Any, parrot: Any) -> None:
    """As the client library raises them."""
    only(case, "line", "unavailable", "retry", "permanent", "probe", "cluster")
    make = library.Redis if library is redis else library.Valkey
    with make(port=parrot.server_address[1], protocol=2) as client:
        retry = library.retry.Retry(library.backoff.NoBackoff(), 0)
        client.connection_pool.connection_kwargs["retry"] = retry
        with pytest.raises(Exception) as raised:  # noqa: PT011
            client.execute_command("ECHO", case["line"])
    error = raised.value
    errors = Errors(library.__name__, cluster=case.get("cluster", False))
    probe = errors.is_unknown(error) or isinstance(error, errors.no_script)
    assert errors.is_unavailable(error) == case["unavailable"], repr(error)
    assert errors.is_try_again(error) == case["retry"]
    assert probe == case["probe"]
    assert (not probe and not errors.is_unavailable(error)) == case["permanent"]


@pytest.mark.parametrize("case", cases("keys", "keys"))
def test_keys_of_adapters(case: dict[str, Any]) -> None:
    only(case, "rule", "prefix", "identity", "policy", "key")
    rule = rule_of(case["rule"])
    assert policy_of(rule) == case["policy"]
    prefix, identity = case.get("prefix", "rl:"), case["identity"]
    assert key_for(rule, identity, prefix=prefix) == case["key"]
    assert key_for(rule, identity.encode(), prefix=prefix) == case["key"].encode()


@pytest.mark.parametrize("case", cases("keys", "addresses"))
def test_addresses(case: dict[str, Any]) -> None:
    only(case, "peer", "forwarded", "trusted", "ipv6_prefix", "identity")
    addresses = Addresses(case.get("trusted", []), case.get("ipv6_prefix", 64))
    assert addresses.of(case["peer"], case.get("forwarded", [])) == case["identity"]


@pytest.mark.parametrize("case", cases("keys", "invalid"))
def test_wrong_addresses(case: dict[str, Any]) -> None:
    only(case, "trusted", "ipv6_prefix")
    with pytest.raises(ValueError, match=r".+"):
        Addresses(case.get("trusted", []), case.get("ipv6_prefix", 64))
