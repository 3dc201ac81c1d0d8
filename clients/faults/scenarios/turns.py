"""Crowds that wait for their turn: sliding and throttle rules count a request at the time at which it will fit."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from itertools import pairwise
from typing import Any

from harness.play import Limiter, Play, scenario, sliding
from harness.servers import Server

HUNDRED = sliding("100/second")
STEADY = {"kind": "throttle", "rate": "100/s", "burst": 0}
LATER = 200
"""Milliseconds by which a caller asks later than another at least, so that the order of the two is known."""

Each = list[dict[str, Any]]


async def calls(server: Server) -> int:
    """How many decisions the server was asked for, in any mode."""
    names = ("rl.sliding", "rl.throttle", "fcall", "evalsha", "eval")
    return sum([await server.calls_of(name) for name in names])


def overtaken(each: Each) -> int:
    """How many have a later turn than somebody who asked LATER or more after them."""
    by_asking = sorted(each, key=lambda call: call["asked_ms"])
    asked = [call["asked_ms"] for call in by_asking]
    first_of_rest, first = [float("inf")], float("inf")
    for call in reversed(by_asking):
        first = min(first, call["at_ms"])
        first_of_rest.append(first)
    first_of_rest.reverse()
    return sum(first_of_rest[bisect_left(asked, call["asked_ms"] + LATER)] < call["at_ms"] for call in by_asking)


def are_let_in(play: Play, each: Each, n: int, limit: int = 100) -> None:
    """All are, nobody before its turn, and no second holds more than the limit."""
    let_in = [call for call in each if call["outcome"] == "allowed"]
    if not play.judge(f"all {n} are let in", len(let_in) == n, [call for call in each if call not in let_in][:3]):
        return
    early = [call for call in let_in if call["ended_ms"] < call["at_ms"] - 1]
    play.judge("nobody is early", not early, early[:3])
    turns = sorted(call["at_ms"] for call in let_in)
    full = [(one, after) for one, after in zip(turns, turns[limit:], strict=False) if after - one < 1000]
    play.judge(f"no second with more than {limit}", not full, full[:3])


async def all_have_asked(play: Play, server: Server, calls: int, within: float) -> None:
    """Comes back when a server has carried out this number of calls of RL.SLIDING, and has sent their replies."""

    async def so() -> bool:
        return await server.calls_of("rl.sliding") >= calls

    await play.comes_true("all have asked", so, within)
    # The reply that counted them may have gone out before theirs; with the next one they are sent.
    await server.calls_of("rl.sliding")


async def four_processes(play: Play, server: Server) -> list[Limiter]:
    subjects = [play.subject, *[await play.another() for _ in range(3)]]
    limiters = [await play.limiter(server, timeout=2, subject=subject) for subject in subjects]
    for limiter in limiters:
        # Connections are there, and the mode is known.
        play.all_of(await limiter.crowd(20, "warm", sliding("100000/hour")), "allowed", what="before")
    return limiters


async def four_hundred(play: Play, mode: str, rule: dict[str, Any]) -> None:
    server = await play.server(mode)
    limiters = await four_processes(play, server)
    before = await calls(server)
    # 400 a second: a server that is kept busy answers those who ask at one time in an order of its own.
    fields = {"n": 100, "call": "wait", "timeout": 30, "pause": 0.01, "each": True}
    crowds = [limiter.begin("crowd", "k", rule, **fields) for limiter in limiters]
    replies = [await crowd for crowd in crowds]
    asked = await calls(server) - before
    each: Each = [call for reply in replies for call in reply["each"]]
    limit = 100 if rule is HUNDRED else 101
    are_let_in(play, each, 400, limit)
    play.judge("at most 1.2 calls for each", asked <= 480, f"{asked} calls for 400")
    if all(call["outcome"] == "allowed" for call in each):
        out_of_order = overtaken(each)
        play.judge("order is kept, but for 5 %", out_of_order <= 20, f"{out_of_order} of 400 were overtaken")
        turns = sorted(call["at_ms"] for call in each)
        play.judge(
            "no turn is left unused", turns[-1] - turns[0] <= 4300, f"{turns[-1] - turns[0]} ms, 400 at 100 a second"
        )


@scenario("400 wait in four processes", "wait", "each", quick=True, alone=True)
async def waiters(play: Play) -> None:
    """At 100 a second: all are let in, nobody before its turn, with at most 1.2 calls each; the order in which they
    asked is kept but for 5 %; no second holds more than 100 turns, and none stays unused."""
    await four_hundred(play, "module", HUNDRED)


@scenario("400 wait in four processes, in functions", "wait", "each", alone=True)
async def waiters_functions(play: Play) -> None:
    """As with the module."""
    await four_hundred(play, "functions", HUNDRED)


@scenario("400 wait in four processes, by a throttle", "wait", "each", alone=True)
async def waiters_throttle(play: Play) -> None:
    """As with a sliding window: one each 10 ms."""
    await four_hundred(play, "module", STEADY)


@scenario("waiters that are killed", "wait", "each", quick=True)
async def killed(play: Play) -> None:
    """100 callers in two processes wait at 20 a second, and one process is killed: its turns are lost and nothing more.
    The others are let in at the turns that they were given, and afterwards the whole limit is there."""
    server = await play.server()
    other = await play.another()
    rule = sliding("20/second")
    staying = await play.limiter(server, timeout=2)
    dying = await play.limiter(server, timeout=2, subject=other)
    for limiter in (staying, dying):
        await limiter.crowd(5, "warm", HUNDRED)
    fields = {"n": 50, "call": "wait", "timeout": 30, "pause": 0.002, "each": True}
    crowd, lost = (limiter.begin("crowd", "k", rule, **fields) for limiter in (staying, dying))

    await all_have_asked(play, server, 110, within=20)
    other.kill()
    play.outcome(await lost, "died", what="the other process")
    left = (await server.state(play.name_of("k"), rule))["reset-after-ms"]
    play.judge("no more than 100 turns are taken", left <= 5000 + 1000, f"all is free in {left} ms")
    each = (await crowd)["each"]
    are_let_in(play, each, 50, 20)
    waits = [call["wait_ms"] for call in each if call["outcome"] == "allowed"]
    play.judge("nobody waits for longer than 100 turns", max(waits, default=0) <= 5000, max(waits, default=0))
    # The last turns may be those that were lost. Behind them there is a whole window.
    left = (await server.state(play.name_of("k"), rule))["reset-after-ms"]
    await asyncio.sleep(left / 1000 + 0.1)
    reply = await staying.hit("k", rule)
    play.judge("the whole limit is there again", reply.get("remaining") == 19, reply)


@scenario("a turn whose caller leaves", "wait", "turn", "within", quick=True)
async def left(play: Play) -> None:
    """At 20 moments, before, while and after the reply arrives (40 ms), and five that are asleep: the next one is given
    the turn."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=1)
    rule = sliding("1/30s")
    moments = [number * 0.005 + 0.001 for number in range(20)] + [0.8] * 5
    for number in range(len(moments)):
        play.outcome(await limiter.hit(f"k{number}", rule), "allowed", what="before")
    proxy.delay = 0.04
    leaving = [
        limiter.begin("wait", f"k{number}", rule, timeout=300, within=moment) for number, moment in enumerate(moments)
    ]
    for reply in [await each for each in leaving]:
        play.outcome(reply, "gave_up", what="one that leaves")
    proxy.delay = 0
    await asyncio.sleep(1)
    for number in range(len(moments)):
        reply = await limiter.begin("turn", f"k{number}", rule, ahead=300)
        if not play.judge("the next turn is the first", 0 < reply.get("wait_ms", 0) <= 30_000, f"k{number}: {reply}"):
            break


