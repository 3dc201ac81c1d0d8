"""Callers that leave: then nothing is held, renewed or charged that nobody can give back. And leases in an outage."""

from __future__ import annotations

import asyncio
import time

from harness.http import Connection
from harness.play import Limiter, Play, lease, scenario, sliding
from harness.servers import Server

RULE = sliding("100000/hour")
MOMENTS = [number * 0.004 for number in range(20)]
"""Seconds after which callers leave: replies take 40 ms, so before, while and after they arrive."""


async def distant(play: Play, timeout: float = 1) -> tuple[Server, Limiter]:
    """A server whose replies take 40 ms, and a limiter whose connections are open."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=timeout)
    play.all_of(await limiter.crowd(100, "before", RULE), "allowed", what="before")
    proxy.delay = 0.04
    return server, limiter


async def nothing_is_held(play: Play, server: Server, keys: list[str], rule: dict[str, object]) -> None:
    async def held() -> bool:
        return sum([await play.used(server, key, rule) for key in keys]) == 0

    await play.comes_true("within 3 s nothing is held", held, 3)


@scenario("hits whose callers leave", "hit", "within", quick=True)
async def hit_left(play: Play) -> None:
    """100 callers at once leave at moments before, while and after the reply arrives. Then each of 50 calls gets its
    own reply, none fails, no call was charged twice, and no connections are left over."""
    server, limiter = await distant(play)
    leaving = [limiter.begin("hit", "left", RULE, within=MOMENTS[n % 20] + 0.001) for n in range(100)]
    replies = [await each for each in leaving]
    for reply in replies:
        if not play.outcome(reply, "allowed", "gave_up", what="one that leaves"):
            break
    for number in range(1, 51):
        reply = await limiter.hit("own", RULE)
        if not play.judge("its own reply", reply.get("remaining") == 100_000 - number, reply):
            break
    used, allowed = await play.used(server, "left", RULE), sum(reply.allowed for reply in replies)
    play.judge("charged at most once each", allowed <= used <= 100, f"{used}, {allowed} were told")
    await asyncio.sleep(0.5)
    before = await server.connections()
    for _ in range(3):
        await asyncio.gather(*(limiter.begin("hit", "left", RULE, within=moment + 0.001) for moment in MOMENTS))
    await asyncio.sleep(0.5)
    after = await server.connections()
    play.judge("no connections are left over", after <= before + 20, f"{before} and then {after}")


@scenario("a lease is acquired, and its caller leaves", "acquire", "within", quick=True)
async def acquire_left(play: Play) -> None:
    """At 20 moments, one place each: either the caller has a holder, or within 3 s nothing is held."""
    server, limiter = await distant(play)
    rule = lease(1, 60)
    begun = {f"k{n}": limiter.begin("acquire", f"k{n}", rule, within=at + 0.001) for n, at in enumerate(MOMENTS)}
    replies = {key: await each for key, each in begun.items()}
    for key, reply in replies.items():
        play.outcome(reply, "allowed", "gave_up", what=f"acquire {key}")
    left = [key for key, reply in replies.items() if reply.outcome == "gave_up"]
    play.judge("some have left", left)
    await nothing_is_held(play, server, left, rule)


@scenario("a held lease, and its caller leaves", "hold", "cancel", quick=True)
async def hold_left(play: Play) -> None:
    """At 30 moments, while entering, working and leaving, of work that takes 40 ms: within 3 s nothing is held, and it
    stays so: nobody renews it (the lease lasts 6 s)."""
    server, limiter = await distant(play)
    rule = lease(1, 6)
    keys = [f"k{number}" for number in range(30)]

    async def leave(number: int) -> None:
        held = limiter.begin("hold", keys[number], rule, seconds=0.04)
        await asyncio.sleep(number * 0.004)
        await play.subject.call("cancel", of=held.number)  # type: ignore[attr-defined]
        play.outcome(await held, "allowed", "gave_up", what="a hold")

    await asyncio.gather(*(leave(number) for number in range(30)))
    await nothing_is_held(play, server, keys, rule)
    calls = await server.calls_of("rl.acquire")
    await asyncio.sleep(2.5)
    again = await server.calls_of("rl.acquire")
    play.judge("nobody renews", again == calls, f"{again - calls} calls in 2.5 s")


@scenario("a long hold, and its caller leaves", "hold", "cancel")
async def long_hold_left(play: Play) -> None:
    """A hold of 30 s whose caller leaves after a second: within 3 s nothing is held, and others get the place."""
    server, limiter = await distant(play)
    rule = lease(1, 30)
    held = limiter.begin("hold", "k", rule, seconds=30)
    await play.subject.event(held, "held")
    await asyncio.sleep(1)
    play.judge("it was held", await play.used(server, "k", rule) == 1)
    await play.subject.call("cancel", of=held.number)  # type: ignore[attr-defined]
    play.outcome(await held, "gave_up", what="the hold")
    await nothing_is_held(play, server, ["k"], rule)


@scenario("a reservation, and its caller leaves", "reserve", "lease-of-reserve", "within", quick=True)
async def reserve_left(play: Play) -> None:
    """At 20 moments: where the caller left without a reservation, its units are free again at the end of its lease (1
    s), and 2 s later at the latest."""
    _, limiter = await distant(play)
    rule = sliding("100/hour")

    async def leave(number: int) -> str | None:
        key = f"k{number}"
        made = await limiter.begin(
            "reserve", key, rule, units=100, lease=1, **{"as": key}, within=MOMENTS[number] + 0.001
        )
        play.outcome(made, "allowed", "gave_up", what="reserve")
        return key if made.outcome == "gave_up" else None

    left = [key for key in await asyncio.gather(*map(leave, range(20))) if key]
    play.judge("some have left", left)
    for key in left:

        async def free(key: str = key) -> bool:
            made = await limiter.begin("reserve", key, rule, units=100, lease=1, **{"as": f"again-{key}"})
            return made.outcome == "allowed"

        await play.comes_true("the units are free again", free, 4)


@scenario("reservations, and their process is killed", "reserve", "settle", "lease-of-reserve", quick=True)
async def reserve_killed(play: Play) -> None:
    """Five of ten reservations are settled, and the process is killed. At the end of the lease (2 s) and with one call
    more, what was settled is charged and nothing else."""
    server = await play.server()
    limiter = await play.limiter(server)
    rule = sliding("1000/hour")
    for number in range(10):
        made = await limiter.begin("reserve", "budget", rule, units=100, lease=2, **{"as": f"r{number}"})
        play.outcome(made, "allowed", what="reserve")
    for number in range(5):
        settled = await play.subject.call("settle", limiter=limiter.name, of=f"r{number}", units=40)
        play.outcome(settled, "done", what="settle")
    await play.charged(server, "budget", rule, 5 * 40 + 5 * 100, what="before")
    await play.subject.end()

    async def given_back() -> bool:
        # With one holder it counts once.
        key = play.name_of("budget")
        await server.run("RL.SLIDING", key, 3600, 1000, "COST", 1, "HOLD", "the next", 60)
        return await play.used(server, "budget", rule) == 5 * 40 + 1

    await play.comes_true("what was settled is charged, and one call more", given_back, 4)


@scenario("settled twice and through an outage", "reserve", "settle", quick=True)
async def settled(play: Play) -> None:
    """A settlement whose reply is lost may be repeated, and once more: it is charged exactly once."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=0.5)
    rule = sliding("1000/hour")
    made = await limiter.begin("reserve", "budget", rule, units=100, **{"as": "r"})
    play.outcome(made, "allowed", what="reserve")
    proxy.lose = lambda request: b"budget" in request
    lost = await play.subject.call("settle", limiter=limiter.name, of="r", units=40)
    play.outcome(lost, "unavailable", "done", what="a settlement whose reply is lost")
    proxy.lose = lambda request: False
    await play.recovers(limiter, RULE, within=2)
    again = await play.subject.call("settle", limiter=limiter.name, of="r", units=40)
    play.outcome(again, "done", what="settled again")
    # What it says to one more is the package's.
    await play.subject.call("settle", limiter=limiter.name, of="r", units=40)
    await play.charged(server, "budget", rule, 40)


