"""The storages for limits, beyond what limits' own tests look at."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import aclosing, closing
from typing import Any

import flask
import flask.cli
import flask_limiter
import limits
import pytest
import redis
import valkey
from limits.aio.strategies import FixedWindowRateLimiter as AsyncFixedWindowRateLimiter
from limits.aio.strategies import MovingWindowRateLimiter as AsyncMovingWindowRateLimiter
from limits.errors import StorageError
from limits.limits import Granularity
from limits.storage import RedisStorage, storage_from_string
from limits.strategies import STRATEGIES, FixedWindowRateLimiter, MovingWindowRateLimiter

from redis_rl import Event, Refused, Unavailable
from redis_rl.limits import AsyncRlStorage, RlStorage
from servers import START_MS, Cluster, Forwarder, Sentinel, Server, compact

MINUTE = limits.parse("3/minute")


class Fortnightly(limits.RateLimitItem):
    GRANULARITY = Granularity(14 * 86_400, "fortnight")


def make(uri: str, **options: Any) -> Any:
    """The storage for a URI, with a time-out for slow machines."""
    return storage_from_string(uri, **{"timeout": 10, **options})


@pytest.mark.parametrize("scheme", ["rl+redis", "rl+valkey"])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_strategies(server: Server, scheme: str, strategy: str) -> None:
    storage = make(f"{scheme}://127.0.0.1:{server.port}")
    assert isinstance(storage, RlStorage)
    assert isinstance(storage.storage, redis.Redis if scheme == "rl+redis" else valkey.Valkey)
    with closing(storage):
        limiter = STRATEGIES[strategy](storage)
        assert limiter.test(MINUTE, "7")
        assert [limiter.hit(MINUTE, "7") for _ in range(4)] == [True, True, True, False]
        assert not limiter.test(MINUTE, "7")
        stats = limiter.get_window_stats(MINUTE, "7")
        assert stats.remaining == 0
        assert stats.reset_time == pytest.approx(time.time() + 60, abs=5)
        server.set_clock(START_MS + 60_000)
        assert limiter.hit(MINUTE, "7", cost=3)
        limiter.clear(MINUTE, "7")
        assert limiter.hit(MINUTE, "7", cost=3)
        assert not limiter.hit(MINUTE, "7", cost=4)
        assert storage.check()
        assert storage.reset() == 1


async def test_asyncio_strategies(server: Server) -> None:
    storage = make(f"async+rl+redis://127.0.0.1:{server.port}")
    assert isinstance(storage, AsyncRlStorage)
    async with aclosing(storage):
        fixed, moving = AsyncFixedWindowRateLimiter(storage), AsyncMovingWindowRateLimiter(storage)
        for limiter in (fixed, moving):
            assert [await limiter.hit(MINUTE, "7") for _ in range(4)] == [True, True, True, False]
            assert (await limiter.get_window_stats(MINUTE, "7")).remaining == 0
        assert await storage.check()
        assert await storage.reset() == 2


def test_reset_takes_the_prefix_as_it_is(server: Server) -> None:
    server.run("SET", "app:1:of somebody else", "x")
    storage = make(f"rl+redis://127.0.0.1:{server.port}", key_prefix="app:[1]*")
    assert isinstance(storage, RlStorage)
    with closing(storage):
        assert FixedWindowRateLimiter(storage).hit(MINUTE, "7")
        assert storage.reset() == 1
    assert server.run("KEYS", "*") == ["app:1:of somebody else"]


def test_a_counter_is_read_by_other_processes(server: Server) -> None:
    """limits asks for it by its key alone, which tells the window."""
    first, second = (make(f"rl+{server.url}") for _ in range(2))
    assert isinstance(first, RlStorage)
    assert isinstance(second, RlStorage)
    with closing(first), closing(second):
        for text in ("5/minute", "5 per 2 hours", "5/day", "5/month", "5/year", "5/second"):
            item = limits.parse(text)
            FixedWindowRateLimiter(first).hit(item, "a/b", "c")
            stats = FixedWindowRateLimiter(second).get_window_stats(item, "a/b", "c")
            assert stats.remaining == 4
            assert stats.reset_time == pytest.approx(time.time() + item.get_expiry(), abs=5)
            FixedWindowRateLimiter(second).clear(item, "a/b", "c")
            assert FixedWindowRateLimiter(first).get_window_stats(item, "a/b", "c").remaining == 5
        # An item of one's own, too.
        FixedWindowRateLimiter(first).hit(Fortnightly(5), "a")
        assert FixedWindowRateLimiter(second).get_window_stats(Fortnightly(5), "a").remaining == 4
        # A key of another form does not tell it.
        assert first.incr("own", 7, amount=2) == 2
        for read in (first.get, second.get_expiry):
            with pytest.raises(ValueError, match="by the key of an item"):
                read("own")
        assert first.incr("own", 7, amount=0) == 2
        assert first.acquire_entry("own", 1, 7, amount=0)


def test_weights(server: Server) -> None:
    """Any cost in one call, and none above the limit."""
    storage = make(f"rl+{server.url}")
    assert isinstance(storage, RlStorage)
    item = limits.parse("10000000/hour")
    with closing(storage):
        assert FixedWindowRateLimiter(storage).hit(item, "a", cost=9_000_000)
        assert not FixedWindowRateLimiter(storage).hit(item, "a", cost=1_000_001)
        moving = MovingWindowRateLimiter(storage)
        assert moving.hit(item, "a")
        if compact(server):
            assert moving.hit(item, "a", cost=9_999_999)
            assert not moving.hit(item, "a")
        else:
            with pytest.raises(Refused, match="COST above 1000"):
                moving.hit(item, "a", cost=9_999_999)


def test_errors_may_be_wrapped(server: Server) -> None:
    plain = make(f"rl+{server.url}")
    wrapping = make(f"rl+{server.url}", wrap_exceptions=True)
    assert isinstance(plain, RlStorage)
    assert isinstance(wrapping, RlStorage)
    with closing(plain), closing(wrapping):
        server.run("SET", "RL-LIMITS:x", "text")
        with pytest.raises(Refused):
            plain.acquire_entry("x", 1, 60)
        with pytest.raises(StorageError):
            wrapping.acquire_entry("x", 1, 60)


def test_a_client_of_ones_own(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        storage = RlStorage("rl+redis://elsewhere", client=client, key_prefix="mine", timeout=10)
        assert storage.incr("a", 60) == 1
        assert client.keys() == [b"mine:a:60s"]


def test_it_follows_limits_own_storage(server: Server) -> None:
    """On a server that has the keys of the one before: the quotas begin anew, and nothing fails."""
    own = storage_from_string(server.url)
    ours = make(f"rl+{server.url}")
    assert isinstance(own, RedisStorage)
    assert isinstance(ours, RlStorage)
    with own.storage, closing(ours):
        for storage in (own, ours, own):
            for strategy in (FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage)):
                # limits' own storages keep the two strategies at one key, too.
                assert strategy.hit(MINUTE, type(strategy).__name__)


def test_long_keys(server: Server) -> None:
    """A header of 60 kB is no key of 60 kB, and another that begins alike is another one."""
    with closing(make(f"rl+{server.url}", key_prefix="long")) as storage:
        one, other = (f"LIMITER/{'x' * 60_000}{end}/1/1/minute" for end in "ab")
        assert [storage.acquire_entry(key, 1, 60) for key in (one, one, other)] == [True, False, True]
        counted = f"{one}/counted/1/1/minute"
        assert storage.incr(counted, 60) == 1
        assert storage.get(counted) == 1
        assert max(map(len, storage.storage.keys("*"))) < 300
        storage.clear(one)
        assert storage.acquire_entry(one, 1, 60)


def test_options(server: Server) -> None:
    """Those of limits' own storages, of the client, and of the limiter."""
    pool = redis.ConnectionPool(port=server.port)
    with closing(pool), closing(make("rl+redis://elsewhere", connection_pool=pool, mode=server.mode)) as storage:
        assert storage.limiter.mode == server.mode
        assert storage.incr("a/1/1/minute", 60) == 1
        assert storage.storage.connection_pool is pool
    with closing(make(f"rl+{server.url}", client_name="mine", key_prefix="p")) as storage:
        assert [storage.acquire_entry("x", 1, 60) for _ in range(3)] == [True, False, False]
        assert "mine" in [client["name"] for client in storage.storage.client_list()]
        assert (storage.limiter.statistics.allowed, storage.limiter.statistics.denied) == (1, 2)
        storage.clear("x")
        assert storage.acquire_entry("x", 1, 60)
    events: list[Event] = []
    with closing(make(f"rl+{server.url}", hook=events.append, key_prefix="hooked")) as storage:
        assert [storage.acquire_entry("x", 1, 60) for _ in range(2)] == [True, False]
        assert [storage.incr("x", 60) for _ in range(2)] == [1, 2]
    assert [bool(event.result) for event in events] == [True, False, True, True]
    with pytest.raises(ValueError, match="mode must be"):
        make(f"rl+{server.url}", mode="lua")
    with pytest.raises(ValueError, match="service is missing"):
        make("rl+redis+sentinel://localhost:26379")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("library", ["redis", "valkey"])
