"""Callers that go away, places that are waited for, and processes that fork."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import anyio
import pytest
import redis
import redis.asyncio

from redis_rl import AsyncLimiter, Denied, Event, Limiter, Unavailable, lease, sliding
from redis_rl.asgi import RateLimitMiddleware
from servers import Forwarder, Server, until

RULE = sliding("1000/minute")


@pytest.fixture
def real(server: Server) -> Server:
    """A server with the module, on the real clock."""
    if server.mode != "module":
        pytest.skip("once, with the module")
    server.set_clock(0)
    return server


@pytest.fixture
def forwarder(real: Server) -> Iterator[Forwarder]:
    with Forwarder(real) as forwarder:
        yield forwarder


def used_through(limiter: Limiter) -> int:
    with suppress(Unavailable):
        return limiter.hit("warm", RULE).used
    return 0


def held(server: Server, key: str) -> int:
    with server.client() as client:
        return int(client.zcard(key))


async def released(server: Server, key: str) -> None:
    """Waits until nobody holds a place, for much less than a lease lasts."""
    deadline = time.monotonic() + 10
    while held(server, key):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_block_that_is_left(real: Server, aio: AsyncLimiter) -> None:
    """As a client that leaves a stream: anyio cancels each step of the way out again."""
    with anyio.move_on_after(0.2):
        async with aio.hold("a", lease(1, 60)):
            await anyio.sleep(30)
    await released(real, "a")
    task = asyncio.create_task(hold_for_ever(aio))
    until_held = time.monotonic() + 10
    while not held(real, "b"):
        assert time.monotonic() < until_held
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await released(real, "b")


async def hold_for_ever(aio: AsyncLimiter) -> None:
    async with aio.hold("b", lease(1, 60)):
        await asyncio.sleep(60)


def test_the_end_of_asyncio_run(real: Server) -> None:
    """It cancels what holds a place, and what renews it, in one go."""

    async def main() -> None:
        aio = AsyncLimiter(redis.asyncio.Redis(port=real.port), timeout=10)
        task = asyncio.create_task(hold_for_ever(aio))
        await asyncio.to_thread(until, "it is held", lambda: held(real, "b"))
        assert not task.done()

    asyncio.run(main())
    assert held(real, "b") == 0


@pytest.mark.parametrize("turns", [1, 10])
def test_a_block_that_is_left_at_the_end_of_asyncio_run(real: Server, turns: int) -> None:
    """What gives the place back is cancelled with all the rest: before it has begun, or on its way to the server."""

    async def main() -> None:
        aio, leaves = AsyncLimiter(redis.asyncio.Redis(port=real.port), timeout=10), asyncio.Event()

        async def work() -> None:
            async with aio.hold("b", lease(1, 60)):
                await leaves.wait()

        task = asyncio.create_task(work())
        await asyncio.to_thread(until, "it is held", lambda: held(real, "b"))
        await asyncio.to_thread(real.run, "CLIENT", "PAUSE", 200)
        leaves.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(main())
    assert held(real, "b") == 0


def test_a_turn_at_the_end_of_asyncio_run(real: Server, limiter: Limiter) -> None:
    """The server takes its time, and the loop ends as soon as it can."""
    rule = sliding("1/minute")

    async def main() -> None:
        aio = AsyncLimiter(redis.asyncio.Redis(port=real.port), timeout=10)
        assert await aio.hit("t", rule)
        waiting = asyncio.create_task(aio.wait("t", rule, timeout=600))
        await asyncio.to_thread(until, "it has its turn", lambda: (limiter.peek("t", rule).retry_after or 0) > 60)
        assert not waiting.done()
        await asyncio.to_thread(real.run, "CLIENT", "PAUSE", 200)

    asyncio.run(main())
    assert (limiter.peek("t", rule).retry_after or 0) <= 60


@pytest.mark.parametrize("call", ["wait", "turn", "acquire", "reserve"])
def test_a_call_at_the_end_of_asyncio_run(real: Server, forwarder: Forwarder, limiter: Limiter, call: str) -> None:
    """Its answer is on its way: what it has taken is given back."""
    rule = sliding("1/minute")

    async def main() -> None:
        aio = AsyncLimiter(redis.asyncio.Redis(port=forwarder.port), timeout=10)
        assert await aio.hit("t", rule)
        calls: dict[str, Any] = {
            "wait": lambda: aio.wait("t", rule, timeout=600),
            "turn": lambda: aio.turn("t", rule, 600),
            "acquire": lambda: aio.acquire("l", lease(1, 60)),
            "reserve": lambda: aio.reserve("r", rule, 1),
        }
        forwarder.hang()
        asking = asyncio.ensure_future(calls[call]())
        await asyncio.sleep(0.1)
        assert not asking.done()
        resumes.start()

    resumes = threading.Timer(0.2, forwarder.resume)
    asyncio.run(main())
    resumes.join()
    assert (limiter.peek("t", rule).retry_after or 0) <= 60
    assert held(real, "l") == 0
    assert limiter.peek("r", rule, cost=0).used == 0


def test_a_turn_of_a_thread_that_is_interrupted(
    real: Server, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends, and its other threads with it, before they have done anything."""
    rule = sliding("1/minute")
    assert limiter.hit("t", rule)

    def interrupted(seconds: float) -> None:
        assert (limiter.peek("t", rule).retry_after or 0) > 60
        raise KeyboardInterrupt

    monkeypatch.setattr("redis_rl._sync.limiter.sleep", interrupted)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    with pytest.raises(KeyboardInterrupt):
        limiter.wait("t", rule, timeout=600)
    assert (limiter.peek("t", rule).retry_after or 0) <= 60


