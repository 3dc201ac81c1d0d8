"""A process that is busy, on a server that is healthy: it is no outage."""

from __future__ import annotations

import asyncio

from harness.play import Play, scenario, sliding
from harness.proxy import about

RULE = sliding("100000/hour")


@scenario("50 threads compute beside one call", "hit", "burn", "threads", quick=True, alone=True)
async def computing(play: Play) -> None:
    """Calls one after the other, and 10 at once, beside 50 threads of computing, at the deadline of a middleware (250
    ms): each is allowed. A process that computes is no server that hangs."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=0.25)
    play.outcome(await limiter.hit("k", RULE), "allowed", what="before")
    burning = play.subject.begin("burn", ms=6000, threads=50)
    await play.subject.event(burning, "burning")
    replies = [await limiter.hit("k", RULE) for _ in range(3)]
    crowd = await limiter.crowd(10, "k", RULE)
    failed = [reply for reply in replies if reply.outcome != "allowed"]
    play.judge("each of 3 is allowed", not failed, f"{len(failed)} not, such as {failed[:1]}")
    play.judge("each of 10 at once is allowed", crowd.outcomes == {"allowed": 10}, crowd)
    await burning
    play.outcome(await limiter.hit("k", RULE), "allowed", what="afterwards")
    await play.charged(server, "k", RULE, 15)


@scenario("the event loop is busy for 1.3 s", "hit", "burn", "event-loop", quick=True)
async def busy_loop(play: Play) -> None:
    """Calls under way, and those that begin meanwhile, at a deadline of a second: their replies have arrived when the
    loop comes to them, and are read: each is allowed, warm and cold. (A shorter deadline judges a busy machine.)"""
    server = await play.server()
    for name in ("cold", "warm"):
        limiter = await play.limiter(server, timeout=1)
        if name == "warm":
            await limiter.crowd(20, "other", RULE)
        crowd = limiter.begin("crowd", name, RULE, n=20)
        burning = play.subject.begin("burn", ms=1300)
        after = limiter.begin("crowd", name, RULE, n=20)
        for reply in (await crowd, await after):
            play.judge(f"20 are allowed, {name}", reply.outcomes == {"allowed": 20}, reply)
        await burning
        await play.charged(server, name, RULE, 40)


@scenario("the process is stopped for two seconds", "hit", quick=True)
async def stopped(play: Play) -> None:
    """As in a container that has used up its share of the processor: the replies to ten calls under way arrive
    meanwhile. When it goes on each is read, though its deadline (a second) is over, and so is the next."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=1)
    play.outcome(await limiter.hit("before", RULE), "allowed", what="before")
    # Late replies: each of the ten has a connection of its own, where there are several. The next ten need no other.
    proxy.delay = 0.1
    play.all_of(await limiter.crowd(10, "before", RULE), "allowed", what="before")
    calls = [limiter.hit("k", RULE) for _ in range(10)]
    crowd = asyncio.gather(*calls)

    async def all_sent() -> bool:
        return await play.used(server, "k", RULE) == 10

    await play.comes_true("all are sent", all_sent, 5)
    proxy.hang()
    play.subject.stop()
    await asyncio.sleep(2)
    proxy.resume()
    await asyncio.sleep(0.3)
    play.subject.go_on()
    for reply in await crowd:
        if not play.outcome(reply, "allowed", what="one under way"):
            break
    play.outcome(await limiter.hit("k", RULE), "allowed", what="the next")


async def at_once(play: Play, n: int) -> None:
    server = await play.server()
    limiter = await play.limiter(server, timeout=3)
    rule = sliding("50/hour")
    play.outcome(await limiter.hit("other", rule), "allowed", what="before")
    crowd = await limiter.crowd(n, "k", rule)
    play.judge("50 are allowed", crowd.allowed == 50, crowd)
    play.judge("the others are denied", crowd.outcomes.get("denied", 0) == n - 50, crowd)
    await play.charged(server, "k", rule, 50)
    play.outcome(await limiter.hit("other", rule), "allowed", what="the next call of another key")


@scenario("1,000 calls at once, 50 allowed", "hit", "crowd", quick=True, alone=True)
async def thousand(play: Play) -> None:
    """Exactly 50 are allowed, and all others denied: a crowd that the process serves late is no outage. The next call
    works."""
    await at_once(play, 1000)


@scenario("3,000 calls at once, 50 allowed", "hit", "crowd", alone=True)
async def thousands(play: Play) -> None:
    """As with 1,000."""
    await at_once(play, 3000)


