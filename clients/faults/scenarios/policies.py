"""What middleware and adapters do when the server is away, and what no policy may let through."""

from __future__ import annotations

import asyncio
import re
import time

from harness.http import App
from harness.play import Play, scenario, sliding
from harness.servers import Server

RULE = sliding("10/hour")


async def taken(play: Play, policy: str) -> tuple[Server, App, float]:
    """An application that has answered, whose server was killed then: the server, the application, and when."""
    server = await play.server()
    app = await play.app(server, RULE, policy)
    play.judge("before", (await app.get(x_key="before")).status == 200)
    await asyncio.sleep(0.3)
    server.kill()
    return server, app, time.monotonic()


async def away(app: App, status: int, play: Play) -> None:
    """Requests until the outage is noticed, which all end in the same way."""
    for _ in range(3):
        answer = await app.get(x_key="noticed")
        play.judge(f"{status} while the server is away", answer.status == status, answer)
        play.judge("answered by the deadline", answer.ms < 250 + 750, f"{answer.ms:.0f} ms")


async def back(play: Play, server: Server, app: App) -> None:
    """The server decides again, which is seen by its keys."""
    await server.start()

    async def counted() -> bool:
        await app.get(x_key="back")
        return bool(await server.run("KEYS", "*back*"))

    await play.comes_true("within 4 s the server decides again", counted, 4)


def one_line_each(play: Play, since: float) -> None:
    """One line when the outage begins, and one when it ends."""
    lines = [text for at, level, text in play.subject.logs if level != "debug" and at >= since]
    play.judge("one line when it begins, one when it ends", len(lines) == 2, f"{len(lines)}: {lines[:6]}")


@scenario("open: all pass, and it is said once", "serve", "open", quick=True)
async def opened(play: Play) -> None:
    """While the server is away all requests pass, each within a second; one log line when it begins, one when it ends;
    then the limit holds again, exactly."""
    server, app, killed = await taken(play, "open")
    await away(app, 200, play)
    play.judge("all pass", await app.crowd(50, x_key="k") == {200: 50})
    await back(play, server, app)
    statuses = await app.crowd(30, x_key="after")
    play.judge("10 of 30 afterwards", statuses[200] == 10 and statuses[429] == 20, dict(statuses))
    one_line_each(play, killed)


@scenario("an outage of three seconds is said once", "serve", "open", "identity")
async def said_once(play: Play) -> None:
    """Requests go on coming, and the server is asked again each second: one line when it begins, one when it ends."""
    server, app, killed = await taken(play, "open")
    while time.monotonic() < killed + 3:
        play.judge("it passes", (await app.get(x_key="k")).status == 200)
        await asyncio.sleep(0.1)
    await back(play, server, app)
    await asyncio.sleep(0.7)
    await app.get(x_key="after")
    one_line_each(play, killed)


@scenario("closed: all are refused, and it is said once", "serve", "closed", quick=True)
async def closed(play: Play) -> None:
    """While the server is away all requests are answered with 503 (or what the
    framework's own limiter answers); one log line when it begins, one when it ends; then
    the limit holds again, exactly."""
    server, app, killed = await taken(play, "closed")
    await away(app, app.refuses, play)
    play.judge("all are refused", await app.crowd(50, x_key="k") == {app.refuses: 50})
    await back(play, server, app)
    statuses = await app.crowd(30, x_key="after")
    play.judge("10 of 30 afterwards", statuses[200] == 10 and statuses[429] == 20, dict(statuses))
    one_line_each(play, killed)


@scenario("local: exact, 200 at once", "serve", "local", quick=True)
async def local(play: Play) -> None:
    """While the server is away 200 requests at once at 10 an hour let exactly 10 in, the others are denied; another
    identity has its own; one line when it begins, one when it ends."""
    server, app, killed = await taken(play, "local")
    await away(app, 200, play)
    for key in ("a", "b"):
        statuses = await app.crowd(200, x_key=key)
        play.judge("10 of 200", statuses == {200: 10, 429: 190}, dict(statuses))
    await back(play, server, app)
    one_line_each(play, killed)