class TaskTimeLimit(Exception):
    """Raised by the handler of a signal, as those of task queues are."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, TaskTimeLimit])
def test_an_interrupt_before_the_answer(
    real: Server, forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """As by Ctrl-C, when the call is sent and its answer not yet read: the next call gets its own."""
    connection: Any = redis.connection.AbstractConnection
    send = connection.send_command

    def interrupted(*args: Any, **options: Any) -> None:
        send(*args, **options)
        raise error

    with redis.Redis(port=forwarder.port) as client, Limiter(client, timeout=10) as distant:
        distant.hit("warm", RULE)
        forwarder.hang()
        with monkeypatch.context() as patched:
            patched.setattr(connection, "send_command", interrupted)
            with pytest.raises(error):
                distant.hit("a", sliding("3/minute"))
        later = threading.Timer(0.2, forwarder.resume)
        later.start()
        assert distant.hit("b", sliding("7/minute")).limit == 7
        later.join()


@pytest.mark.parametrize("error", [KeyboardInterrupt, TaskTimeLimit])
def test_what_an_interrupted_call_has_taken(
    real: Server, limiter: Limiter, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    connection: Any = redis.connection.AbstractConnection
    send = connection.send_command

    def interrupted(*args: Any, **options: Any) -> None:
        send(*args, **options)
        # The server is probed by a thread of its own, where no handler of a signal runs.
        if threading.current_thread() is threading.main_thread():
            monkeypatch.undo()
            raise error

    calls: list[Callable[[], object]] = [
        lambda: limiter.acquire("l", lease(1, 60)),
        limiter.hold("l", lease(1, 60)).__enter__,
        lambda: limiter.reserve("r", RULE, 1),
    ]
    for call in calls:
        limiter.hit("warm", RULE)
        monkeypatch.setattr(connection, "send_command", interrupted)
        with pytest.raises(error):
            call()
        assert connection.send_command is send
    assert held(real, "l") == 0
    assert limiter.peek("r", RULE, cost=0).used == 0


def test_an_interrupt_at_the_end_of_a_block(real: Server, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    release = limiter.release

    def interrupted(*args: Any) -> int:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), limiter.hold("a", lease(1, 60)):
        monkeypatch.setattr(limiter, "release", interrupted)
    assert limiter.release == release
    assert held(real, "a") == 0


def test_a_block_that_is_never_left(real: Server, limiter: Limiter) -> None:
    """As where an interrupt comes between entering it and its first line: nobody renews the lease."""
    limiter.hold("a", lease(1, 0.5)).__enter__()
    assert limiter.wait("a", lease(1, 60), timeout=30)


@pytest.mark.parametrize("call", ["hold", "acquire", "wait"])
async def test_a_caller_that_goes_while_it_asks(real: Server, forwarder: Forwarder, call: str) -> None:
    """The answer is on its way: nobody would know of the place."""
    async with redis.asyncio.Redis(port=forwarder.port) as client, AsyncLimiter(client, timeout=10) as aio:
        await aio.hit("warm", RULE)
        forwarder.hang()
        rule = lease(1, 60)
        calls: dict[str, Any] = {"acquire": aio.acquire, "wait": aio.wait, "hold": aio.hold("c", rule).__aenter__}
        asking = asyncio.ensure_future(calls[call]() if call == "hold" else calls[call]("c", rule))
        await asyncio.sleep(0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        forwarder.resume()
        # Closing waits for what is given back.
    assert held(real, "c") == 0


async def test_a_renewal_that_nobody_waits_for(real: Server, forwarder: Forwarder) -> None:
    """The caller has named the holder, and had the lease before: it keeps it."""
    async with redis.asyncio.Redis(port=forwarder.port) as client, AsyncLimiter(client, timeout=10) as aio:
        assert await aio.acquire("c", lease(1, 60), holder="me")
        forwarder.hang()
        for call in (aio.acquire("c", lease(1, 60), holder="me"), aio.wait("c", lease(1, 60, holder="me"))):
            asking = asyncio.ensure_future(call)
            await asyncio.sleep(0.1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        forwarder.resume()
    assert held(real, "c") == 1


async def test_a_reservation_that_nobody_waits_for(real: Server, forwarder: Forwarder) -> None:
    async with redis.asyncio.Redis(port=forwarder.port) as client, AsyncLimiter(client, timeout=10) as aio:
        await aio.hit("warm", RULE)
        forwarder.hang()

        async def reserve() -> None:
            async with await aio.reserve("t", RULE, 500):
                await asyncio.sleep(30)

        asking = asyncio.create_task(reserve())
        await asyncio.sleep(0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        forwarder.resume()
    async with redis.asyncio.Redis(port=real.port) as client, AsyncLimiter(client, timeout=10) as aio:
        assert (await aio.peek("t", RULE, cost=0)).used == 0


async def test_requests_that_are_left(real: Server, aio: AsyncLimiter) -> None:
    """Two leases each, cancelled at any moment, and cancelled again on the way out."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(30)

    first, second = lease(50, 60, name="first"), lease(50, 60, name="second")
    limited = RateLimitMiddleware(
        app,
        limiter=aio,
        rules=[(lambda _: "k", first), (lambda _: "k", second)],
        timeout=10,
    )
    scope = {"type": "http", "headers": []}
    tasks = [asyncio.create_task(limited(scope, None, None)) for _ in range(30)]  # type: ignore[arg-type]
    for number, task in enumerate(tasks):
        await asyncio.sleep(0.001 * (number % 5))
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await released(real, "rl:first:{k}")
    await released(real, "rl:second:{k}")
    assert not any("_keep" in repr(task) for task in asyncio.all_tasks())


