"""The defaults that all packages share, as far as they show only in time: ../cases/defaults.json has their numbers."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from harness.http import Connection
from harness.play import MARGIN_MS, Limiter, Play, fixed, lease, scenario, sliding
from harness.proxy import about
from harness.servers import Server

RULE = sliding("100000/hour")


@scenario("by default a middleware is open", "serve", "own", quick=True)
async def opened(play: Play) -> None:
    """With nothing chosen, all requests pass while the server is away, with one warning and no headers that nobody has
    counted."""
    server = await play.server()
    app = await play.app(server, sliding("10/hour"))
    play.judge("before", (await app.get(x_key="before")).status == 200)
    server.kill()
    killed = time.monotonic()
    answers = [await app.get(x_key="k") for _ in range(15)]
    play.judge("all pass", {answer.status for answer in answers} == {200}, answers[0])
    made_up = [answer.headers for answer in answers if "ratelimit" in answer.headers]
    play.judge("no quota is made up", not made_up, made_up[:1])
    warnings = play.subject.lines(killed)
    play.judge("one warning", len(warnings) == 1, warnings[:4])


@scenario("by default a middleware waits for a quarter of a second", "serve", "own", quick=True)
async def quarter(play: Play) -> None:
    """A request meets a server that hangs, and is let through after 250 ms."""
    server = await play.server()
    app = await play.app(server, sliding("10/hour"))
    for _ in range(5):
        await app.get(x_key="before")
    server.hang()
    answer = await app.get(x_key="k")
    server.resume()
    play.judge("it passes", answer.status == 200, answer)
    play.judge("after 250 ms", 200 <= answer.ms <= 250 + 2 * MARGIN_MS, f"{answer.ms:.0f} ms")


@scenario("`wait` in an outage", "wait", "hold", quick=True)
async def outage(play: Play) -> None:
    """It tries again until its time is over (3 s), and then is unavailable; where the server comes back in time, it is
    allowed. The same of a rule that has no turns, of a lease, and of `hold`."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=0.5)
    play.outcome(await limiter.hit("before", RULE), "allowed", what="before")
    server.kill()
    rules = {"sliding": RULE, "fixed": fixed("100000/hour"), "lease": lease(1, 30)}
    for name, reply in (await waiting(limiter, rules, 3)).items():
        play.outcome(reply, "unavailable", what=f"{name}, for three seconds")
        play.judge(f"{name} uses its time", reply.ms >= 2800, f"{reply.ms:.0f} ms")
        play.in_time(reply, 3.5, what=f"{name} ends with its time")
    coming = asyncio.create_task(waiting(limiter, rules, 10))
    await asyncio.sleep(1.5)
    await server.start()
    for name, reply in (await coming).items():
        play.outcome(reply, "allowed", what=f"{name}, with the server back in time")


async def waiting(limiter: Limiter, rules: dict[str, dict[str, object]], timeout: float) -> dict[str, object]:
    begun = {name: limiter.begin("wait", f"k-{name}", rule, timeout=timeout) for name, rule in rules.items()}
    begun["hold"] = limiter.begin("hold", "k-hold", rules["lease"], timeout=timeout, seconds=0)
    return {name: await each for name, each in begun.items()}


@scenario("`wait` for a lease looks for a place", "wait", quick=True)
async def place(play: Play) -> None:
    """A place that another process gives back after 1.3 s, long before its lease ends: found within 0.5 s, with at most
    30 calls."""
    server = await play.server()
    limiter = await play.limiter(server)
    play.outcome(await limiter.hit("before", RULE), "allowed", what="before")
    await server.run("RL.ACQUIRE", "k", 1, 60, "another")
    waits = limiter.begin("wait", "k", lease(1, 60), timeout=10)
    await asyncio.sleep(1.3)
    await server.run("RL.RELEASE", "k", "another")
    released = time.monotonic()
    reply = await waits
    took = time.monotonic() - released
    play.outcome(reply, "allowed")
    play.judge("found within 0.5 s", took <= 0.5 + 0.2 + 2 * reply.lag / 1000, f"{took:.2f} s")
    calls = await server.calls_of("rl.acquire")
    play.judge("at most 30 calls", calls <= 30, calls)


