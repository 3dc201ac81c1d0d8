"""Floods: of one key, of a million, of long ones."""

from __future__ import annotations

import asyncio

from harness.play import Play, scenario, sliding

FEW = sliding("5/hour")


@scenario("a flood at one key costs a call a second", "hit", "deny-cache", quick=True)
async def flood(play: Play) -> None:
    """1,000 denied calls by a limiter that remembers denials: the server sees at most 100 of them, those
    that were under way when a denial was asked for again. The wait that is told grows shorter, as time passes."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=1, deny_cache=1000)
    for _ in range(6):
        last = await limiter.hit("k", FEW)
    play.outcome(last, "denied")
    before = await server.calls_of("rl.sliding")
    for _ in range(4):
        play.all_of(await limiter.crowd(250, "k", FEW), "denied")
        await asyncio.sleep(0.2)
    calls = await server.calls_of("rl.sliding") - before
    play.judge("at most 100 calls", calls <= 100, calls)
    first = await limiter.hit("k", FEW)
    await asyncio.sleep(0.5)
    later = await limiter.hit("k", FEW)
    passed = first["retry_ms"] - later["retry_ms"]
    play.judge("the wait grows shorter", 400 <= passed <= 1500 + 2 * later.lag, f"{passed} ms in 500")


@scenario("a remembered denial is not forgotten too late", "hit", "deny-cache", "refund", "reset", quick=True)
async def forgotten(play: Play) -> None:
    """Forced calls, heavier rules, one's own refund and reset, a raised limit are seen at once; another process' refund
    within 1 s; a lighter request is not denied by a heavier one's denial."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=1, deny_cache=1000)
    for _ in range(6):
        last = await limiter.hit("k", FEW)
    play.outcome(last, "denied")
    await limiter.hit("k", FEW, force=True)
    await play.charged(server, "k", FEW, 6, what="a forced call is charged")
    play.outcome(await limiter.hit("k", sliding("50/hour")), "allowed", what="a raised limit")
    play.outcome(await limiter.hit("k", FEW), "denied")
    await limiter.begin("refund", "k", FEW, cost=3)
    play.outcome(await limiter.hit("k", FEW), "allowed", what="after one's own refund")
    play.outcome(await limiter.hit("k", FEW), "denied")
    await limiter.begin("reset", "k", FEW)
    play.outcome(await limiter.hit("k", FEW), "allowed", what="after one's own reset")
    play.outcome(await limiter.hit("k", FEW, cost=5), "denied", what="a heavy request")
    play.outcome(await limiter.hit("k", FEW), "allowed", what="a lighter one")
    play.outcome(await limiter.hit("k", FEW, cost=5), "denied")
    await server.run("RL.RESET", "k")

    async def seen() -> bool:
        return (await limiter.hit("k", FEW, cost=5)).outcome == "allowed"

    await play.comes_true("another's reset is seen within 1 s", seen, 1.5)


@scenario("a limiter's denials are its own", "hit", "deny-cache", quick=True)
async def own_denials(play: Play) -> None:
    """Two limiters on one client: the one without a deny cache asks the server each time, and sees at once what
    the other does not."""
    server = await play.server()
    cached = await play.limiter(server, timeout=1, client="one", deny_cache=1000)
    plain = await play.limiter(server, timeout=1, client="one")
    for _ in range(6):
        await cached.hit("k", FEW)
    await server.run("RL.RESET", "k")
    play.outcome(await plain.hit("k", FEW), "allowed", what="the one without")
    play.outcome(await cached.hit("k", FEW), "denied", what="the one with")


@scenario("long keys are denied", "flood", "deny-cache", quick=True)
async def long_keys(play: Play) -> None:
    """5,000 of 4 kB and 1,000 of 60 kB, 80 MB in all: the memory of the process grows by at most 32 MB, though a deny
    cache of 100,000 entries is asked for."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=5, deny_cache=100_000)
    nothing = sliding("0/hour")
    await limiter.begin("flood", "warm", nothing, n=500, pad=100)
    before = await play.memory()
    for n, pad in ((5000, 4000), (1000, 60_000)):
        reply = await limiter.begin("flood", f"pad{pad}-", nothing, n=n, pad=pad)
        play.judge(f"{n} are denied", reply.outcomes == {"denied": n}, reply)
    grown = (await play.memory() - before) / 1e6
    play.judge("grows by at most 32 MB", grown <= 32, f"{grown:.0f} MB")


@scenario("6,000 identities in memory", "serve", "local", "local-memory", seconds=240)
async def local_flood(play: Play) -> None:
    """While the server is away, 6,000 identities of 8 kB each, limited in memory: the process grows by at most 24 MB,
    and an identity is still limited."""
    server = await play.server()
    server.kill()
    app = await play.app(server, sliding("2/hour"), "local")
    await app.each([f"warm{number}" for number in range(200)])
    before = await play.memory()
    statuses = await app.each([f"{number}-".ljust(8000, "x") for number in range(6000)])
    play.judge("each is let in once", statuses == {200: 6000}, dict(statuses))
    grown = (await play.memory() - before) / 1e6
    play.judge("grows by at most 24 MB", grown <= 24, f"{grown:.0f} MB")
    statuses = await app.crowd(10, x_key="k")
    play.judge("2 of 10", statuses[200] == 2, dict(statuses))


@scenario("a flood of identities that are denied", "serve", "closed", quick=True)
async def denied_flood(play: Play) -> None:
    """2,000 identities of 15 kB, 30 MB in all, each denied by the server: the process grows by at most 15 MB."""
    server = await play.server()
    # What is judged is memory: a deadline that holds on a busy machine, too.
    app = await play.app(server, sliding("0/hour"), "closed", timeout=2)
    await app.each([f"warm{number}".ljust(15_000, "x") for number in range(50)])
    before = await play.memory()
    statuses = await app.each([f"{number}-".ljust(15_000, "x") for number in range(2000)])
    play.judge("each is denied", statuses == {429: 2000}, dict(statuses))
    grown = (await play.memory() - before) / 1e6
    play.judge("grows by at most 15 MB", grown <= 15, f"{grown:.0f} MB")