async def test_calls_of_a_task_that_was_cancelled(real: Server, forwarder: Forwarder) -> None:
    """As it cleans up: its calls end at their deadlines, and are no further cancellation."""
    found: list[str] = []

    async def work(aio: AsyncLimiter, busy: AsyncLimiter) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            try:
                await aio.hit("a", RULE)
            except Unavailable as error:
                found.append(str(error))
            # In line behind another one.
            found.append(str((await busy.wait("l", lease(1, 60), timeout=0.2)).allowed))

    async with (
        redis.asyncio.Redis(port=forwarder.port) as client,
        AsyncLimiter(client, timeout=0.3) as aio,
        redis.asyncio.Redis(port=real.port) as other,
        AsyncLimiter(other, timeout=10) as busy,
    ):
        await busy.acquire("l", lease(1, 60), holder="other")
        first = asyncio.create_task(busy.wait("l", lease(1, 60), timeout=60))
        task = asyncio.create_task(work(aio, busy))
        await asyncio.to_thread(until, "the line has its denial", lambda: busy.statistics.denied)
        forwarder.hang()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        forwarder.resume()
        await busy.release("l", "other")
        assert await first
    assert found == ["the server has not answered in time", "False"]


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for a place by himself in the time of a test."""
    for module in ("_async", "_sync"):
        for name in ("FIRST_POLL", "LONGEST_POLL"):
            monkeypatch.setattr(f"redis_rl.{module}.limiter.{name}", 300.0)


@pytest.mark.usefixtures("no_polls")
async def test_places_are_handed_on(real: Server) -> None:
    """A release wakes the next one in the process."""
    asked = 0

    def count(event: Event) -> None:
        nonlocal asked
        asked += event.call == "hit"

    inside = most = 0

    async def job() -> None:
        nonlocal inside, most
        async with aio.hold("jobs", lease(5, 600), timeout=300):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    async with redis.asyncio.Redis(port=real.port) as client, AsyncLimiter(client, timeout=10, hook=count) as aio:
        await asyncio.gather(*(job() for _ in range(200)))
    assert most == 5
    # One each at once, when its turn comes, and after each release.
    assert asked <= 600


@pytest.mark.usefixtures("no_polls")
def test_places_are_handed_on_between_threads(real: Server, limiter: Limiter) -> None:
    done = []

    def job() -> None:
        with limiter.hold("jobs", lease(3, 600), timeout=300):
            time.sleep(0.01)
        done.append(1)

    threads = [threading.Thread(target=job) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 40
    assert limiter.statistics.allowed == 40
    assert limiter.statistics.denied <= 80


def test_a_place_elsewhere_is_found(real: Server, limiter: Limiter) -> None:
    """It is released long before its lease ends, by another process."""
    limiter.acquire("l", lease(1, 60), holder="other")
    other = threading.Timer(0.3, lambda: real.run("RL.RELEASE", "l", "other"))
    other.start()
    assert limiter.wait("l", lease(1, 60, holder="me"), timeout=20)
    other.join()
    with pytest.raises(Denied), limiter.hold("l", lease(1, 60), timeout=0.2):
        pytest.fail("entered")


def test_who_waits_outlasts_a_blip(real: Server, forwarder: Forwarder) -> None:
    with redis.Redis(port=forwarder.port) as client, Limiter(client, timeout=1) as limiter:
        until("it is there", lambda: limiter.hit("a", RULE))
        limiter.acquire("l", lease(1, 60), holder="other")
        got: list[bool] = []

        def work() -> None:
            got.append(bool(limiter.wait("l", lease(1, 60, holder="me"), timeout=60)))

        waiting = threading.Thread(target=work)
        waiting.start()
        forwarder.hang()
        time.sleep(2.5)
        forwarder.resume()
        real.run("RL.RELEASE", "l", "other")
        waiting.join()
        assert got == [True]


def test_what_was_known_before_an_outage(real: Server, forwarder: Forwarder) -> None:
    """It is no answer for those in line whose time ends in it."""
    with redis.Redis(port=forwarder.port) as client, Limiter(client, timeout=0.5) as limiter:
        until("it is there", lambda: used_through(limiter))
        real.run("RL.ACQUIRE", "l", 1, 60, "other")
        first = threading.Thread(target=lambda: limiter.wait("l", lease(1, 60), timeout=60))
        first.start()
        until("the first of them is denied", lambda: limiter.statistics.denied)
        forwarder.hang()
        until("the first of them has seen it", lambda: limiter.statistics.unavailable)
        try:
            with pytest.raises(Unavailable):
                limiter.wait("l", lease(1, 60), timeout=0.3)
        finally:
            forwarder.resume()
            real.run("RL.RELEASE", "l", "other")
            first.join()


class Named(redis.Redis):
    """A client with a constructor of its own."""

    def __init__(self, port: int, tenant: str) -> None:
        super().__init__(port=port, socket_timeout=60)
        self.tenant = tenant
        self.seen: list[str] = []

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.seen.append(self.tenant)
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


def test_a_client_of_another_class(real: Server, forwarder: Forwarder, caplog: Any) -> None:
    """It keeps its deadline, and is not sent again; a pool of one's own is used as it is, and the log says so."""
    with Named(forwarder.port, "mine") as client, Limiter(client, timeout=1) as limiter:
        until("it is there", lambda: limiter.hit("a", RULE))
        assert set(client.seen) == {"mine"}
        forwarder.hang()
        began = time.monotonic()
        with pytest.raises(Unavailable):
            limiter.hit("a", RULE)
        assert time.monotonic() - began < 10
    assert not [record for record in caplog.records if "as it is" in record.getMessage()]

    class Pool(redis.ConnectionPool):
        """One that does something of its own."""

    with Limiter(redis.Redis(connection_pool=Pool(port=real.port)), timeout=10) as limiter:
        assert limiter.hit("b", RULE)
    (line,) = (record.getMessage() for record in caplog.records if "as it is" in record.getMessage())
    assert "Pool is not of redis" in line


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_while_others_are_in_calls(real: Server) -> None:
    """The child has all of its places, and nothing that is locked."""
    with redis.Redis(port=real.port) as client, Limiter(client, timeout=20) as limiter:
        stop = threading.Event()

        def call() -> None:
            while not stop.is_set():
                limiter.hit("a", sliding("100/s"))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    # Without a word of pytest's.
                    code = 1
                    try:
                        for _ in range(3):
                            limiter.hit("b", RULE)
                        with limiter.hold("l", lease(1000, 60)):
                            code = 0
                    finally:
                        os._exit(code)
                deadline = time.monotonic() + 60
                done = 0
                while not done:
                    done, status = os.waitpid(child, os.WNOHANG)
                    assert time.monotonic() < deadline, "the child hangs"
                    time.sleep(0.001)
                assert os.waitstatus_to_exitcode(status) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert limiter.peek("b", RULE, cost=0).used == 60


