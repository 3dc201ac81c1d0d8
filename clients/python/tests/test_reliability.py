"""Lost replies, failovers, modes, and restricted users."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.cluster
import valkey
import valkey.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster

from redis_rl import AsyncLimiter, Error, Limiter, Refunded, Refused, Unavailable, fixed, lease, sliding
from redis_rl._protocol import PAUSE, library_version, source
from servers import MODULE, Cluster, Forwarder, Proxy, Server, is_old, until

RULE = sliding("100/minute")


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server)
    yield proxy
    proxy.close()


def used(server: Server) -> int:
    with server.client() as client:
        return Limiter(client, timeout=10).peek("a", RULE, cost=0).used


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
        limiter = Limiter(client, timeout=10)
        limiter.hit("a", RULE)
        proxy.lose = 1
        with pytest.raises(Error, match="closed"):
            limiter.hit("a", RULE)
        assert used(server) == 2
        # The connection is usable again, and not one reply behind.
        time.sleep(PAUSE)
        assert limiter.hit("a", RULE).used == 3
        assert limiter.refund("a", RULE) == Refunded(1, 2, 60)
        # What may be sent again is.
        proxy.lose = 1
        assert limiter.peek("a", RULE, cost=0).used == 2
        proxy.lose = 1
        assert limiter.acquire("l", lease(1, 60), holder="me").used == 1
        proxy.lose = 1
        assert limiter.release("l", "me") == 0
        proxy.lose = 1
        assert limiter.reset("a") == 0
        limiter.close()


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
    async with eager as client, AsyncLimiter(client, timeout=10) as limiter:
        await limiter.hit("a", RULE)
        proxy.lose = 1
        with pytest.raises(Error, match="closed"):
            await limiter.hit("a", RULE)
        assert used(server) == 2
        await asyncio.sleep(PAUSE)
        assert (await limiter.hit("a", RULE)).used == 3
        assert await limiter.refund("a", RULE) == Refunded(1, 2, 60)
        proxy.lose = 1
        assert (await limiter.peek("a", RULE, cost=0)).used == 2
        proxy.lose = 1
        assert await limiter.release("l", "me") == 0
        await limiter.aclose()


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
        limiter = Limiter(client, timeout=10)
        limiter.hit("a", RULE)
        proxies[cluster.owner("a").port].lose = 1
        with pytest.raises(Unavailable):
            limiter.hit("a", RULE)
        time.sleep(PAUSE)
        assert limiter.hit("a", RULE).used == 3
        proxies[cluster.owner("a").port].lose = 1
        assert limiter.peek("a", RULE, cost=0).used == 3


async def test_asyncio_call_in_a_cluster_is_not_sent_again(cluster: Cluster, proxies: dict[int, Proxy]) -> None:
    host, port = cluster.startup[0]
    async with (
        AsyncRedisCluster(host, port, address_remap=remap(proxies)) as client,
        AsyncLimiter(client, timeout=10) as limiter,
    ):
        await limiter.hit("a", RULE)
        proxies[cluster.owner("a").port].lose = 1
        with pytest.raises(Unavailable):
            await limiter.hit("a", RULE)
        await asyncio.sleep(PAUSE)
        assert (await limiter.hit("a", RULE)).used == 3
        proxies[cluster.owner("a").port].lose = 1
        assert (await limiter.peek("a", RULE, cost=0)).used == 3


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


def used_through(limiter: Limiter) -> int:
    """The units in use after a hit, 0 while the server is unavailable."""
    with suppress(Unavailable):
        return limiter.hit("a", RULE).used
    return 0


def test_a_failover_to_another_kind_of_server(servers: dict[str, Server], server: Server) -> None:
    """The new primary has something else to offer: the module is gone, or the functions."""
    if server.mode == "script":
        pytest.skip("there is nothing to lose")
    other = servers.get("script") or Server("script")
    servers.setdefault("script", other)
    other.clean()
    with (
        Forwarder(server) as forwarder,
        redis.Redis(port=forwarder.port) as client,
        Limiter(client, timeout=10) as limiter,
    ):
        limiter.hit("a", RULE)
        assert limiter.mode == server.mode
        # The name now leads to another server.
        forwarder.lead_to(other)
        until("it is found", lambda: used_through(limiter))
        assert limiter.mode == "script"
        before = used(other)
        assert used_through(limiter) == before + 1


@pytest.mark.parametrize("cause", ["a minute", "a reconnection"])
def test_a_module_that_comes_later(server: Server, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys carry on, and the better mode is found without a restart of the application."""
    if server.mode != "functions":
        pytest.skip("once, from functions to the module")
    later = Server("functions")
    if cause == "a minute":
        monkeypatch.setattr("redis_rl._sync.core.PROBE_EVERY", 0.0)
    try:
        with redis.Redis(port=later.port) as client, Limiter(client, timeout=10) as limiter:
            limiter.hit("a", sliding("3/minute"))
            assert limiter.mode == "functions"
            client.execute_command("MODULE", "LOAD", str(MODULE))
            if cause == "a reconnection":
                later.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert limiter.hit("a", sliding("3/minute")).used == 2
            until(
                "the module is found", lambda: limiter.hit("b", sliding("1/minute")) is None or limiter.mode == "module"
            )
            assert limiter.hit("a", sliding("3/minute")).used == 3
            assert not limiter.hit("a", sliding("3/minute"))
    finally:
        later.kill()