@scenario("`hold` asks less and less often", "hold", quick=True)
async def polls(play: Play) -> None:
    """One that waits in vain for 5 s asks 8 to 30 times (20 ms, doubling to 500 ms, with jitter); of 50 that wait in
    one process for 3 s one asks."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy)
    play.outcome(await limiter.hit("before", RULE), "allowed", what="before")
    await server.run("RL.ACQUIRE", "waited-for", 1, 600, "another")
    reply = await limiter.begin("hold", "waited-for", lease(1, 600), timeout=5, seconds=0)
    play.outcome(reply, "denied")
    asked = [at for at, request in proxy.asked if about("waited-for")(request)]
    play.judge("8 to 30 calls in 5 s", 8 <= len(asked) <= 30, len(asked))
    pauses = [after - one for one, after in pairwise(asked)]
    play.judge("the first are short", sum(pauses[:3]) <= 0.3 + 2 * reply.lag / 1000, pauses)
    # Without jitter they are alike, the last one left out, which ends with the time.
    play.judge("they differ", max(pauses[5:-1]) - min(pauses[5:-1]) > 0.015, pauses)
    before = await server.calls_of("rl.acquire")
    crowd = await limiter.crowd(50, "waited-for", lease(1, 600), call="hold", timeout=3, seconds=0)
    play.all_of(crowd, "denied")
    calls = await server.calls_of("rl.acquire") - before
    play.judge("one of 50 asks, and each at the end of its time", calls <= 80, calls)


@scenario("the last call of a wait says what is known", "wait", "hold", quick=True)
async def last_call(play: Play) -> None:
    """20 that wait in vain, on a server 20 ms away, for times of 300 to 395 ms: each ends denied, and none with an
    error. And of one whose time is 20 ms, on a server 60 ms away, at a deadline of 10 s: it has a tenth of that, and
    is allowed."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy)
    for number in range(20):
        await server.run("RL.ACQUIRE", f"k{number}", 1, 600, "another")
    await limiter.crowd(40, "before", RULE)
    proxy.delay = 0.01
    for call, fields in (("hold", {"seconds": 0}), ("wait", {})):
        begun = [
            limiter.begin(call, f"k{number}", lease(1, 600), timeout=0.3 + number * 0.005, **fields)
            for number in range(20)
        ]
        replies = [await each for each in begun]
        failed = [reply for reply in replies if reply.outcome != "denied"]
        play.judge(f"each {call} is denied", not failed, f"{len(failed)} not, such as {failed[:1]}")
    patient = await play.limiter(proxy, timeout=10)
    proxy.delay = 0
    await patient.hit("before", RULE)
    proxy.delay = 0.06
    for name, rule in {"sliding": RULE, "fixed": fixed("100000/hour"), "lease": lease(1, 30)}.items():
        reply = await patient.begin("wait", name, rule, timeout=0.02)
        play.outcome(reply, "allowed", what=f"a short wait, {name}")
    reply = await patient.begin("hold", "hold", lease(1, 30), timeout=0.02, seconds=0)
    play.outcome(reply, "allowed", what="a short hold")


@scenario("the breaker is open for a second", "hit", quick=True)
async def pause(play: Play) -> None:
    """A server that is back at once is asked again after a second, and not before."""
    server = await play.server()
    limiter = await play.limiter(server, timeout=0.5)
    play.outcome(await limiter.hit("before", RULE), "allowed", what="before")
    server.kill()
    play.outcome(await limiter.hit("k", RULE), "unavailable", what="while it is away")
    failed = time.monotonic()
    await server.start()
    if time.monotonic() > failed + 0.7:
        return  # A busy machine: there is nothing to see.
    while (reply := await limiter.hit("k", RULE)).outcome != "allowed":
        if time.monotonic() > failed + 5:
            break
        await asyncio.sleep(0.02)
    took = time.monotonic() - failed
    play.outcome(reply, "allowed", what="afterwards")
    play.judge("0.9 to 1.5 s", 0.9 <= took <= 1.5 + 2 * reply.lag / 1000, f"{took:.2f} s")


