"""What a caller can rely on while the server hangs, refuses or is busy: deadlines, the circuit breaker, leases."""

from __future__ import annotations

import asyncio
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster

from redis_rl import AsyncLimiter, Denied, Error, Event, Limiter, Unavailable, lease, sliding
from servers import Cluster, Forwarder, Server, free_port, is_old, until

RULE = sliding("100000/minute")

# The deadlines of these tests, and how long a call may take at most on a machine that is busy.
TIMEOUT = 0.5
AT_MOST = 5.0
# What the clients would wait without us.
PATIENT: dict[str, Any] = {"socket_timeout": 60, "socket_connect_timeout": 60}


@pytest.fixture
def forwarder(server: Server) -> Iterator[Forwarder]:
    with Forwarder(server) as forwarder:
        yield forwarder


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where connections are taken and nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def full() -> Iterator[int]:
    """A port where connecting itself hangs: nobody takes connections, and the queue of them is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port: int = listener.getsockname()[1]
        queued = []
        for _ in range(4):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
            queued.append(waiting)
        yield port
        for waiting in queued:
            waiting.close()


def failing(call: Callable[[], object]) -> tuple[str, float]:
    """The error of a call, and how long it took."""
    began = time.monotonic()
    with pytest.raises(Exception) as error:  # noqa: PT011
        call()
    assert type(error.value).__module__.startswith("redis_rl."), repr(error.value)
    return str(error.value), time.monotonic() - began


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the breaker stay open for longer than a test takes on a machine that is busy."""
    monkeypatch.setattr("redis_rl._protocol.PAUSE", 60.0)


@pytest.mark.usefixtures("long_pause")
@pytest.mark.parametrize("library", [redis.Redis, valkey.Valkey])
def test_the_first_call_ends_in_time(library: Any, silent: int, full: int) -> None:
    for port in (silent, full, free_port()):
        with library(port=port, **PATIENT) as client, Limiter(client, timeout=TIMEOUT) as limiter:
            _, took = failing(lambda: limiter.hit("a", RULE))
            assert took < AT_MOST
            # Others fail without a look.
            assert "unavailable less than a second ago" in failing(lambda: limiter.hit("a", RULE))[0]


@pytest.mark.usefixtures("long_pause")
@pytest.mark.parametrize("library", [redis.asyncio.Redis, valkey.asyncio.Valkey])
async def test_the_first_asyncio_call_ends_in_time(library: Any, silent: int, full: int) -> None:
    for port in (silent, full, free_port()):
        async with library(port=port, **PATIENT) as client, AsyncLimiter(client, timeout=TIMEOUT) as limiter:
            for error in (r".", "unavailable less than a second ago"):
                began = time.monotonic()
                with pytest.raises(Error, match=error):
                    await limiter.hit("a", RULE)
                assert time.monotonic() - began < AT_MOST


@contextmanager
def slow_server(seconds: float, reply: bytes) -> Iterator[int]:
    """A port on which each command is answered, by the same reply, after so much time."""

    class Slow(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while head := self.rfile.readline():
                for _ in range(int(head[1:])):
                    self.rfile.read(int(self.rfile.readline()[1:]) + 2)
                time.sleep(seconds)
                self.wfile.write(reply)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Slow) as slow:
        slow.daemon_threads = True
        threading.Thread(target=slow.serve_forever, daemon=True).start()
        yield slow.server_address[1]
        slow.shutdown()


def test_slow_steps_are_one_call() -> None:
    """Each of them is in time, and together they are not: no reply is read that comes after the deadline."""
    # No handshake; the mode is asked for, and then the request.
    with (
        slow_server(3, b"+OK\r\n") as port,
        redis.Redis(port=port, protocol=2, driver_info=None) as client,
        Limiter(client, timeout=4) as limiter,
    ):
        assert "imeout" in failing(lambda: limiter.hit("a", RULE))[0]