@scenario("local: cold, the server hangs, 200 at once", "serve", "local", quick=True)
async def local_cold(play: Play) -> None:
    """The first 200 requests of a process meet a server that hangs: exactly 10 are let in, the others are denied."""
    server = await play.server()
    server.hang()
    app = await play.app(server, RULE, "local")
    statuses = await app.crowd(200, x_key="k")
    play.judge("10 of 200", statuses == {200: 10, 429: 190}, dict(statuses))
    server.resume()


@scenario("local: several windows", "serve", "local", "several", quick=True)
async def local_windows(play: Play) -> None:
    """3 a second and 5 an hour: 20 at once let 3 in; a second later 20 let 2 in. What one window denies counts in
    none."""
    server = await play.server()
    server.kill()
    app = await play.app(server, sliding("3/second", "5/hour"), "local")
    await app.get(x_key="noticed")
    first = await app.crowd(20, x_key="k")
    await asyncio.sleep(1.3)
    second = await app.crowd(20, x_key="k")
    play.judge("3, and 2 a second later", (first[200], second[200]) == (3, 2), (dict(first), dict(second)))
    play.judge("the others are denied", first[429] + second[429] == 35, (dict(first), dict(second)))


@scenario("local: a window of 30 days", "serve", "local", quick=True)
async def local_month(play: Play) -> None:
    """20 at once at 3 in 30 days let 3 in, and none a second later."""
    server = await play.server()
    server.kill()
    app = await play.app(server, sliding("3/30day"), "local")
    await app.get(x_key="noticed")
    first = await app.crowd(20, x_key="k")
    await asyncio.sleep(1.2)
    second = await app.crowd(5, x_key="k")
    play.judge("3 of 20, then none", (first, second) == ({200: 3, 429: 17}, {429: 5}), (dict(first), dict(second)))


@scenario("local: costs that are not the server's", "serve", "local", "cost")
async def local_costs(play: Play) -> None:
    """Requests that weigh 1, 7, 1, 7, 1 … at 20 an hour: as many units as fit, in order, and the limit is not emptied
    by another weight."""
    server = await play.server()
    server.kill()
    app = await play.app(server, sliding("20/hour"), "local")
    await app.get(x_key="noticed")
    statuses = [(await app.get(x_key="k", x_cost=cost)).status for cost in ("1", "7", "1", "7", "1", "7", "1", "7")]
    # 1 + 7 + 1 + 7 + 1 = 17; 7 does not fit; 1 makes 18; 7 does not fit.
    play.judge("as they fit", statuses == [200, 200, 200, 200, 200, 429, 200, 429], statuses)


@scenario("local: divided by the processes", "serve", "local", "processes", quick=True)
async def local_divided(play: Play) -> None:
    """10 an hour among two processes: 5 in this one."""
    server = await play.server()
    server.kill()
    app = await play.app(server, RULE, "local", processes=2)
    await app.get(x_key="noticed")
    statuses = await app.crowd(50, x_key="k")
    play.judge("5 of 50", statuses[200] == 5, dict(statuses))


async def never_allowed(play: Play, policy: str) -> None:
    server = await play.server()
    app = await play.app(server, RULE, policy)
    play.judge("before", (await app.get(x_key="broken")).status == 200)
    for key in await server.run("KEYS", "*broken*"):
        await server.run("DEL", key)
        await server.run("HSET", key, "a", "b")
    for _ in range(3):
        answer = await app.get(x_key="broken")
        play.judge("a key of another type is never let through", answer.status >= 400, answer)
        if "identity" in play.subject.can:
            answer = await app.get()
            play.judge("a request without identity is refused", 400 <= answer.status < 500, answer)
    answer = await app.get(x_key="other")
    play.judge("others are not concerned", answer.status == 200, answer)
    await server.run("ACL", "SETUSER", "default", "-@all", "+ping", "+acl", "+client", "+hello", "+info")
    for _ in range(3):
        answer = await app.get(x_key="denied")
        play.judge("missing permissions never let through", answer.status >= 400, answer)


