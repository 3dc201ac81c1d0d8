"""A server that hangs, is killed, or answers half."""

from __future__ import annotations

import asyncio
import time

from harness.play import Play, scenario, sliding
from harness.proxy import about

RULE = sliding("1000/hour")


@scenario("server hangs, warm", "hit", quick=True)
async def hung_warm(play: Play) -> None:
    """Each call is answered by its deadline, as unavailable; once open, the breaker answers at once; nothing is
    charged that was not sent, nothing twice; it recovers within 2 s of the server."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=0.5)
    play.outcome(await limiter.hit("k", RULE), "allowed", what="before")
    server.hang()
    calls = [await limiter.hit("k", RULE) for _ in range(5)]
    for reply in calls:
        play.outcome(reply, "unavailable", what="meanwhile")
        play.in_time(reply, 0.5)
    play.judge("the breaker opens", sum(reply.ms for reply in calls) < 1500 + 5 * calls[0].lag, calls)
    crowd = await limiter.crowd(50, "k", RULE)
    play.all_of(crowd, "unavailable", what="50 at once")
    play.in_time(crowd, 0.5)
    server.resume()
    await play.recovers(limiter, RULE, within=2)
    used = await play.used(server, "k", RULE)
    play.judge("at most the calls that reached the server are charged", 1 <= used <= 56, used)


@scenario("one of a crowd probes", "hit", "each")
async def probes(play: Play) -> None:
    """A server that hangs for longer than the breaker's pause: of 30 that come at once when that is over one asks. The
    others are told at once that it is unavailable, and wait neither for the server nor for the one."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=0.6)
    play.outcome(await limiter.hit("k", RULE), "allowed", what="before")
    server.hang()
    play.outcome(await limiter.hit("k", RULE), "unavailable", what="the first")
    await asyncio.sleep(1.1)
    crowd = await limiter.crowd(30, "k", RULE, each=True)
    server.resume()
    play.all_of(crowd, "unavailable", what="30 at once")
    waited = [round(each["ended_ms"] - each["asked_ms"]) for each in crowd["each"]]
    play.judge("at most one waits", sum(ms > 300 + 2 * crowd.lag for ms in waited) <= 1, waited)


@scenario("server hangs, cold", "hit", quick=True)
async def hung_cold(play: Play) -> None:
    """The first calls of a process meet a server that accepts and answers nothing: each is answered by its deadline,
    concurrent ones too; it recovers within 2 s."""
    server = await play.server()
    server.hang()
    limiter = await play.limiter(server, timeout=0.5)
    first, crowd = await asyncio.gather(limiter.hit("k", RULE), limiter.crowd(50, "k", RULE))
    play.outcome(first, "unavailable", what="the first call")
    play.in_time(first, 0.5)
    play.all_of(crowd, "unavailable", what="50 at once")
    play.in_time(crowd, 0.5, what="50 at once by the deadline")
    server.resume()
    await play.recovers(limiter, RULE, within=2)


@scenario("server killed and started again", "hit", quick=True)
async def killed(play: Play) -> None:
    """Calls are unavailable at once, not after the deadline; it recovers within 2 s of the server's start, and counts
    exactly from then on."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=1)
    play.outcome(await limiter.hit("k", RULE), "allowed", what="before")
    server.kill()
    for _ in range(5):
        reply = await limiter.hit("k", RULE)
        play.outcome(reply, "unavailable", what="meanwhile")
        play.in_time(reply, 1)
    play.in_time(reply, 0.1, what="at once")
    await server.start()
    await play.recovers(limiter, RULE, within=2)
    crowd = await limiter.crowd(20, "k", RULE)
    play.all_of(crowd, "allowed", what="20 at once")
    await play.charged(server, "k", RULE, 20)


@scenario("nobody listens", "hit", quick=True)
async def refused(play: Play) -> None:
    """The first call to a closed port is unavailable at once, and says that it was refused; it recovers within 2 s."""
    server = await play.server()
    server.kill()
    limiter = await play.limiter(server, timeout=2)
    reply = await limiter.hit("k", RULE)
    play.outcome(reply, "unavailable")
    play.in_time(reply, 1, what="at once")
    text = str(reply.get("error", "")).lower()
    play.judge("the error says why", "refused" in text or "111" in text, reply)
    await server.start()
    await play.recovers(limiter, RULE, within=2)


@scenario("half a reply, then silence", "hit", quick=True)
async def half(play: Play) -> None:
    """The call is answered by its deadline, as unavailable; it is charged once; the next caller gets its own reply and
    not the rest of that one; it recovers within 2 s."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=0.5)
    play.outcome(await limiter.hit("other", RULE), "allowed", what="before")
    proxy.half = about("halved")
    reply = await limiter.hit("halved", RULE)
    play.outcome(reply, "unavailable")
    play.in_time(reply, 0.5)
    await play.charged(server, "halved", RULE, 1)
    await play.recovers(limiter, RULE, within=2)
    for number in range(2, 5):
        reply = await limiter.hit("other", RULE)
        play.judge("its own reply", reply.get("remaining") == 1000 - number, reply)


