"""Lost replies, failovers, restricted users, and errors that go away by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.cluster
import valkey
import valkey.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster

from redis_rl import AsyncLimiter, Limiter, Refunded, fixed, sliding
from servers import MODULE, Cluster, Proxy, Server, is_old

RULE = sliding("100/minute")


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server)
    yield proxy
    proxy.close()


def used(server: Server) -> int:
    with server.client() as client:
        return Limiter(client).peek("a", RULE, cost=0).used


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("library", ["redis", "valkey"])
def test_a_call_without_reply_is_not_sent_again(server: Server, proxy: Proxy, library: str, single: bool) -> None:
    options: dict[str, Any] = {"port": proxy.port, "single_connection_client": single}
    # redis-py sends again by itself, valkey-py where it is told to.
    retry = valkey.retry.Retry(valkey.backoff.NoBackoff(), 2)
    eager = (
        redis.Redis(**options)
        if library == "redis"
        else valkey.Valkey(retry=retry, retry_on_error=[valkey.ConnectionError], **options)
    )
    with eager as client:
        limiter = Limiter(client)
        limiter.hit("a", RULE)
        proxy.lose = 1
        with pytest.raises(limiter.client_errors, match="closed"):
            limiter.hit("a", RULE)
        assert used(server) == 2
        # The connection is usable again, and not one reply behind.
        assert limiter.hit("a", RULE).used == 3
        assert limiter.refund("a", RULE) == Refunded(1, 2, 60)
        # Those who want it have it sent again, and counted twice.
        proxy.lose = 1
        assert Limiter(client, resend_lost=True, mode=server.mode).hit("a", RULE).used == 4


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("library", ["redis", "valkey"])
async def test_asyncio_call_without_reply_is_not_sent_again(
    server: Server, proxy: Proxy, library: str, single: bool
) -> None:
    options: dict[str, Any] = {"port": proxy.port, "single_connection_client": single}
    retry = valkey.asyncio.retry.Retry(valkey.backoff.NoBackoff(), 2)
    eager = (
        redis.asyncio.Redis(**options)
        if library == "redis"
        else valkey.asyncio.Valkey(retry=retry, retry_on_error=[valkey.ConnectionError], **options)
    )
    async with eager as client:
        limiter = AsyncLimiter(client)
        await limiter.hit("a", RULE)
        proxy.lose = 1
        with pytest.raises(limiter.client_errors, match="closed"):
            await limiter.hit("a", RULE)
        assert used(server) == 2
        assert (await limiter.hit("a", RULE)).used == 3
        assert await limiter.refund("a", RULE) == Refunded(1, 2, 60)
        proxy.lose = 1
        assert (await AsyncLimiter(client, resend_lost=True, mode=server.mode).hit("a", RULE)).used == 4


@pytest.fixture
def proxies(cluster: Cluster) -> Iterator[dict[int, Proxy]]:
    """Proxies for the nodes of a cluster, by the nodes' ports."""
    proxies = {node.port: Proxy(node) for node in cluster.nodes}
    yield proxies
    for proxy in proxies.values():
        proxy.close()


def remap(proxies: dict[int, Proxy]) -> Any:
    return lambda address: (address[0], proxies[address[1]].port if address[1] in proxies else address[1])


def test_a_call_in_a_cluster_is_not_sent_again(cluster: Cluster, proxies: dict[int, Proxy]) -> None:
    startup = [redis.cluster.ClusterNode(*cluster.startup[0])]  # type: ignore[no-untyped-call]
    with redis.RedisCluster(startup_nodes=startup, address_remap=remap(proxies)) as client:
        limiter = Limiter(client)
        limiter.hit("a", RULE)
        proxies[cluster.owner("a").port].lose = 1
        with pytest.raises(redis.ConnectionError):
            limiter.hit("a", RULE)
        assert limiter.hit("a", RULE).used == 3
        proxies[cluster.owner("a").port].lose = 1
        assert Limiter(client, resend_lost=True, mode=cluster.mode).hit("a", RULE).used == 5


async def test_asyncio_call_in_a_cluster_is_not_sent_again(cluster: Cluster, proxies: dict[int, Proxy]) -> None:
    host, port = cluster.startup[0]
    async with AsyncRedisCluster(host, port, address_remap=remap(proxies)) as client:
        limiter = AsyncLimiter(client)
        await limiter.hit("a", RULE)
        proxies[cluster.owner("a").port].lose = 1
        with pytest.raises(redis.ConnectionError):
            await limiter.hit("a", RULE)
        assert (await limiter.hit("a", RULE)).used == 3
        proxies[cluster.owner("a").port].lose = 1
        assert (await AsyncLimiter(client, resend_lost=True, mode=cluster.mode).hit("a", RULE)).used == 5


def test_a_server_that_has_lost_its_scripts(server: Server, limiter: Limiter) -> None:
    limiter.hit("a", RULE)
    server.forget_functions()
    server.run("SCRIPT", "FLUSH")
    assert limiter.hit("a", RULE).used == 2
    assert limiter.mode == server.mode


async def test_asyncio_server_that_has_lost_its_scripts(server: Server, aio: AsyncLimiter) -> None:
    await aio.hit("a", RULE)
    server.forget_functions()
    server.run("SCRIPT", "FLUSH")
    assert (await aio.hit("a", RULE)).used == 2
    assert aio.mode == server.mode