@scenario("open: permanent errors and no identity are refused", "serve", "open", quick=True)
async def never_open(play: Play) -> None:
    """A key that holds something else, missing permissions, and a request without an identity are never let through;
    other requests go on."""
    await never_allowed(play, "open")


@scenario("local: permanent errors and no identity are refused", "serve", "local", quick=True)
async def never_local(play: Play) -> None:
    """As with open."""
    await never_allowed(play, "local")


@scenario("a third of the nodes down, bad requests mixed in", "serve", "cluster", quick=True)
async def third_down(play: Play) -> None:
    """Open. Keys of the node that hangs pass, those of others are limited, requests without identity and keys of
    another type are refused; at most one line when it begins and one when it ends, and none for bad requests."""
    cluster = await play.cluster(timeout_ms=60_000)
    # What a healthy node does not answer in time passes, uncounted: a deadline that holds on a busy machine, too.
    app = await play.app(cluster, sliding("20/hour"), "open", timeout=1)
    many = [f"key{number}" for number in range(30)]
    statuses = await app.each(many)
    play.judge("before", statuses == {200: 30}, dict(statuses))
    homes = {key: number for number, node in enumerate(cluster.primaries) for key in await keys_of(node)}
    bad = next(key for key, number in homes.items() if number == 1)
    for name in await cluster.primaries[1].run("KEYS", f"*{bad}[^0-9]*"):
        await cluster.primaries[1].run("DEL", name)
        await cluster.primaries[1].run("HSET", name, "a", "b")
    cluster.primaries[0].hang()
    hung = time.monotonic()
    healthy = [key for key, number in homes.items() if number and key != bad]
    for _ in range(4):
        statuses = await app.each([key for key in many if homes.get(key) == 0])
        play.judge("those of the hung node pass", set(statuses) == {200}, dict(statuses))
        statuses = await app.each(healthy)
        play.judge("the others are decided", set(statuses) == {200}, dict(statuses))
        play.judge("a key of another type is refused", (await app.get(x_key=bad)).status >= 400)
        if "identity" in play.subject.can:
            play.judge("without identity: refused", 400 <= (await app.get()).status < 500)
    statuses = await app.crowd(60, x_key=healthy[0])
    play.judge("limited on healthy nodes", statuses[200] == 15, dict(statuses))
    cluster.primaries[0].resume()
    await asyncio.sleep(1.5)
    for _ in range(4):
        await app.each(many)
        await asyncio.sleep(0.5)
    one_line_each(play, hung)


async def keys_of(node: Server) -> list[str]:
    return re.findall(r"key\d+", " ".join(await node.run("KEYS", "*")))


@scenario("units that an outage let through are not taken back", "serve", "open", "take-back", quick=True)
async def not_taken_back(play: Play) -> None:
    """An application that takes back what failed requests weigh. Requests that passed while the server was away, and
    that fail when it is there again, take nothing back that was never counted."""
    server = await play.server()
    proxy = await play.proxy(server)
    app = await play.app(proxy, RULE, "open", takes_back=True)
    statuses = [(await app.get(x_key="k")).status for _ in range(6)]
    play.judge("before", statuses == [200] * 6, statuses)
    proxy.hang()
    await away(app, 200, play)
    slow = [asyncio.create_task(app.get("/slow", x_key="k", x_status="500")) for _ in range(4)]
    await asyncio.sleep(1)
    proxy.resume()
    await asyncio.gather(*slow)
    await asyncio.sleep(1.5)
    statuses = [(await app.get(x_key="k")).status for _ in range(8)]
    play.judge("4 of 8 more fit", statuses.count(200) == 4, statuses)