async def test_sentinels(server: Server, library: str, asynchronous: bool, sentinel: int) -> None:
    uri = f"rl+{library}+sentinel://127.0.0.1:{sentinel},127.0.0.1:{sentinel}/limits"
    if asynchronous:
        async with aclosing(make(f"async+{uri}")) as storage:
            assert [await storage.acquire_entry("a", 1, 60) for _ in range(2)] == [True, False]
            assert await storage.check()
    else:
        with closing(make(uri, use_replicas=False, sentinel_kwargs={"socket_timeout": 5})) as storage:
            assert [storage.acquire_entry("a", 1, 60) for _ in range(2)] == [True, False]
            assert storage.check()
    assert server.run("EXISTS", "RL-LIMITS:a")


@pytest.fixture
def sentinel(server: Server) -> Iterator[int]:
    """The port of a sentinel that names the server."""
    watching = Sentinel(server)
    yield watching.port
    watching.kill()


def test_the_command_line_of_flask_limiter(server: Server) -> None:
    app = flask.Flask(__name__)
    limiter = flask_limiter.Limiter(
        lambda: "me", app=app, storage_uri=f"rl+{server.url}", storage_options={"timeout": "10"}
    )
    assert isinstance(limiter.storage, RlStorage)
    app.route("/")(lambda: "hello")
    with closing(limiter.storage):
        commands = flask.cli.FlaskGroup(create_app=lambda: app)
        for words in (["config"], ["limits"], ["clear", "--key", "me", "-y"]):
            done = app.test_cli_runner().invoke(commands, ["limiter", *words])
            assert done.exit_code == 0, (words, done.output, done.exception)
            assert "RlStorage" in done.output or words != ["config"]