@scenario("300 requests at once, 50 in", "serve", "own", quick=True, alone=True)
async def requests_at_once(play: Play) -> None:
    """Exactly 50 are let in, the others denied. (At a deadline that holds on a busy machine, too.)"""
    server = await play.server()
    app = await play.app(server, sliding("50/hour"), timeout=2)
    play.judge("before", (await app.get(x_key="other")).status == 200)
    statuses = await app.crowd(300, x_key="k")
    play.judge("50 of 300", statuses == {200: 50, 429: 250}, dict(statuses))
    play.judge("the next of another identity", (await app.get(x_key="other")).status == 200)


@scenario("a limiter of 1 ms beside one of a second", "hit", quick=True)
async def short_beside_long(play: Play) -> None:
    """They share the user's client, on a server 5 ms away: the one of 1 ms is never answered, and the one of a second
    always: a limiter's unusual deadline opens nobody else's breaker."""
    server = await play.server()
    proxy = await play.proxy(server)
    long = await play.limiter(proxy, timeout=1, client="one")
    short = await play.limiter(proxy, timeout=0.001, client="one")
    await long.crowd(10, "other", RULE)
    proxy.delay = 0.005
    async with play.traffic(short, ["short1", "short2", "short3"], RULE, pause=0.002) as traffic:
        crowds = [await long.crowd(10, "k", RULE) for _ in range(20)]
    answered = sum(crowd.allowed for crowd in crowds)
    play.judge("each of 200 is allowed", answered == 200, f"{answered}, {crowds[0]}")
    failed = [reply for _, _, reply in traffic.seen if reply.outcome not in ("unavailable", "allowed")]
    play.judge("the short ones are unavailable", not failed, failed[:1])


@scenario("one limiter closed while another works", "hit", "close", quick=True)
async def closed_beside(play: Play) -> None:
    """Both share the user's client. The other's calls are all allowed, while a third, a fourth … are made, used and
    closed; a closed limiter fails with words, or works again."""
    server = await play.server()
    working = await play.limiter(server, timeout=1, client="one")
    async with play.traffic(working, [f"k{number}" for number in range(5)], RULE, pause=0) as traffic:
        for _ in range(20):
            closing = await play.limiter(server, timeout=1, client="one")
            await closing.crowd(5, "other", RULE)
            await closing.close()
    failed = [reply for _, _, reply in traffic.seen if reply.outcome != "allowed"]
    play.judge("each call is allowed", not failed, f"{len(failed)} of {len(traffic.seen)} not, such as {failed[:1]}")
    reply = await closing.hit("other", RULE)
    play.judge("a closed limiter says so, or works", reply.outcome != "bug", reply)


@scenario("an old connection fails late", "hit", "within", quick=True)
async def late_failure(play: Play) -> None:
    """A connection swallows a call that its caller gives up; the next calls work on new ones. When the old one breaks,
    later, no call fails."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=0.3)
    play.outcome(await limiter.hit("k", RULE), "allowed", what="before")
    old = list(proxy.links)
    proxy.swallow()
    await limiter.hit("k", RULE, within=0.1)
    await play.recovers(limiter, RULE, within=2)
    async with play.traffic(limiter, ["a", "b"], RULE, pause=0.005) as traffic:
        await asyncio.sleep(0.3)
        for link in old:
            link.cut()
        await asyncio.sleep(0.7)
    failed = [reply for _, _, reply in traffic.seen if reply.outcome != "allowed"]
    play.judge("each call is allowed", not failed, f"{len(failed)} of {len(traffic.seen)} not, such as {failed[:1]}")


@scenario("one reply is late", "hit", "pool")
async def one_late(play: Play) -> None:
    """One call's reply comes after its deadline, and the server answers others meanwhile: only that call is
    unavailable."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=1)
    await limiter.crowd(10, "k", RULE)
    async with play.traffic(limiter, ["a"], RULE, pause=0.01) as traffic:
        await asyncio.sleep(0.1)
        proxy.half = about("late")
        play.outcome(await limiter.hit("late", RULE), "unavailable", what="the late one")
        await asyncio.sleep(0.3)
    failed = [reply for _, _, reply in traffic.seen if reply.outcome != "allowed"]
    total = len(traffic.seen)
    play.judge("nearly all others are allowed", len(failed) <= 3, f"{len(failed)} of {total} not, such as {failed[:1]}")