@scenario("a reply a byte at a time", "hit", quick=True)
async def trickled(play: Play) -> None:
    """A reply that takes seconds to arrive, a byte each 40 ms, ends the call at its deadline, also cold; it is charged
    once; it recovers within 2 s."""
    server = await play.server()
    proxy = await play.proxy(server)
    cold = await play.limiter(proxy, timeout=0.5)
    warm = await play.limiter(proxy, timeout=0.5)
    play.outcome(await warm.hit("other", RULE), "allowed", what="before")
    proxy.trickle = 0.04
    replies = await asyncio.gather(warm.hit("slow", RULE), cold.hit("cold", RULE))
    for reply in replies:
        play.outcome(reply, "unavailable")
        play.in_time(reply, 0.5)
    await play.charged(server, "slow", RULE, 1)
    proxy.trickle = 0
    await play.recovers(warm, RULE, within=2)
    await play.recovers(cold, RULE, within=2)


@scenario("the reply is lost", "hit", quick=True)
async def lost(play: Play) -> None:
    """A connection that breaks in place of the reply: each call is unavailable and charged exactly once, in a crowd
    too."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=1)
    play.outcome(await limiter.hit("other", RULE), "allowed", what="before")
    proxy.lose = about("lost")
    for number in range(1, 4):
        reply = await limiter.hit("lost", RULE)
        play.outcome(reply, "unavailable")
        await play.charged(server, "lost", RULE, number)
        await play.recovers(limiter, RULE, within=2)
    crowd = await limiter.crowd(20, "lost2", RULE)
    play.all_of(crowd, "unavailable")
    used = await play.used(server, "lost2", RULE)
    play.judge("each of a crowd is charged at most once", used <= 20, used)


@scenario("old connections swallow everything", "hit", quick=True)
async def swallowed(play: Play) -> None:
    """Connections that are open bring nothing any more, and new ones work. Callers give up earlier than the limiter
    does (200 ms; deadline 500). Within 5 s all are answered."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=0.5)
    await limiter.crowd(10, "k", RULE)
    proxy.swallow()
    began = time.monotonic()
    async with play.traffic(limiter, ["a", "b", "c"], RULE, **play.impatient(0.2)) as traffic:
        await traffic.settles(["a", "b", "c"], 10)
    for key in ("a", "b", "c"):
        took = traffic.steady_from(key) - began
        play.judge("answered from 5 s on", took <= 5, f"the last failure after {took:.1f} s: {traffic.outcomes()}")


@scenario("at most once, whatever the call", "turn", "refund", "all", quick=True)
async def lost_others(play: Play) -> None:
    """The replies to a refund, a turn and a call about two keys are lost, each once: each is carried out once."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiters = [await play.limiter(proxy) for _ in range(3)]
    for limiter in limiters:
        play.outcome(await limiter.hit("lost-refund", RULE, cost=10), "allowed", what="before")
    proxy.lose = about("lost-")
    two = [{"key": key, "rule": RULE} for key in ("{lost-all}1", "{lost-all}2")]
    calls = [
        limiters[0].begin("refund", "lost-refund", RULE, cost=3),
        limiters[1].begin("turn", "lost-turn", RULE, ahead=1),
        limiters[2].begin("all", "", rules=two),
    ]
    for reply in [await call for call in calls]:
        play.outcome(reply, "unavailable", what="one whose reply is lost")
    await asyncio.sleep(0.2)
    for key, units in (("lost-refund", 27), ("lost-turn", 1), ("{lost-all}1", 1), ("{lost-all}2", 1)):
        await play.charged(server, key, RULE, units, what=key)