async def test_asyncio_module_that_comes_later(server: Server) -> None:
    if server.mode != "functions":
        pytest.skip("once, from functions to the module")
    later = Server("functions")
    try:
        async with redis.asyncio.Redis(port=later.port) as client, AsyncLimiter(client, timeout=10) as limiter:
            await limiter.hit("a", sliding("3/minute"))
            later.run("MODULE", "LOAD", str(MODULE))
            later.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            deadline = time.monotonic() + 30
            while limiter.mode != "module":
                assert time.monotonic() < deadline
                with suppress(Unavailable):
                    await limiter.hit("b", sliding("100000/minute"))
                await asyncio.sleep(0.01)
            assert (await limiter.hit("a", sliding("3/minute"))).used == 2
    finally:
        later.kill()


def test_an_older_library_is_replaced_and_a_newer_one_is_not(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    if server.mode != "functions":
        pytest.skip("functions alone")
    ours = source("library")
    version = library_version(ours)
    assert version

    def loaded() -> str:
        with server.client() as client:
            (library,) = client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "rl", "WITHCODE")
        return str(library)

    def use(mode: Any) -> str:
        with redis.Redis(port=server.port) as client, Limiter(client, mode=mode, timeout=10) as limiter:
            assert limiter.hit("a", RULE)
            assert limiter.mode == "functions"
        return loaded()

    older = ours.replace(f"-- Version {version}\n", f"-- Version {version - 1}\n")
    for theirs, after, mode in (
        (older, version, "auto"),
        (older, version, "functions"),
        (ours.replace(f"-- Version {version}\n", ""), version, "auto"),
        (ours.replace(f"-- Version {version}\n", ""), version, "functions"),
        (ours.replace(f"-- Version {version}\n", f"-- Version {version + 1}\n"), version + 1, "auto"),
    ):
        server.run("FUNCTION", "LOAD", "REPLACE", theirs)
        assert library_version(use(mode)) == after
    # Somebody else's library of that name is left alone, and a script used.
    server.forget_functions()
    server.run("FUNCTION", "LOAD", "#!lua name=rl\nredis.register_function('mine', function() return 1 end)")
    with redis.Redis(port=server.port) as client, Limiter(client, timeout=10) as limiter:
        assert limiter.hit("b", RULE)
        assert limiter.mode == "script"
    assert "mine" in loaded()


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
        with (
            redis.Redis(port=server.port, username=name, password="x") as client,
            Limiter(client, timeout=10) as limiter,
        ):
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
        limiter = Limiter(client, mode="script", timeout=10)
        assert limiter.peek("a", RULE).used == 1
        assert limiter.hit("a", RULE).used == 1
        assert limiter.peek("a", RULE, cost=0).used == 1
    server.run("ACL", "DELUSER", "old")


def test_a_chosen_mode(server: Server) -> None:
    with redis.Redis(port=server.port) as client:
        assert Limiter(client, mode="script", timeout=10).hit("a", RULE).used == 1
        assert Limiter(client, mode="script", timeout=10).hit("a", RULE).used == 2
        if server.mode != "module":
            with pytest.raises(Refused, match="unknown command"):
                Limiter(client, mode="module", timeout=10).hit("a", RULE)
        functions = Limiter(client, mode="functions", timeout=10)
        if server.mode == "script":
            with pytest.raises(Refused, match="unknown command"):
                functions.hit("a", RULE)
        else:
            # It loads the library, also anew.
            assert functions.hit("a", RULE).used == 3
            server.forget_functions()
            assert functions.hit("a", RULE).used == 4
        functions.close()


def test_what_is_unavailable(limiter: Limiter) -> None:
    """Beyond what clients/cases say: what the client libraries raise themselves."""
    error = redis.exceptions
    for passing in (
        ConnectionResetError(),
        TimeoutError(),
    ):
        assert limiter._core.errors.is_unavailable(passing), passing
    for wrong in (
        error.AuthenticationError("wrong password"),
        error.ClusterCrossSlotError("CROSSSLOT"),
        error.RedisClusterException("all keys must map to the same key slot"),
        ValueError("ours"),
    ):
        assert not limiter._core.errors.is_unavailable(wrong), wrong


def test_a_read_only_replica_refuses_and_peeks(server: Server) -> None:
    with server.client() as client, Limiter(client, timeout=10) as limiter:
        limiter.hit("a", RULE)
        client.replicaof("127.0.0.1", "1")
        try:
            with pytest.raises(Unavailable):
                limiter.hit("a", RULE)
            time.sleep(PAUSE)
            assert limiter.peek("a", fixed("1/s")).used == 1
            assert limiter.peek("a", RULE, cost=0).used == 1
        finally:
            client.replicaof("NO", "ONE")


@pytest.mark.parametrize("library", ["redis", "valkey"])
async def test_a_cancelled_call_leaves_no_reply_behind(server: Server, library: str) -> None:
    """The next call on the connection gets its own reply."""
    server.set_clock(0)  # A pause ends by the clock.
    make: Any = redis.asyncio.Redis if library == "redis" else valkey.asyncio.Valkey
    async with make(port=server.port) as client, AsyncLimiter(client, timeout=10) as limiter:
        await limiter.hit("a", RULE)
        server.run("CLIENT", "PAUSE", 1000)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.hit("a", RULE), 0.02)
        assert (await limiter.hit("b", sliding("7/second"))).limit == 7