@scenario("a lease is lost while the server hangs", "hold", quick=True)
async def lost_on_time(play: Play) -> None:
    """By the clock of the holder, at the end of the lease at the latest (3 s, of which the reply that granted it took
    0.6); the work's outcome stays, and the end of the block takes no longer than the deadline. Log lines name the
    limiter, and the caller's key without the prefix."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=1, prefix="app:")
    play.outcome(await limiter.hit("before", RULE), "allowed", what="before")
    proxy.delay = 0.6
    held = limiter.begin("hold", "k", lease(1, 3), seconds=3.5)
    await play.subject.event(held, "held")
    proxy.hang()
    began = time.monotonic()
    reply = await held
    proxy.resume()
    play.outcome(reply, "allowed", what="the work")
    lost = reply.get("lost_after_ms")
    play.judge("lost after at most 2.4 s", lost is not None and lost <= 2400 + 200 + 2 * reply.lag, reply)
    play.judge("not lost at once", lost is None or lost >= 1800, lost)
    play.in_time(reply, 0.6 + 3.5 + 1, what="released by the deadline")
    lines = play.subject.lines(began)
    play.judge("the limiter is named in each line", all(limiter.name in line for line in lines), lines)
    play.judge("the key has no prefix", not any("app:" in line for line in lines), lines)


@scenario("a lease is renewed while the work lasts", "hold")
async def renewed(play: Play) -> None:
    """Work of 3 s with a lease of a second: it is not lost, nobody else gets the place, and it is free afterwards. It
    is renewed each third of its time."""
    server = await play.server()
    limiter = await play.limiter(server)
    held = limiter.begin("hold", "k", lease(1, 1), seconds=3)
    await play.subject.event(held, "held")
    await asyncio.sleep(2.5)
    other = await server.run("RL.ACQUIRE", "k", 1, 1, "another")
    play.judge("another does not get it", other[0] == 0, other)
    calls = await server.calls_of("rl.acquire") - 1
    play.judge("3 to 12 calls", 3 <= calls <= 12, calls)
    reply = await held
    play.outcome(reply, "allowed", what="the work")
    play.judge("it was not lost", reply.get("lost_after_ms") is None, reply)
    await nothing_is_held(play, server, ["k"], lease(1, 1))


@scenario("waiting keeps its own time-out", "wait", "hold", quick=True)
async def wait_in_time(play: Play) -> None:
    """`wait` and `hold` with a time-out of 300 ms, while the server hangs and the limiter's deadline is 2 s: both end
    by their own."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=2)
    play.outcome(await limiter.hit("k", RULE), "allowed", what="before")
    server.hang()
    for call, rule in (("wait", RULE), ("hold", lease(1, 10))):
        reply = await limiter.begin(call, f"k-{call}", rule, timeout=0.3)
        play.outcome(reply, "unavailable", "denied", what=call)
        play.in_time(reply, 0.3, what=f"{call} ends by its own time-out")
    server.resume()


