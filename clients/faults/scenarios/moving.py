"""A server that moves, fails over, or comes back as another one."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

from harness.play import Limiter, Play, Traffic, scenario, sliding
from harness.servers import MODULE, Server, lua, slot_of, until

RULE = sliding("100000/hour")


def follows(play: Play, traffic: Traffic, keys: list[str], since: float, within: float) -> None:
    """All calls are answered from then on."""
    for key in keys:
        took = traffic.steady_from(key) - since
        play.judge(f"followed within {within:g} s", took <= within, f"{took:.1f} s; {traffic.outcomes()}")
        last = traffic.of(key)[-1]
        play.outcome(last, "allowed", what="the last call")


async def is_primary(server: Server) -> bool:
    return (await server.run("ROLE"))[0] == "master"


@scenario("the name moves, the old primary is a replica", "hit", quick=True)
async def name_moves(play: Play) -> None:
    """As after a managed failover: the name leads to the new primary, and the old one answers READONLY on connections
    that stay open. Calls are answered again within 6 s."""
    old, new = await play.server(), await play.server()
    await new.run("REPLICAOF", "127.0.0.1", old.port)
    name = await play.proxy(old)
    limiter = await play.limiter(name, timeout=0.5)
    await limiter.crowd(10, "k", RULE)
    async with play.traffic(limiter, ["a", "b"], RULE) as traffic:
        await asyncio.sleep(0.3)
        await new.run("REPLICAOF", "NO", "ONE")
        await old.run("REPLICAOF", "127.0.0.1", new.port)
        name.point_to(new)
        moved = time.monotonic()
        await traffic.settles(["a", "b"], 10)
    follows(play, traffic, ["a", "b"], moved, 6)


@scenario("the name moves, the old primary hangs", "hit")
async def name_moves_from_hung(play: Play) -> None:
    """The name leads to the new primary, and the old one answers nothing on connections that stay open; callers give up
    earlier than the limiter does. Calls are answered again within 6 s."""
    old, new = await play.server(), await play.server()
    name = await play.proxy(old)
    limiter = await play.limiter(name, timeout=0.5)
    await limiter.crowd(10, "k", RULE)
    async with play.traffic(limiter, ["a", "b"], RULE, **play.impatient(0.2)) as traffic:
        old.hang()
        name.point_to(new)
        moved = time.monotonic()
        await traffic.settles(["a", "b"], 10)
    old.resume()
    follows(play, traffic, ["a", "b"], moved, 6)


async def sentinel_failover(play: Play, fail: Callable[[Server], None]) -> None:
    group = await play.sentinels()
    limiter = await play.limiter(group, timeout=0.5)
    await limiter.crowd(5, "k", RULE)
    async with play.traffic(limiter, ["a", "b"], RULE, **play.impatient(0.2)) as traffic:
        await asyncio.sleep(0.2)
        fail(group.primary)
        # A sentinel that was not scheduled for two seconds does nothing for thirty.
        await until("the sentinel has failed over", lambda: is_primary(group.replica), 60)
        over = time.monotonic()
        await traffic.settles(["a", "b"], 10)
    follows(play, traffic, ["a", "b"], over, 6)


@scenario("sentinel fails over, the primary killed", "hit", "sentinel", quick=True, seconds=120)
async def sentinel_kill(play: Play) -> None:
    """Calls are answered within 6 s of the failover, at default settings, while callers give up after 200 ms."""
    await sentinel_failover(play, Server.kill)


@scenario("sentinel fails over, the primary hung", "hit", "sentinel", quick=True, seconds=120)
async def sentinel_hang(play: Play) -> None:
    """Calls are answered within 6 s of the failover, at default settings, while callers give up after 200 ms."""
    await sentinel_failover(play, Server.hang)


async def cluster_failover(play: Play, fail: Callable[[Server], None]) -> None:
    cluster = await play.cluster()
    limiter = await play.limiter(cluster, timeout=0.5)
    keys = [cluster.key_on(number) for number in range(3)]
    for key in keys:
        await play.recovers(limiter, RULE, within=1, key=key, what="before")
    async with play.traffic(limiter, keys, RULE, **play.impatient(0.2)) as traffic:
        await asyncio.sleep(0.2)
        fail(cluster.primaries[0])
        await until("the replica is primary", lambda: is_primary(cluster.replicas[0]))
        over = time.monotonic()
        await traffic.settles(keys, 10)
    follows(play, traffic, keys, over, 6)


@scenario("cluster fails over, a primary killed", "hit", "cluster", quick=True)
async def cluster_kill(play: Play) -> None:
    """Keys of its shard are answered within 6 s of the failover, at default settings, while callers give up after
    200 ms."""
    await cluster_failover(play, Server.kill)


@scenario("cluster fails over, a primary hung", "hit", "cluster", quick=True)
async def cluster_hang(play: Play) -> None:
    """Keys of its shard are answered within 6 s of the failover, at default settings, while callers give up after
    200 ms."""
    await cluster_failover(play, Server.hang)


@scenario("one of three nodes hangs, warm", "hit", "cluster", quick=True)
async def node_hangs(play: Play) -> None:
    """Keys of the other nodes are answered, each of them; keys of this one are unavailable by their deadline; not a log
    line a call; it recovers within 3 s."""
    cluster = await play.cluster(timeout_ms=60_000)
    limiter = await play.limiter(cluster, timeout=0.5)
    hung, *others = keys = [cluster.key_on(number) for number in range(3)]
    for key in keys:
        await play.recovers(limiter, RULE, within=1, key=key, what="before")
    cluster.primaries[0].hang()
    async with play.traffic(limiter, [hung, *others], RULE) as traffic:
        await asyncio.sleep(4)
    cluster.primaries[0].resume()
    for key in others:
        failed = [reply for reply in traffic.of(key) if reply.outcome != "allowed"]
        play.judge("keys of healthy nodes are answered", not failed, f"{len(failed)} not, such as {failed[:1]}")
    for reply in traffic.of(hung):
        if not (play.outcome(reply, "unavailable", what="a key of the hung node") and play.in_time(reply, 0.5)):
            break
    lines = play.subject.lines()
    play.judge("at most 20 log lines", len(lines) <= 20, f"{len(lines)}, such as {lines[:1]}")
    await play.recovers(limiter, RULE, within=3, key=hung)


@scenario("one of three nodes hangs, cold", "hit", "cluster", quick=True)
async def node_hangs_cold(play: Play) -> None:
    """A process that starts meanwhile, and is given the hung node first: keys of the other nodes are answered within
    6 s and stay so; every call ends by its deadline; all recovers within 3 s of the node."""
    cluster = await play.cluster(timeout_ms=60_000)
    hung, *others = [cluster.key_on(number) for number in range(3)]
    cluster.primaries[0].hang()
    limiter = await play.limiter(cluster, timeout=0.5)
    began = time.monotonic()
    async with play.traffic(limiter, [hung, *others], RULE) as traffic:
        await traffic.settles(others, 10)
    cluster.primaries[0].resume()
    follows(play, traffic, others, began, 6)
    for _, _, reply in traffic.seen:
        if not play.in_time(reply, 0.5):
            break
    await play.recovers(limiter, RULE, within=3, key=hung)


@scenario("a slot moves under load", "hit", "cluster", quick=True)
async def slot_moves(play: Play) -> None:
    """Each call about the slot's keys, and about others, is allowed and charged once, before, during and after."""
    cluster = await play.cluster()
    source, target = cluster.primaries[:2]
    limiter = await play.limiter(cluster, timeout=1)
    tag = cluster.key_on(0).rstrip("k")
    moving = [f"{tag}:{number}" for number in range(3)]
    other = [cluster.key_on(0, "other"), cluster.key_on(1, "other")]
    for key in [*moving, *other]:
        await play.recovers(limiter, RULE, within=1, key=key, what="before")
    slot, ids = slot_of(moving[0]), [await node.run("CLUSTER", "MYID") for node in (source, target)]
    async with play.traffic(limiter, [*moving, *other], RULE, pause=0.005) as traffic:
        await asyncio.sleep(0.2)
        await target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        await source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        for key in moving:
            await asyncio.sleep(0.3)
            await source.run("MIGRATE", "127.0.0.1", target.port, play.name_of(key), 0, 5000)
        await asyncio.sleep(0.3)
        for node in (target, source):
            await node.run("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        await asyncio.sleep(0.5)
    failed = [reply for _, _, reply in traffic.seen if reply.outcome != "allowed"]
    play.judge("each call is allowed", not failed, f"{len(failed)} of {len(traffic.seen)} not, such as {failed[:1]}")
    for key, node in [*((key, target) for key in moving), (other[0], source), (other[1], target)]:
        # One more, as it was waited for before. A call that failed may have been counted.
        allowed, used = 1 + sum(reply.allowed for reply in traffic.of(key)), await play.used(node, key, RULE)
        play.judge("charged once each", allowed <= used <= 1 + len(traffic.of(key)), f"{used} of {allowed} allowed")


@scenario("restarts with and without the module", "hit", "modes", quick=True)
async def restarts(play: Play) -> None:
    """A server that comes back without the module is used by functions within 3 s, and one that comes back with it by
    the module, all without a new limiter. Calls end by their deadline."""
    server = await play.server("module")
    limiter = await play.limiter(server, timeout=1)
    async with play.traffic(limiter, ["k"], RULE) as traffic:
        await asyncio.sleep(0.3)
        for mode, command in (("functions", "fcall"), ("module", "rl.sliding")):
            server.kill()
            await asyncio.sleep(0.3)
            await server.start(mode)
            started = time.monotonic()
            await play.comes_true(f"used by {mode} within 4 s", uses(server, command), 4)
            await asyncio.sleep(2)
            took = traffic.steady_from("k") - started
            play.judge(f"answered from 3 s on ({mode})", took <= 3.5, f"the last failure after {took:.1f} s")
    for reply in traffic.of("k"):
        if not (play.in_time(reply, 1) and play.outcome(reply, "allowed", "unavailable")):
            break


def uses(server: Server, command: str) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return await server.calls_of(command) > 2

    return ask


async def commands_of(server: Server) -> int:
    """How many calls of ours a server has carried out, of those that look for a mode, and of commands that it lacks."""
    names = "rl.sliding rl.peek rl.all fcall fcall_ro evalsha evalsha_ro eval eval_ro function|list function|load ping"
    errors = re.search(r"total_error_replies:(\d+)", await server.run("INFO", "stats"))
    assert errors
    return int(errors[1]) + sum([await server.calls_of(name) for name in names.split()])


@scenario("the mode is found once, and what it needs is sent again", "hit", "modes")
async def found_once(play: Play) -> None:
    """By the module, by functions and by a script, found or chosen: each of 20 calls is one command; the library is
    loaded, and after a flush the library and the script are there again at once."""
    for mode, chosen in (("module", "auto"), ("functions", "auto"), ("script", "auto"), ("functions", "script")):
        server = await play.server(mode)
        limiter = await play.limiter(server, mode=chosen)
        await used_once(play, server, limiter, "script" if chosen == "script" else mode)
    server = await play.server("functions")
    await used_once(play, server, await play.limiter(server, mode="functions"), "functions")


async def used_once(play: Play, server: Server, limiter: Limiter, mode: str) -> None:
    for _ in range(3):
        play.outcome(await limiter.hit("k", RULE), "allowed", what=f"the first, {mode}")
    await asyncio.sleep(0.2)
    before = await commands_of(server)
    for _ in range(20):
        play.outcome(await limiter.hit("k", RULE), "allowed", what=f"a call, {mode}")
    calls = await commands_of(server) - before
    play.judge(f"20 commands, {mode}", calls <= 22, calls)
    if mode != "module":
        await server.run("FUNCTION" if mode == "functions" else "SCRIPT", "FLUSH")
        reply = await limiter.hit("k", RULE)
        play.outcome(reply, "allowed", what=f"after a flush, {mode}")
        await play.charged(server, "k", RULE, 24)


@scenario("an older library is replaced, a newer one never", "hit", "modes")
async def versions(play: Play) -> None:
    """A library from before ours is found on the server, and is replaced; one from after it stays."""
    source = lua("library")
    found = re.search(r"-- Version (\d+)", source)
    assert found
    ours = int(found[1])
    for version in (ours - 1, ours + 90):
        server = await play.server("functions")
        await server.run("FUNCTION", "LOAD", source.replace(f"-- Version {ours}", f"-- Version {version}"))
        limiter = await play.limiter(server)
        play.outcome(await limiter.hit("k", RULE), "allowed")

        async def is_ours(server: Server = server) -> bool:
            return f"-- Version {ours}\\n" in str(await server.run("FUNCTION", "LIST", "WITHCODE"))

        if version < ours:
            await play.comes_true("the older one is replaced", is_ours, 3)
        else:
            await asyncio.sleep(0.4)
            play.judge("the newer one stays", not await is_ours())


@scenario("the module is asked for once a minute", "hit", "modes", seconds=150)
async def minute(play: Play) -> None:
    """A server used by functions loads the module, and no connection breaks: after a minute it is used by the module,
    and no call has failed."""
    server = await play.server("functions")
    limiter = await play.limiter(server, timeout=5)
    async with play.traffic(limiter, ["k"], RULE, pause=0.2) as traffic:
        await play.comes_true("functions first", uses(server, "fcall"), 10)
        await server.run("MODULE", "LOAD", MODULE)
        await play.comes_true("used by the module within 65 s", uses(server, "rl.sliding"), 65)
    failed = [reply for reply in traffic.of("k") if reply.outcome != "allowed"]
    play.judge("each call is allowed", not failed, failed[:1])


@scenario("the module is loaded while it runs", "hit", "modes")
async def loaded_later(play: Play) -> None:
    """A server used by functions that loads the module is used by the module after a reconnection, within 3 s; no call
    fails but those whose connection broke."""
    server = await play.server("functions")
    limiter = await play.limiter(server, timeout=1)
    async with play.traffic(limiter, ["k"], RULE) as traffic:
        await asyncio.sleep(0.3)
        play.judge("functions first", await server.calls_of("fcall"))
        await server.run("MODULE", "LOAD", MODULE)
        await server.run("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await play.comes_true("used by the module within 4 s", uses(server, "rl.sliding"), 4)
        await asyncio.sleep(1)
    play.outcome(traffic.of("k")[-1], "allowed", what="the last call")


@scenario("functions flushed with 300 calls under way", "hit", "modes", quick=True)
async def flushed(play: Play) -> None:
    """All 300 are allowed and charged once, and the library is loaded by one caller for all: at most 5 times."""
    server = await play.server("functions")
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=5)
    play.all_of(await limiter.crowd(20, "warm", RULE), "allowed", what="before")
    loads = await server.calls_of("function|load")
    proxy.hang()
    crowd = limiter.begin("crowd", "k", RULE, n=300)
    await asyncio.sleep(0.5)
    await server.run("FUNCTION", "FLUSH")
    proxy.resume()
    reply = await crowd
    play.judge("300 are allowed", reply.outcomes == {"allowed": 300}, reply)
    await play.charged(server, "k", RULE, 300)
    loads = await server.calls_of("function|load") - loads
    play.judge("loaded at most 5 times", loads <= 5, loads)


@scenario("a cluster without the module, 200 first calls", "hit", "cluster", "modes")
async def cold_functions(play: Play) -> None:
    """All first calls are allowed and charged once, and the library is loaded at most 5 times on each node."""
    cluster = await play.cluster("functions")
    limiter = await play.limiter(cluster, timeout=5)
    keys = [cluster.key_on(number) for number in range(3)]
    crowds = await asyncio.gather(*(limiter.crowd(66, key, RULE) for key in keys))
    for key, node, crowd in zip(keys, cluster.primaries, crowds, strict=True):
        play.judge("66 are allowed", crowd.outcomes == {"allowed": 66}, crowd)
        await play.charged(node, key, RULE, 66)
        loads = await node.calls_of("function|load")
        play.judge("loaded at most 5 times", loads <= 5, loads)