@scenario("a hit whose caller leaves stays charged", "hit", "within", quick=True)
async def charged(play: Play) -> None:
    """Ten callers leave while the replies to their calls are under way: ten units are charged."""
    server = await play.server()
    proxy = await play.proxy(server)
    limiter = await play.limiter(proxy)
    await limiter.crowd(20, "before", RULE)
    proxy.delay = 0.2
    for reply in [await each for each in [limiter.begin("hit", "k", RULE, within=0.05) for _ in range(10)]]:
        play.outcome(reply, "gave_up", what="one that leaves")
    await asyncio.sleep(1)
    await play.charged(server, "k", RULE, 10)


@scenario("the hook is told the caller's key", "hit", "all", "hook", quick=True)
async def hook(play: Play) -> None:
    """Without the limiter's prefix, of a hit that is allowed, of a denied one, and of several keys."""
    server = await play.server()
    limiter = await play.limiter(server, prefix="app:", hook=True)
    await limiter.hit("k", sliding("1/hour"))
    await limiter.hit("k", sliding("1/hour"))
    await limiter.begin("all", "", rules=[{"key": each, "rule": RULE} for each in ("a", "b")])
    await asyncio.sleep(0.2)
    seen = [(each["call"], each["key"]) for each in play.subject.hooks]
    play.judge("bare keys", seen == [("hit", "k"), ("hit", "k"), ("all", "a"), ("all", "b")], seen)
    play.judge("with the prefix on the server", await server.run("EXISTS", "app:k") == 1)


@scenario("clients that leave at once hold nothing", "serve", "lease", quick=True)
async def left_at_once(play: Play) -> None:
    """An endpoint with two places. 60 clients send a request and leave, some before it is looked at: within 3 s nothing
    is held, it stays so, and two others get in."""
    server = await play.server()
    app = await play.app(server, lease(2, 60), "closed")
    for number in range(60):
        connection = Connection(app.port)
        await connection.open("/slow", x_key="k")
        await asyncio.sleep(number % 4 * 0.002)
        connection.close()
    await nothing_is_held(play, server)
    await asyncio.sleep(1)
    await nothing_is_held(play, server)
    answers = await asyncio.gather(app.get("/slow", x_key="k"), app.get("/slow", x_key="k"))
    play.judge("two others get in", [each.status for each in answers] == [200, 200], answers)


async def nothing_is_held(play: Play, server: Server) -> None:
    async def none() -> bool:
        return sum([await play.used(server, key, lease(2, 60)) for key in await server.run("KEYS", "*")]) == 0

    await play.comes_true("within 3 s nothing is held", none, 3)


@scenario("a long identity has a short key", "serve", "closed", quick=True)
async def long_identity(play: Play) -> None:
    """Of an identity of 8 kB the key is at most 1 kB, it is one limit, and another that begins alike has its own."""
    server = await play.server()
    app = await play.app(server, sliding("2/hour"), "closed")
    one, other = ("x" * 8000 + end for end in "ab")
    statuses = [(await app.get(x_key=key)).status for key in (one, one, one, other)]
    play.judge("2 of 3, and another", statuses == [200, 200, 429, 200], statuses)
    longest = max(map(len, await server.run("KEYS", "*")), default=0)
    play.judge("keys of at most 1 kB", 0 < longest <= 1024, longest)


@scenario("no password is told", "hit", quick=True)
async def passwords(play: Play) -> None:
    """Neither in an error nor in a log line: of a server that is away, that refuses the password, and of an URL that
    cannot be read."""
    server = await play.server()
    await server.run("ACL", "SETUSER", "default", "resetpass", ">other")
    for url in (
        "redis://:s3cret@127.0.0.1:1",
        f"redis://me:s3cret@127.0.0.1:{server.port}",
        "redis://:s3cret@127.0.0.1:x",
    ):
        told = await play.subject.call("limiter", name="l", connect={"url": url}, client=url, timeout=0.5)
        if told.outcome == "done":
            told = await play.subject.call("hit", limiter="l", key="k", rule=RULE)
        play.judge("it fails", told.outcome != "allowed", told)
        play.judge(f"no password, {told.outcome}", "s3cret" not in str(told), told)
    texts = [text for _, _, text in play.subject.logs if "s3cret" in text]
    play.judge("none in a log line", not texts, texts[:1])