@scenario("waiting lives through a blip", "wait", "hold")
async def wait_through(play: Play) -> None:
    """`wait` for a second request at one a second, and `hold` for a place that becomes free after a second, both with
    time-outs of 6 s, while connections break in between: both end allowed, or say unavailable for an outage, which this
    is not."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy, timeout=1)
    rule, place = sliding("1/2s"), lease(1, 2)
    play.outcome(await limiter.hit("k", rule), "allowed", what="before")
    play.outcome(await limiter.begin("acquire", "place", place), "allowed", what="before")
    waiting = [limiter.begin("wait", "k", rule, timeout=6), limiter.begin("hold", "place", place, timeout=6)]
    await asyncio.sleep(0.5)
    proxy.cut()
    for reply in [await each for each in waiting]:
        play.outcome(reply, "allowed", what="after the blip")


@scenario("200 jobs on 5 places", "hold", quick=True, alone=True)
async def jobs(play: Play) -> None:
    """200 holds of 10 ms at once, which wait for a place: each gets one within 10 s, with at most five calls each on
    the server, and nothing is held afterwards."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=2)
    rule = lease(5, 30)
    reply = await limiter.crowd(200, "k", rule, call="hold", timeout=10, seconds=0.01)
    play.judge("200 get a place", reply.outcomes == {"allowed": 200}, reply)
    calls = await server.calls_of("rl.acquire")
    play.judge("at most 1000 calls", calls <= 1000, calls)
    await nothing_is_held(play, server, ["k"], rule)


@scenario("a streamed response, and its client leaves", "serve", "lease", quick=True)
async def stream_left(play: Play) -> None:
    """An endpoint with two places, held while a response is streamed for two seconds. Two clients leave after its first
    bytes: within 3 s nothing is held, and two others get in; it stays so, with nobody renewing."""
    server = await play.server()
    app = await play.app(server, lease(2, 60), "closed")
    for _ in range(2):
        leaving = [Connection(app.port) for _ in range(2)]
        for each in leaving:
            reader = await each.open("/slow", x_key="k")
            status = (await reader.readline()).decode()
            play.judge("it gets in", " 200 " in status, status)
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        for each in leaving:
            each.close()
        keys = await server.run("KEYS", "*")
        await nothing_is_held(play, server, keys, lease(2, 60))
    answers = await asyncio.gather(app.get("/slow", x_key="k"), app.get("/slow", x_key="k"))
    play.judge("two others get in", [each.status for each in answers] == [200, 200], answers)
    await nothing_is_held(play, server, keys, lease(2, 60))
