"""Clusters, by the cluster clients of redis-py and valkey-py."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
import redis.cluster
import valkey
import valkey.asyncio.cluster
import valkey.cluster
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.crc import key_slot

from redis_rl import AsyncLimiter, Error, Limiter, Refused, Rule, Unavailable, calendar, fixed, lease, sliding, throttle
from servers import Cluster, Server, is_old, until

RULE = sliding("100/minute")


@pytest.fixture(params=["redis", "valkey"])
def client(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Any]:
    host, port = cluster.startup[0]
    make: Any = redis.RedisCluster if request.param == "redis" else valkey.ValkeyCluster
    with make(host=host, port=port) as client:
        yield client


@pytest.fixture(params=["redis", "valkey"])
async def aio_client(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[Any]:
    host, port = cluster.startup[0]
    make: Any = AsyncRedisCluster if request.param == "redis" else valkey.asyncio.cluster.ValkeyCluster
    async with make(host, port) as client:
        yield client


def everything(tag: str) -> dict[str | bytes, Rule]:
    return {
        f"{tag}:rpm": RULE,
        f"{tag}:day": fixed("100/day"),
        f"{tag}:hour": fixed("100/hour", anchored=True),
        f"{tag}:pace": throttle("100/minute"),
        f"{tag}:busy": lease(100, 60, holder="me"),
    }


def calls(cluster: Cluster) -> int:
    """Calls of ours that were refused by a node for not being its own."""
    count = 0
    for node in cluster.nodes:
        with node.client() as client:
            errors = client.info("errorstats")
        count += sum(stats["count"] for name, stats in errors.items() if "MOVED" in name)
    return count


def reset_statistics(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.run("CONFIG", "RESETSTAT")


def test_every_call_goes_to_its_node_at_once(cluster: Cluster, client: Any) -> None:
    limiter = Limiter(client, timeout=10)
    limiter.hit("a", RULE)
    assert limiter.mode == cluster.mode
    reset_statistics(cluster)
    for number in range(30):
        tag = f"{{{number}}}"
        for key, rule in everything(tag).items():
            assert limiter.peek(key, rule)
            assert limiter.hit(key, rule).used == 1
        assert limiter.all(everything(tag)).each[1].used == 2
        assert limiter.refund(f"{tag}:rpm", RULE)
        assert limiter.reset(f"{tag}:day", fixed("100/day")) == 1
        assert limiter.release(f"{tag}:busy", "nobody") == 0
        # Without a hash tag, too, a counter lies with its key.
        assert limiter.hit(f"plain{number}", fixed("1/day")).used == 1
        assert not limiter.hit(f"plain{number}", fixed("1/day"))
    assert calls(cluster) == 0


async def test_asyncio_call_goes_to_its_node_at_once(cluster: Cluster, aio_client: Any) -> None:
    async with AsyncLimiter(aio_client, timeout=10) as limiter:
        await limiter.hit("a", RULE)
        assert limiter.mode == cluster.mode
        reset_statistics(cluster)
        for number in range(30):
            tag = f"{{{number}}}"
            for key, rule in everything(tag).items():
                assert await limiter.peek(key, rule)
                assert (await limiter.hit(key, rule)).used == 1
            assert (await limiter.all(everything(tag))).each[1].used == 2
            assert await limiter.refund(f"{tag}:rpm", RULE)
            assert await limiter.reset(f"{tag}:day", fixed("100/day")) == 1
        assert calls(cluster) == 0


def test_reservations(client: Any) -> None:
    """What is noted of them lies in the slot of the key, also where the key has no hash tag."""
    limiter = Limiter(client, timeout=10)
    for number in range(30):
        with limiter.reserve(f"budget:{number}", RULE, 90) as reservation:
            assert reservation.settle(7)
        both = {f"{{{number}}}:minute": RULE.reserved(90), f"{{{number}}}:month": calendar("100/month").reserved(90)}
        with limiter.reserve_all(both) as reservation:
            assert reservation.settle(8)
        assert limiter.peek(f"budget:{number}", RULE, cost=0).used == 7
        assert limiter.peek(f"{{{number}}}:month", calendar("100/month"), cost=0).used == 8


def test_keys_of_several_slots_are_refused(client: Any) -> None:
    limiter = Limiter(client, timeout=10)
    with pytest.raises(Error) as refused:
        limiter.all({"a": RULE, "b": RULE})
    assert isinstance(refused.value, Refused)


def test_a_new_node_without_functions(cluster: Cluster, client: Any) -> None:
    """Functions do not reach other shards by themselves."""
    limiter = Limiter(client, timeout=10)
    limiter.hit("a", RULE)
    cluster.nodes[1].forget_functions()
    cluster.nodes[1].run("SCRIPT", "FLUSH")
    key = cluster.key_on(1)
    assert limiter.hit(key, RULE).used == 1
    assert limiter.mode == cluster.mode


class Move:
    """A slot on its way from one primary to the next, empty there as yet."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.slot = key_slot(key.encode())
        self._cluster = cluster
        self.source = cluster.owner(key)
        primaries = cluster.nodes[:3]
        self.target = primaries[(primaries.index(self.source) + 1) % 3]
        self._ids = cluster.id(self.source), cluster.id(self.target)

    def __enter__(self) -> Move:
        self.target.run("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self._ids[0])
        self.source.run("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self._ids[1])
        return self

    def carry(self, key: str) -> None:
        """Moves a key to the target."""
        self.source.run("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)

    def __exit__(self, *_: object) -> None:
        """Brings the slot back to where it was."""
        for node in (self.target, self.source):
            node.run("FLUSHALL")
        self.source.run("CLUSTER", "SETSLOT", self.slot, "STABLE")
        self.target.run("CLUSTER", "SETSLOT", self.slot, "STABLE")


def try_agains(server: Server) -> int:
    with server.client() as client:
        stats = client.info("errorstats").get("errorstat_TRYAGAIN", {"count": 0})
    return int(stats["count"])


@pytest.mark.skipif(is_old(), reason="Redis 6.2 does not count its TRYAGAIN")
def test_a_slot_on_its_way(cluster: Cluster, client: Any) -> None:
    """A call whose keys are in two places is asked again until they are in one, and counted once."""
    limiter = Limiter(client, timeout=30)
    tag = cluster.key_on(1, client.__class__.__name__)
    rules = {f"{tag}:a": RULE, f"{tag}:b": RULE}
    assert limiter.all(rules)
    reset_statistics(cluster)
    with Move(cluster, tag) as move:
        move.carry(f"{tag}:a")
        before = try_agains(move.source)

        def finish() -> None:
            try:
                until("the call has been asked again many times", lambda: try_agains(move.source) > before + 20)
            finally:
                move.carry(f"{tag}:b")

        other = threading.Thread(target=finish)
        other.start()
        result = limiter.all(rules)
        other.join()
        assert [each.used for each in result.each] == [2, 2]
        assert [each.used for each in limiter.all(rules).each] == [3, 3]
        assert limiter.hit(f"{tag}:a", RULE).used == 4


@pytest.mark.skipif(is_old(), reason="Redis 6.2 does not count its TRYAGAIN")
async def test_asyncio_slot_on_its_way(cluster: Cluster, aio_client: Any) -> None:
    async with AsyncLimiter(aio_client, timeout=30) as limiter:
        tag = cluster.key_on(1, aio_client.__module__.partition(".")[0])
        rules = {f"{tag}:a": RULE, f"{tag}:b": RULE}
        assert await limiter.all(rules)
        reset_statistics(cluster)
        with Move(cluster, tag) as move:
            move.carry(f"{tag}:a")
            before = try_agains(move.source)
            asked = asyncio.create_task(limiter.all(rules))
            await asyncio.to_thread(
                until, "the call has been asked again many times", lambda: try_agains(move.source) > before + 20
            )
            move.carry(f"{tag}:b")
            assert [each.used for each in (await asked).each] == [2, 2]


def test_a_slot_that_stays_on_its_way(cluster: Cluster, client: Any) -> None:
    """There is a deadline, and nothing is counted."""
    limiter = Limiter(client, timeout=5)
    tag = cluster.key_on(2, client.__class__.__name__)
    rules = {f"{tag}:a": RULE, f"{tag}:b": RULE}
    assert limiter.all(rules)
    with Move(cluster, tag) as move:
        move.carry(f"{tag}:a")
        with pytest.raises(Error) as error:
            limiter.all(rules)
        assert isinstance(error.value, Unavailable)
        assert limiter.peek(f"{tag}:b", RULE, cost=0).used == 1


@pytest.mark.parametrize("library", ["redis", "valkey"])
@pytest.mark.skipif(is_old(), reason="Redis 6.2 has no scripts for replicas: peeks go to primaries")
async def test_a_peek_may_go_to_a_replica(cluster: Cluster, library: str) -> None:
    """Where the client is set to read from replicas; all else goes to the primary."""
    key = cluster.key_on(0)
    host, port = cluster.startup[0]
    options: dict[str, Any] = {"host": host, "port": port}
    if library == "redis":
        options["load_balancing_strategy"] = redis.cluster.LoadBalancingStrategy.ROUND_ROBIN
    else:
        options["read_from_replicas"] = True
    make: Any = redis.RedisCluster if library == "redis" else valkey.ValkeyCluster
    make_aio: Any = AsyncRedisCluster if library == "redis" else valkey.asyncio.cluster.ValkeyCluster
    with make(**options) as client:
        limiter = Limiter(client, timeout=10)
        limiter.hit(key, RULE)
        until("the replica has it", lambda: reads(cluster, key))
        for _ in range(2):
            limiter.peek(key, RULE)  # A script is not known there before.
        reset_statistics(cluster)
        for _ in range(10):
            assert limiter.peek(key, RULE, cost=0).used == 1
        limiter.hit(key, RULE)
    answered = peeks(cluster.replica)
    async with make_aio(**options) as client, AsyncLimiter(client, timeout=10) as aio:
        for _ in range(10):
            assert (await aio.peek(key, RULE, cost=0)).used in (1, 2)
    assert calls(cluster) == 0
    assert answered == 5
    assert peeks(cluster.replica) == 10


def reads(cluster: Cluster, key: str) -> bool:
    with cluster.replica.client() as client:
        client.execute_command("READONLY")
        return bool(client.exists(key))


def peeks(server: Server) -> int:
    """Peeks that the server has answered itself."""
    with server.client() as client:
        stats = client.info("commandstats")
    kinds = ("cmdstat_rl.peek", "cmdstat_fcall_ro", "cmdstat_fcall", "cmdstat_evalsha_ro")
    return sum(stats[kind]["calls"] for kind in kinds if kind in stats)
