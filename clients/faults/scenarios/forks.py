"""Processes that fork, several event loops and runtimes, gunicorn."""

from __future__ import annotations

import asyncio
import itertools

from harness.play import Play, scenario, sliding

RULE = sliding("100000/hour")


@scenario("a fork while other threads are in calls", "hit", "fork", quick=True)
async def forked(play: Play) -> None:
    """40 threads wait for their replies when the process forks. 40 calls at once in the child are all allowed; the
    parent's are, too; three times; each is charged once."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=3)
    play.outcome(await limiter.hit("other", RULE), "allowed", what="before")
    proxy.delay = 0.3
    for _ in range(3):
        parents = limiter.begin("crowd", "k", RULE, n=40)
        await asyncio.sleep(0.1)
        child = await limiter.begin("fork", "k", RULE, n=40)
        play.judge("the child's are allowed", child.outcomes == {"allowed": 40}, child)
        crowd = await parents
        play.judge("the parent's are allowed", crowd.outcomes == {"allowed": 40}, crowd)
    await play.charged(server, "k", RULE, 240)


@scenario("a fork before the first call", "hit", "fork", quick=True)
async def forked_first(play: Play) -> None:
    """A limiter made before the fork, and never used: the child's 40 calls at once are allowed, and the parent's."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=2)
    child = await limiter.begin("fork", "k", RULE, n=40)
    play.judge("the child's are allowed", child.outcomes == {"allowed": 40}, child)
    play.all_of(await limiter.crowd(10, "k", RULE), "allowed", what="the parent's")


@scenario("a system that cannot fork", "hit", "fork", env={"FAULTS_NO_FORK": "1"})
async def no_fork(play: Play) -> None:
    """Without os.fork and os.register_at_fork, as on Windows, the package is imported and works."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=2)
    play.all_of(await limiter.crowd(10, "k", RULE), "allowed")


@scenario("several event loops or runtimes", "hit", "loops", quick=True)
async def loops(play: Play) -> None:
    """One limiter in the main one and in four others at once, which end; then in the main one again, and in four new
    ones: all calls are allowed, each charged once, and no connections of loops that ended are left after 3 s."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=2)
    play.all_of(await limiter.crowd(10, "k", RULE), "allowed", what="the first")
    for _ in range(3):
        reply = await limiter.begin("loops", "k", RULE, n=10, loops=4)
        play.judge("all of four loops are allowed", reply.outcomes == {"allowed": 40}, reply)
        play.all_of(await limiter.crowd(10, "k", RULE), "allowed", what="the main one")
    await play.charged(server, "k", RULE, 160)

    async def few() -> bool:
        return await server.connections() <= 40

    await play.comes_true("at most 40 connections are left", few, 3)


@scenario("gunicorn --preload", "serve", "gunicorn", quick=True)
async def gunicorn(play: Play) -> None:
    """Four workers forked from an application that has made a call: 200 requests at once at 50 an hour let exactly 50
    in, and all are answered; after the server was killed and started again they are answered within 3 s."""
    server = await play.server()
    app = await play.app(server, sliding("50/hour"), "closed", timeout=2)
    statuses = await app.crowd(200, timeout=10, x_key="k")
    play.judge("50 let in, 150 denied", statuses == {200: 50, 429: 150}, dict(statuses))
    server.kill()
    await app.crowd(20, timeout=10, x_key="k")
    await server.start()

    # Each attempt at a key of its own: what the workers that are back let in counts.
    attempts = itertools.count()

    async def back() -> bool:
        return (await app.crowd(20, timeout=10, x_key=f"again{next(attempts)}")) == {200: 20}

    await play.comes_true("within 3 s all of 20 are answered", back, 5)