def test_a_failover_to_another_kind_of_server(servers: dict[str, Server], server: Server) -> None:
    """The new primary has something else to offer: the module is gone, or the functions."""
    if server.mode == "script":
        pytest.skip("there is nothing to lose")
    other = servers.get("script") or Server("script")
    servers.setdefault("script", other)
    other.clean()
    with redis.Redis(port=server.port) as client:
        limiter = Limiter(client)
        limiter.hit("a", RULE)
        # The name now leads to another server.
        client.connection_pool.disconnect()
        client.connection_pool.connection_kwargs["port"] = other.port
        client.connection_pool.reset()
        assert limiter.hit("a", RULE).used == 1
        assert limiter.mode == "script"


def test_a_module_that_comes_later(server: Server) -> None:
    """The keys carry on, and a look finds the better way."""
    if server.mode != "functions":
        pytest.skip("once, from functions to the module")
    later = Server("functions")
    try:
        with redis.Redis(port=later.port) as client:
            limiter = Limiter(client)
            limiter.hit("a", sliding("3/minute"))
            client.execute_command("MODULE", "LOAD", str(MODULE))
            assert limiter.hit("a", sliding("3/minute")).used == 2
            assert limiter.mode == "functions"
            assert limiter.look() == "module"
            assert limiter.hit("a", sliding("3/minute")).used == 3
            assert not limiter.hit("a", sliding("3/minute"))
    finally:
        later.kill()


@pytest.mark.skipif(is_old(), reason="the rules name commands that Redis 6.2 does not know")
def test_users_without_some_permissions(server: Server) -> None:
    """What a user may do decides how the server is called."""
    rules = {
        "plain": "~* +@all",
        "no-load": "~* +@all -function",
        "no-functions": "~* +@all -function -fcall -fcall_ro",
    }
    modes = {}
    for name, rule in rules.items():
        server.forget_functions()
        server.run("ACL", "SETUSER", name, "reset", "on", ">x", *rule.split())
        with redis.Redis(port=server.port, username=name, password="x") as client:
            limiter = Limiter(client)
            assert limiter.hit(name, RULE)
            modes[name] = limiter.mode
        server.run("ACL", "DELUSER", name)
    if server.mode == "functions":
        assert modes == {"plain": "functions", "no-load": "script", "no-functions": "script"}
    else:
        assert set(modes.values()) == {server.mode}


def test_a_server_without_scripts_that_only_read(server: Server) -> None:
    """Redis 6.2, or a user who may not call them: the peek is a plain script."""
    without = [] if is_old() else ["-evalsha_ro", "-eval_ro"]
    server.run("ACL", "SETUSER", "old", "reset", "on", ">x", "~*", "+@all", *without)
    with redis.Redis(port=server.port, username="old", password="x") as client:
        limiter = Limiter(client, mode="script")
        assert limiter.peek("a", RULE).used == 1
        assert limiter.hit("a", RULE).used == 1
        assert limiter.peek("a", RULE, cost=0).used == 1
    server.run("ACL", "DELUSER", "old")


def test_a_chosen_mode(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        assert Limiter(client, mode="script").hit("a", RULE).used == 1
        assert Limiter(client, mode="script").hit("a", RULE).used == 2
        chosen = Limiter(client, mode="functions", load_functions=False)
        with pytest.raises(redis.ResponseError, match=r"Function not found|unknown command"):
            chosen.hit("a", RULE)
        assert chosen.mode == chosen.look() == "functions"
        automatic = Limiter(client, load_functions=False)
        automatic.hit("a", RULE)
        assert automatic.mode == ("module" if server.mode == "module" else "script")


def test_what_counts_as_away(limiter: Limiter) -> None:
    error = redis.exceptions
    for away in (
        error.ConnectionError("refused"),
        error.TimeoutError("late"),
        error.BusyLoadingError("loading"),
        error.ReadOnlyError("demoted"),
        error.ClusterDownError("The cluster is down"),
        error.TryAgainError("moving"),
        error.ClusterError("TTL exhausted."),
        error.OutOfMemoryError("OOM"),
        error.ResponseError("MISCONF Redis is configured to save RDB snapshots"),
        ConnectionResetError(),
    ):
        assert limiter.is_away(away), away
    for wrong in (
        error.AuthenticationError("wrong password"),
        error.NoPermissionError("no permission"),
        error.ResponseError("WRONGTYPE"),
        error.ClusterCrossSlotError("CROSSSLOT"),
        error.RedisClusterException("all keys must map to the same key slot"),
        ValueError("ours"),
    ):
        assert not limiter.is_away(wrong), wrong


def test_a_read_only_replica_refuses_and_peeks(server: Server) -> None:
    with server.client() as client:
        limiter = Limiter(client)
        limiter.hit("a", RULE)
        client.replicaof("127.0.0.1", "1")
        try:
            with pytest.raises(redis.exceptions.ReadOnlyError):
                limiter.hit("a", RULE)
            assert limiter.peek("a", fixed("1/s")).used == 1
            assert limiter.peek("a", RULE, cost=0).used == 1
        finally:
            client.replicaof("NO", "ONE")


@pytest.mark.parametrize("library", ["redis", "valkey"])
async def test_a_cancelled_call_leaves_no_reply_behind(server: Server, library: str) -> None:
    """The next call on the connection gets its own reply."""
    server.set_clock(0)  # A pause ends by the clock.
    make: Any = redis.asyncio.Redis if library == "redis" else valkey.asyncio.Valkey
    async with make(port=server.port) as client:
        limiter = AsyncLimiter(client)
        await limiter.hit("a", RULE)
        server.run("CLIENT", "PAUSE", 200)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.hit("a", RULE), 0.02)
        assert (await limiter.hit("b", sliding("7/second"))).limit == 7