def test_loops_in_threads(real: Server) -> None:
    """Each with connections of its own, at the same time."""
    client = redis.asyncio.Redis(port=real.port)
    limiter = AsyncLimiter(client, timeout=20)

    async def work() -> None:
        for _ in range(50):
            await limiter.hit("a", RULE)
        await limiter.aclose()

    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    with redis.Redis(port=real.port) as sync, Limiter(sync, timeout=10) as other:
        assert other.peek("a", RULE, cost=0).used == 200


def test_from_url(real: Server) -> None:
    with Limiter.from_url(f"{real.url}?client_name=mine", name="api", timeout=10) as limiter:
        assert limiter.hit("a", RULE).source == "server"
        assert limiter.name == "api"


@pytest.mark.parametrize("step", ["start", "__init__"])
def test_no_thread_is_to_be_had(real: Server, limiter: Limiter, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """As at the end of the process, where a container has as many as it may have, or in a sub-interpreter."""
    assert limiter.hit("a", RULE)

    def none(thread: threading.Thread, **options: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, step, none)
        # The server is to be probed, in the background.
        patched.setattr("redis_rl._sync.core.PROBE_EVERY", 0.0)
        limiter._core._probe_at.update(dict.fromkeys(limiter._core._probe_at, 0.0))
        assert limiter.hit("a", RULE).used == 2
        with limiter.hold("l", lease(1, 0.5)) as block, limiter.reserve("r", RULE, 5) as reservation:
            assert held(real, "l") == 1
            # Nobody renews it, and its end is noticed.
            until("it ends", lambda: block.lost)
            assert reservation.settle(3)
    assert held(real, "l") == 0
    assert limiter.peek("r", RULE, cost=0).used == 3


def test_a_lease_that_was_given_back_was_not_lost(real: Server, limiter: Limiter) -> None:
    with limiter.hold("l", lease(1, 0.3)) as block:
        pass
    time.sleep(0.4)
    assert not block.lost


def test_first_calls_at_the_same_time(real: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """They share connections, which are closed with the limiter."""
    core: Any = importlib.import_module("redis_rl._sync.core")

    def slow(*args: Any) -> Any:
        time.sleep(0.1)
        return servers(*args)

    servers = core.Servers
    monkeypatch.setattr(core, "Servers", slow)
    with redis.Redis(port=real.port, client_name="first") as client, Limiter(client, timeout=10) as limiter:
        threads = [threading.Thread(target=limiter.hit, args=("a", RULE)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        limiter.close()
        with real.client() as other:
            until("they are closed", lambda: not [each for each in other.client_list() if each["name"] == "first"], 5)


def test_loops_with_work_in_the_background() -> None:
    """Those that close a limiter look at what all loops do."""
    io: Any = importlib.import_module("redis_rl._async.io")

    async def nothing() -> None:
        pass

    async def work() -> None:
        for _ in range(1000):
            io.background(nothing)
            await io.ended(0.1)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(asyncio.run, work()) for _ in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