async def test_a_server_that_hangs(server: Server) -> None:
    with Forwarder(server) as forwarder:
        uri = f"rl+redis://127.0.0.1:{forwarder.port}"
        with closing(make(uri, timeout=2)) as storage:
            assert storage.check()
            forwarder.hang()
            began = time.monotonic()
            assert not storage.check()
            with pytest.raises(Unavailable):
                storage.incr("a/1/1/minute", 60)
            assert time.monotonic() - began < 20


async def test_clusters(cluster: Cluster) -> None:
    nodes = ",".join(f"{host}:{port}" for host, port in cluster.startup)
    for scheme in ("rl+redis+cluster", "rl+valkey+cluster"):
        storage = make(f"{scheme}://{nodes}")
        assert isinstance(storage, RlStorage)
        with closing(storage):
            for user in "abcdef":
                for limiter in (FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage)):
                    assert [limiter.hit(MINUTE, user) for _ in range(4)] == [True, True, True, False]
                    assert limiter.get_window_stats(MINUTE, user).remaining == 0
            assert storage.check()
            assert storage.reset() == 12
        storage = make(f"async+{scheme}://{nodes}")
        assert isinstance(storage, AsyncRlStorage)
        async with aclosing(storage):
            aio = AsyncFixedWindowRateLimiter(storage)
            assert [await aio.hit(MINUTE, "a") for _ in range(4)] == [True, True, True, False]
            assert await storage.reset() == 1