def test_the_steps_of_a_first_call_share_its_deadline() -> None:
    """A distant server: each step is quick enough, and the answer to the fifth comes after the deadline."""
    options: dict[str, Any] = {"protocol": 2, "driver_info": None, "password": "x", "client_name": "x", "db": 1}
    with (
        slow_server(0.22, b"+OK\r\n") as port,
        redis.Redis(port=port, **options) as client,
        Limiter(client, timeout=1) as limiter,
        pytest.raises(Unavailable),
    ):
        limiter.hit("a", RULE)


# One connection, on which a server that answers slowly can answer two calls before the deadline of all.
ONE_CONNECTION: dict[str, Any] = {"protocol": 2, "driver_info": None, "max_connections": 1}


def test_waiting_for_a_connection_is_part_of_a_call() -> None:
    removed: list[int] = []

    def reset() -> None:
        with suppress(Unavailable):
            removed.append(limiter.reset("a"))

    with (
        # The third would be answered after 5.7 seconds: too late, also if it begins a second after the first.
        slow_server(1.9, b":1\r\n") as port,
        redis.Redis(port=port, **ONE_CONNECTION) as client,
        Limiter(client, mode="module", timeout=4) as limiter,
    ):
        threads = [threading.Thread(target=reset) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= len(removed) <= 2
        # That there were too many calls does not mean that the server is unavailable.
        assert limiter.reset("a") == 1


async def test_waiting_for_a_connection_is_part_of_an_asyncio_call() -> None:
    with slow_server(1.5, b":1\r\n") as port:
        async with (
            redis.asyncio.Redis(port=port, **ONE_CONNECTION) as client,
            AsyncLimiter(client, mode="module", timeout=4) as limiter,
        ):
            removed = await asyncio.gather(*(limiter.reset("a") for _ in range(6)), return_exceptions=True)
            assert removed[0] == 1
            assert {type(error) for error in removed[2:]} == {Unavailable}
            assert await limiter.reset("a") == 1


def test_callers_do_not_wait_for_each_other(silent: int) -> None:
    took: list[float] = []
    with redis.Redis(port=silent, **PATIENT) as client, Limiter(client, timeout=TIMEOUT) as limiter:
        threads = [
            threading.Thread(target=lambda: took.append(failing(lambda: limiter.hit("a", RULE))[1])) for _ in range(50)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(took) == 50
    assert max(took) < AT_MOST


def test_a_server_that_hangs(server: Server, forwarder: Forwarder) -> None:
    with redis.Redis(port=forwarder.port, **PATIENT) as client, Limiter(client, timeout=TIMEOUT) as limiter:
        until("it is there", lambda: hits(limiter))
        forwarder.hang()
        assert failing(lambda: limiter.hit("a", RULE))[1] < AT_MOST
        assert "unavailable" in failing(lambda: limiter.hit("a", RULE))[0]
        forwarder.resume()
        until("it is back", lambda: hits(limiter))
        # No reply is taken for that of another call.
        limiter._timeout = 10
        assert limiter.hit("b", sliding("7/second")).limit == 7


def hits(limiter: Limiter) -> bool:
    try:
        return bool(limiter.hit("a", RULE))
    except Error:
        return False


async def test_an_asyncio_server_that_hangs(server: Server, forwarder: Forwarder) -> None:
    async with (
        redis.asyncio.Redis(port=forwarder.port, **PATIENT) as client,
        AsyncLimiter(client, timeout=TIMEOUT) as limiter,
    ):

        async def answers() -> bool:
            try:
                return bool(await limiter.hit("a", RULE))
            except Error:
                return False

        async def wait_for_it() -> None:
            deadline = time.monotonic() + 30
            while not await answers():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)

        await wait_for_it()
        forwarder.hang()
        began = time.monotonic()
        assert not any(await asyncio.gather(*(answers() for _ in range(100))))
        assert time.monotonic() - began < AT_MOST
        forwarder.resume()
        await wait_for_it()
        limiter._timeout = 10
        assert (await limiter.hit("b", sliding("7/second"))).limit == 7


async def test_closing_waits_for_the_probe(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that a probe opens would stay open."""
    async with redis.asyncio.Redis(port=server.port) as client:
        async with AsyncLimiter(client, timeout=10) as limiter:
            await limiter.hit("a", RULE)
            core = limiter._core
            detect = core._detect

            async def slowly(asked: Any) -> Any:
                await asyncio.sleep(0.2)
                return await detect(asked)

            monkeypatch.setattr(core, "_detect", slowly)
            core._probe_at[""] = 0.0
            await limiter.hit("a", RULE)
        assert asyncio.all_tasks() == {asyncio.current_task()}


def test_one_call_probes(silent: int, caplog: pytest.LogCaptureFixture) -> None:
    """After the pause, of many callers one asks the server."""
    caplog.set_level(logging.INFO, "redis_rl")
    events: list[Event] = []
    with (
        redis.Redis(port=silent, **PATIENT) as client,
        Limiter(client, timeout=3, name="api", hook=events.append) as limiter,
    ):
        failing(lambda: limiter.hit("a", RULE))
        # By its clock, the breaker lets the next call through.
        breaker = limiter._core.breaker
        breaker._open = {place: (0.0, reason, [None]) for place, (_, reason, _) in breaker._open.items()}
        threads = [threading.Thread(target=failing, args=(lambda: limiter.hit("a", RULE),)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    refused = [event for event in events[1:] if "less than a second ago" in str(event.error)]
    assert (len(events), len(refused)) == (21, 19)
    assert limiter.statistics.unavailable == 21
    assert [record.getMessage().partition(": the")[0] for record in caplog.records] == ["limiter 'api'"]


def test_a_clusters_nodes_hang(cluster: Cluster) -> None:
    """No node answers, so that also the cluster's topology is asked for in vain."""
    forwarders = {node.port: Forwarder(node) for node in cluster.nodes}

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        forwarder = forwarders.get(address[1])
        return (address[0], forwarder.port if forwarder else address[1])

    startup = [redis.cluster.ClusterNode(*cluster.startup[0])]  # type: ignore[no-untyped-call]
    try:
        options: dict[str, Any] = {"address_remap": remap, "socket_timeout": 8}
        with redis.RedisCluster(startup_nodes=startup, **options) as client, Limiter(client, timeout=2) as limiter:
            until("it is there", lambda: hits(limiter))
            for forwarder in forwarders.values():
                forwarder.hang()
            assert failing(lambda: limiter.hit("a", RULE))[1] < 6
            assert "less than a second ago" in failing(lambda: limiter.hit("a", RULE))[0]
            for forwarder in forwarders.values():
                forwarder.resume()
            until("it is back", lambda: hits(limiter))
    finally:
        for forwarder in forwarders.values():
            forwarder.close()


@pytest.mark.usefixtures("long_pause")
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_clusters_node_hangs(cluster: Cluster, asynchronous: bool) -> None:
    """The keys of the others are decided on as ever."""
    forwarders = {node.port: Forwarder(node) for node in cluster.nodes}

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        forwarder = forwarders.get(address[1])
        return (address[0], forwarder.port if forwarder else address[1])

    hung, others = cluster.key_on(1), [cluster.key_on(0), cluster.key_on(2)]
    host, port = cluster.startup[0]
    try:
        if asynchronous:
            async with (
                AsyncRedisCluster(host, port, address_remap=remap) as client,
                AsyncLimiter(client, timeout=2) as aio,
            ):
                for key in (hung, *others):
                    await aio.hit(key, RULE)
                forwarders[cluster.nodes[1].port].hang()
                with pytest.raises(Unavailable):
                    await aio.hit(hung, RULE)
                for key in others:
                    assert await aio.hit(key, RULE)
                with pytest.raises(Unavailable, match="less than a second ago"):
                    await aio.hit(hung, RULE)
        else:
            startup = [redis.cluster.ClusterNode(host, port)]  # type: ignore[no-untyped-call]
            options: dict[str, Any] = {"address_remap": remap, "socket_timeout": 8}
            with redis.RedisCluster(startup_nodes=startup, **options) as sync, Limiter(sync, timeout=2) as limiter:
                for key in (hung, *others):
                    limiter.hit(key, RULE)
                forwarders[cluster.nodes[1].port].hang()
                failing(lambda: limiter.hit(hung, RULE))
                for key in others:
                    assert limiter.hit(key, RULE)
                assert "less than a second ago" in failing(lambda: limiter.hit(hung, RULE))[0]
    finally:
        for forwarder in forwarders.values():
            forwarder.close()


async def test_an_asyncio_clusters_nodes_hang(silent: int) -> None:
    client = AsyncRedisCluster("127.0.0.1", silent, socket_timeout=60)
    limiter = AsyncLimiter(client, timeout=TIMEOUT)
    began = time.monotonic()
    with pytest.raises(Error):
        await limiter.hit("a", RULE)
    assert time.monotonic() - began < AT_MOST
    await client.aclose()


@pytest.mark.skipif(is_old(), reason="it has no functions to be busy with")
def test_a_server_that_is_busy(server: Server) -> None:
    """A script that does not end: BUSY means unavailable."""
    server.run("CONFIG", "SET", "busy-reply-threshold", 10)
    with redis.Redis(port=server.port) as client, Limiter(client, timeout=TIMEOUT) as limiter:
        until("it is there", lambda: hits(limiter))
        endless = threading.Thread(target=reply_of, args=[server, "EVAL", "while true do end", 0])
        endless.start()
        try:
            until("the server is busy", lambda: "BUSY" in reply_of(server, "GET", "x"))
            with pytest.raises(Error) as error:
                limiter.hit("a", RULE)
            assert isinstance(error.value, Unavailable)
            assert failing(lambda: limiter.hit("a", RULE))[0].startswith("the server was unavailable")
        finally:
            server.run("SCRIPT", "KILL")
            endless.join()
        until("it is back", lambda: hits(limiter))


def reply_of(server: Server, *words: str | int) -> str:
    try:
        return str(server.run(*words))
    except redis.RedisError as error:
        return str(error)


async def test_a_crowd_is_not_a_hung_server(server: Server) -> None:
    """A thousand requests at once, on a loop that is busy with other things."""
    client = redis.asyncio.Redis(port=server.port, client_name="crowd")
    async with client, AsyncLimiter(client, timeout=15) as limiter:
        rule = sliding("500/minute")

        async def ask() -> bool:
            result = await limiter.hit("a", rule)
            time.sleep(0.0005)  # noqa: ASYNC251 - what an application does
            return bool(result)

        allowed = await asyncio.gather(*(ask() for _ in range(1000)))
        assert sum(allowed) == 500
        # Not as many connections.
        with server.client() as watcher:
            assert len([each for each in watcher.client_list() if each["name"] == "crowd"]) < 50


async def test_a_reply_that_has_arrived_is_read(server: Server) -> None:
    """The deadline passes while the loop is blocked, not while the server thinks."""
    async with redis.asyncio.Redis(port=server.port) as client, AsyncLimiter(client, timeout=1) as limiter:
        for _ in range(3):
            try:
                await limiter.hit("a", RULE)
                break
            except Error:
                await asyncio.sleep(1.1)
        call = asyncio.create_task(limiter.hit("a", RULE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(1.5)  # noqa: ASYNC251 - the loop is blocked
        assert (await call).used >= 2
    if server.mode != "module":
        return
    # Nor while a call that needs several steps was not even sent.
    async with redis.asyncio.Redis(port=server.port) as client, AsyncLimiter(client, timeout=3) as limiter:
        call = asyncio.create_task(limiter.hit("a", RULE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(5)  # noqa: ASYNC251
        assert (await call).used >= 3


def test_a_lease_ends_by_the_holders_clock(server: Server, forwarder: Forwarder, caplog: Any) -> None:
    """While the server hangs nothing else tells."""
    server.set_clock(0)
    with redis.Redis(port=forwarder.port, **PATIENT) as client, Limiter(client, timeout=10) as limiter:
        began = time.monotonic()
        with limiter.hold("l", lease(1, 2)) as held:
            assert not held.lost
            limiter._timeout = TIMEOUT
            forwarder.hang()
            assert held.lost_event.wait(AT_MOST + 2)
            assert held.lost
            # Not before its time: others cannot have it.
            assert time.monotonic() - began >= 1.9
        # The work is done, and stays done.
        assert any("could not be released" in record.getMessage() for record in caplog.records)
        with pytest.raises(KeyError), Forwarder(server) as other, redis.Redis(port=other.port, **PATIENT) as second:
            free = Limiter(second, timeout=10)
            with free.hold("m", lease(1, 30)):
                free._timeout = TIMEOUT
                other.hang()
                raise KeyError("of the work")


async def test_an_asyncio_lease_ends_by_the_holders_clock(server: Server, forwarder: Forwarder) -> None:
    server.set_clock(0)
    async with (
        redis.asyncio.Redis(port=forwarder.port, **PATIENT) as client,
        AsyncLimiter(client, timeout=10) as limiter,
    ):
        with pytest.raises(KeyError):
            async with limiter.hold("l", lease(1, 2)) as held:
                limiter._timeout = TIMEOUT
                forwarder.hang()
                await asyncio.wait_for(held.lost_event.wait(), AT_MOST + 2)
                assert held.lost
                raise KeyError("of the work")


def test_a_lease_is_lost_when_another_has_it(server: Server, limiter: Limiter) -> None:
    with limiter.hold("a", lease(1, 3)) as held:
        limiter.release("a", held.holder)
        assert limiter.acquire("a", lease(1, 60), holder="other")
        assert held.lost_event.wait(30)
    with pytest.raises(Denied), limiter.hold("a", lease(1, 3)):
        pytest.fail("entered")


class Traced(redis.Redis):
    """As tracing sees a client: its public calls."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        SEEN.append(args[0])
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


SEEN: list[Any] = []


def test_tracing_sees_the_commands(server: Server) -> None:
    SEEN.clear()
    with Traced(port=server.port) as client, Limiter(client, timeout=10) as limiter:
        limiter.hit("a", RULE)
        limiter.hit("a", RULE)
    expected = {"module": "RL.SLIDING", "functions": "FCALL", "script": "EVALSHA"}[server.mode]
    assert SEEN[-1] == expected


def test_a_wrapped_client_is_used_as_it_is(server: Server) -> None:
    """A client whose calls were replaced, as a mock or an instrumentation does."""
    seen = []
    with redis.Redis(port=server.port) as client:
        execute = client.execute_command

        def wrapped(*args: Any, **options: Any) -> Any:
            seen.append(args[0])
            return execute(*args, **options)

        client.execute_command = wrapped
        limiter = Limiter(client, timeout=10)
        assert limiter.hit("a", RULE)
        only = limiter._core.servers._only
        assert only is not None
        assert only.client is client
    assert seen


def test_limiters_on_a_client_share_connections(server: Server) -> None:
    with redis.Redis(port=server.port, client_name="shared") as client:
        limiters = [Limiter(client, prefix=f"{number}:", timeout=10) for number in range(20)]
        for limiter in limiters:
            assert limiter.hit("a", RULE).used == 1
        assert len([each for each in client.client_list() if each["name"] == "shared"]) <= 4
        limiters[0].close()
