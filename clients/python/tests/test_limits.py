"""The storages for limits, beyond what limits' own tests look at."""

from __future__ import annotations

import time

import limits
import pytest
import redis
import valkey
from limits.aio.strategies import FixedWindowRateLimiter as AsyncFixedWindowRateLimiter
from limits.aio.strategies import MovingWindowRateLimiter as AsyncMovingWindowRateLimiter
from limits.errors import StorageError
from limits.storage import RedisStorage, storage_from_string
from limits.strategies import STRATEGIES, FixedWindowRateLimiter, MovingWindowRateLimiter

from redis_rl.limits import AsyncRlStorage, RlStorage
from servers import START_MS, Cluster, Server

MINUTE = limits.parse("3/minute")


@pytest.mark.parametrize("scheme", ["rl+redis", "rl+valkey"])
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_strategies(server: Server, scheme: str, strategy: str) -> None:
    storage = storage_from_string(f"{scheme}://127.0.0.1:{server.port}")
    assert isinstance(storage, RlStorage)
    assert isinstance(storage.client, redis.Redis if scheme == "rl+redis" else valkey.Valkey)
    with storage.client:
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
    storage = storage_from_string(f"async+rl+redis://127.0.0.1:{server.port}")
    assert isinstance(storage, AsyncRlStorage)
    async with storage.client:
        fixed, moving = AsyncFixedWindowRateLimiter(storage), AsyncMovingWindowRateLimiter(storage)
        for limiter in (fixed, moving):
            assert [await limiter.hit(MINUTE, "7") for _ in range(4)] == [True, True, True, False]
            assert (await limiter.get_window_stats(MINUTE, "7")).remaining == 0
        assert await storage.check()
        assert await storage.reset() == 2


def test_a_counter_is_read_by_other_processes(server: Server) -> None:
    """limits asks for it by its key alone, which tells the window."""
    first, second = (storage_from_string(f"rl+{server.url}") for _ in range(2))
    assert isinstance(first, RlStorage)
    assert isinstance(second, RlStorage)
    with first.client, second.client:
        for text in ("5/minute", "5 per 2 hours", "5/day", "5/month", "5/year", "5/second"):
            item = limits.parse(text)
            FixedWindowRateLimiter(first).hit(item, "a/b", "c")
            stats = FixedWindowRateLimiter(second).get_window_stats(item, "a/b", "c")
            assert stats.remaining == 4
            assert stats.reset_time == pytest.approx(time.time() + item.get_expiry(), abs=5)
            FixedWindowRateLimiter(second).clear(item, "a/b", "c")
            assert FixedWindowRateLimiter(first).get_window_stats(item, "a/b", "c").remaining == 5
        # A key of another form is known where it was counted.
        assert first.incr("own", 7, amount=2) == 2
        assert (first.get("own"), second.get("own")) == (2, 0)
        assert first.incr("own", 7, amount=0) == 2
        assert first.acquire_entry("own", 1, 7, amount=0)


def test_weights(server: Server) -> None:
    """Any cost in one call, and none above the limit."""
    storage = storage_from_string(f"rl+{server.url}")
    assert isinstance(storage, RlStorage)
    item = limits.parse("10000000/hour")
    with storage.client:
        assert FixedWindowRateLimiter(storage).hit(item, "a", cost=9_000_000)
        assert not FixedWindowRateLimiter(storage).hit(item, "a", cost=1_000_001)
        moving = MovingWindowRateLimiter(storage)
        assert moving.hit(item, "a")
        if server.mode == "module":
            assert moving.hit(item, "a", cost=9_999_999)
            assert not moving.hit(item, "a")
        else:
            with pytest.raises(redis.ResponseError, match="COST above 1000"):
                moving.hit(item, "a", cost=9_999_999)


def test_errors_may_be_wrapped(server: Server) -> None:
    plain = storage_from_string(f"rl+{server.url}")
    wrapping = storage_from_string(f"rl+{server.url}", wrap_exceptions=True)
    assert isinstance(plain, RlStorage)
    assert isinstance(wrapping, RlStorage)
    with plain.client, wrapping.client:
        server.run("SET", "RL-LIMITS:x", "text")
        with pytest.raises(redis.ResponseError):
            plain.acquire_entry("x", 1, 60)
        with pytest.raises(StorageError):
            wrapping.acquire_entry("x", 1, 60)


def test_a_client_of_ones_own(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        storage = RlStorage("rl+redis://elsewhere", client=client, key_prefix="mine")
        assert storage.incr("a", 60) == 1
        assert client.keys() == [b"mine:a:60s"]


def test_it_follows_limits_own_storage(server: Server) -> None:
    """On a server that has the keys of the one before: the quotas begin anew, and nothing fails."""
    own = storage_from_string(server.url)
    ours = storage_from_string(f"rl+{server.url}")
    assert isinstance(own, RedisStorage)
    assert isinstance(ours, RlStorage)
    with own.storage, ours.client:
        for storage in (own, ours, own):
            for strategy in (FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage)):
                # limits' own storages keep the two strategies at one key, too.
                assert strategy.hit(MINUTE, type(strategy).__name__)


async def test_clusters(cluster: Cluster) -> None:
    nodes = ",".join(f"{host}:{port}" for host, port in cluster.startup)
    for scheme in ("rl+redis+cluster", "rl+valkey+cluster"):
        storage = storage_from_string(f"{scheme}://{nodes}")
        assert isinstance(storage, RlStorage)
        with storage.client:
            for user in "abcdef":
                for limiter in (FixedWindowRateLimiter(storage), MovingWindowRateLimiter(storage)):
                    assert [limiter.hit(MINUTE, user) for _ in range(4)] == [True, True, True, False]
                    assert limiter.get_window_stats(MINUTE, user).remaining == 0
            assert storage.check()
            assert storage.reset() == 12
        storage = storage_from_string(f"async+{scheme}://{nodes}")
        assert isinstance(storage, AsyncRlStorage)
        async with storage.client:
            aio = AsyncFixedWindowRateLimiter(storage)
            assert [await aio.hit(MINUTE, "a") for _ in range(4)] == [True, True, True, False]
            assert await storage.reset() == 1
