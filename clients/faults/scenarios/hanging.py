"""A server that hangs, is killed, or answers half."""

from __future__ import annotations

import asyncio

from harness.play import Play, scenario, sliding

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
    used = await server.used("k", RULE)
    play.judge("at most the calls that reached the server are charged", 1 <= used <= 56, used)


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