@scenario("turns are taken and given back", "turn", "refund", quick=True)
async def taken(play: Play) -> None:
    """At one in two seconds: three turns, 2 s apart, then a denial that says when to come again; the last is given back
    by its at_ms, and is the next one's."""
    server = await play.server()
    for rule in (sliding("1/2s"), {"kind": "throttle", "rate": "1/2s", "burst": 0}):
        limiter = await play.limiter(server)
        key = rule["kind"]
        turns = [await limiter.begin("turn", key, rule, ahead=5) for _ in range(4)]
        if not play.judge("three, and a denial", [each.allowed for each in turns] == [1, 1, 1, 0], turns[:4]):
            return
        apart = [after["at_ms"] - one["at_ms"] for one, after in pairwise(turns[:3])]
        play.judge("2 s apart", all(1999 <= each <= 2001 for each in apart), apart)
        play.judge("told when to come again", 0 < turns[3]["retry_ms"] <= 2000, turns[3])
        back = await limiter.begin("refund", key, rule, at_ms=turns[2]["at_ms"])
        play.judge("one is given back", back.get("count") == 1, back)
        again = await limiter.begin("turn", key, rule, ahead=5)
        play.judge("the next one has it", abs(again.get("at_ms", 0) - turns[2]["at_ms"]) <= 1, again)


@scenario("who has a turn needs no server", "wait", "each", quick=True)
async def hung(play: Play) -> None:
    """30 callers wait at 10 a second, and the server hangs when they have asked: they are let in at their turns. Who
    asks meanwhile is told that it is unavailable when its time is over."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=0.5)
    rule = sliding("10/second")
    await limiter.crowd(30, "warm", HUNDRED)
    crowd = limiter.begin("crowd", "k", rule, n=30, call="wait", timeout=10, each=True)

    await all_have_asked(play, server, 60, within=3)
    server.hang()
    late = await limiter.begin("wait", "k", rule, timeout=1.5)
    play.outcome(late, "unavailable", what="one that asks meanwhile")
    play.in_time(late, 1.5, what="its own time-out")
    are_let_in(play, (await crowd)["each"], 30, 10)
    server.resume()
    await play.recovers(limiter, HUNDRED, within=2)


@scenario("a failover while callers wait", "wait", "each", "sentinel")
async def failover(play: Play) -> None:
    """Sentinel. Those who have turns are let in by them; those who ask during the failover, with 20 s of time, are let
    in after it."""
    sentinels = await play.sentinels()
    limiter = await play.limiter(sentinels, timeout=0.5)
    rule = sliding("10/second")
    await limiter.crowd(30, "warm", HUNDRED)
    crowd = limiter.begin("crowd", "k", rule, n=30, call="wait", timeout=20, each=True)

    await all_have_asked(play, sentinels.primary, 60, within=3)
    sentinels.primary.kill()
    began = time.monotonic()
    during = limiter.begin("crowd", "k", rule, n=10, call="wait", timeout=20, each=True)
    are_let_in(play, (await crowd)["each"], 30, 10)
    reply = await during
    play.all_of(reply, "allowed", what=f"each that asks during the failover ({time.monotonic() - began:.1f} s)")
