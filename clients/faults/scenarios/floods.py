"""Floods: of one key, of a million, of long ones."""

from __future__ import annotations

import asyncio

from harness.play import Play, scenario, sliding

FEW = sliding("5/hour")


@scenario("a flood at one key costs a call a second", "serve", "own", quick=True)
async def flood(play: Play) -> None:
    """1,000 denied requests to a middleware, which remembers denials: the server sees at most 200 of them, those that
    were under way when a denial was asked for again. The wait that is told grows shorter, as time passes."""
    server = await play.server()
    # What is judged is what the server sees: a deadline that holds on a busy machine, too.
    app = await play.app(server, FEW, timeout=2)
    for _ in range(6):
        last = await app.get(x_key="k")
    play.judge("denied", last.status == 429, last)
    before = await server.calls_of("rl.sliding")
    for _ in range(4):
        statuses = await app.crowd(250, x_key="k")
        play.judge("each is denied", statuses == {429: 250}, dict(statuses))
        await asyncio.sleep(0.2)
    calls = await server.calls_of("rl.sliding") - before
    play.judge("at most 200 calls", calls <= 200, calls)
    first = await app.get(x_key="k")
    await asyncio.sleep(1.1)
    later = await app.get(x_key="k")
    passed = int(first.headers["retry-after"]) - int(later.headers["retry-after"])
    play.judge("the wait grows shorter", 1 <= passed <= 4, f"{passed} s in 1.1")


@scenario("a remembered denial is not forgotten too late", "serve", "own", quick=True)
async def forgotten(play: Play) -> None:
    """Another process' reset is seen within a second, and other identities are not concerned; a lighter request is not
    denied by a heavier one's denial."""
    server = await play.server()
    app = await play.app(server, FEW)
    for _ in range(6):
        last = await app.get(x_key="k")
    play.judge("denied", last.status == 429, last)
    play.judge("another identity", (await app.get(x_key="other")).status == 200)
    for key in await server.run("KEYS", "*{k}*"):
        await server.run("RL.RESET", key)

    async def seen() -> bool:
        return (await app.get(x_key="k")).status == 200

    await play.comes_true("another's reset is seen within 1 s", seen, 1.5)
    if "cost" in play.subject.can:
        play.judge("a heavy request", (await app.get(x_key="k", x_cost="5")).status == 429)
        play.judge("a lighter one", (await app.get(x_key="k")).status == 200)


@scenario("a denial is not remembered beyond its wait", "serve", "own")
async def short_wait(play: Play) -> None:
    """One that waits for 400 ms is not believed for a second."""
    server = await play.server()
    app = await play.app(server, sliding("1/400ms"))
    for _ in range(50):
        if (await app.get(x_key="k")).status == 429:
            break
    await asyncio.sleep(0.45)
    play.judge("in after its wait", (await app.get(x_key="k")).status == 200)


@scenario("a limiter of its own remembers nothing", "hit", quick=True)
async def no_denials(play: Play) -> None:
    """Each denied call asks the server, and another's reset is seen at once."""
    server = await play.server()
    limiter = await play.limiter(server)
    for _ in range(6):
        last = await limiter.hit("k", FEW)
    play.outcome(last, "denied")
    await server.run("RL.RESET", play.name_of("k"))
    play.outcome(await limiter.hit("k", FEW), "allowed", what="after another's reset")


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
