"""The subject of the Python package. ``threads``: each command in a thread of its own; ``asyncio``: each in a task.
``redis-py``: as threads, with the plain client library in the package's place.

The commands are written once: where the limiter is synchronous nothing is awaited, and a thread runs the coroutine to
its end in one step.
"""

from __future__ import annotations

import asyncio
import collections
import inspect
import json
import logging
import os
import sys
import threading
import time
from typing import Any

if os.environ.get("FAULTS_NO_FORK"):
    # As on Windows, before anything looks for them.
    del os.fork, os.register_at_fork

import redis
import redis.asyncio
from plain_redis_py import PlainLimiter, plain_options
from redis_rl import AsyncLimiter, Denied, Limiter, Refused, Unavailable, fixed, lease, sliding, throttle

ASYNC = sys.argv[1] == "asyncio"
PLAIN = sys.argv[1] == "redis-py"
CAN = "hit crowd burn close cluster sentinel loops pool".split()
OWN = (
    "peek all refund reset acquire release hold reserve lease-of-reserve settle wait turn each hook modes flood".split()
)
CAN += [] if PLAIN else OWN
CAN += ["cancel", "within", "event-loop"] if ASYNC else ["fork", "threads"]

started = time.monotonic()
lags: collections.deque[tuple[float, float]] = collections.deque(maxlen=10_000)
clients: dict[str, Any] = {}
limiters: dict[str, Any] = {}
reservations: dict[str, Any] = {}
under_way: dict[int, asyncio.Task[Any]] = {}
out = threading.Lock()


def tell(**fields: Any) -> None:
    with out:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


class Logs(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell(log=record.levelname.lower(), text=record.getMessage())


async def now(value: Any) -> Any:
    """What an asynchronous call answers, or what a synchronous one has answered."""
    return await value if inspect.isawaitable(value) else value


async def pause(seconds: float) -> None:
    if ASYNC:
        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)


def rule_of(described: dict[str, Any]) -> Any:
    options = dict(described)
    kind = options.pop("kind")
    if kind in ("sliding", "fixed"):
        return {"sliding": sliding, "fixed": fixed}[kind](*options.pop("rates"), **options)
    if kind == "throttle":
        return throttle(options.pop("rate"), **options)
    return lease(options.pop("limit"), options.pop("ttl"), **options)


def client_of(connect: dict[str, Any], timeout: float, asynchronous: bool = ASYNC) -> Any:
    library: Any = redis.asyncio if asynchronous else redis
    # The package has a deadline whatever the client's options are; the plain client is given what it has for it.
    options = plain_options(timeout) if PLAIN else {}
    if "cluster" in connect:
        nodes = [each.rsplit(":", 1) for each in connect["cluster"]]
        node = library.cluster.ClusterNode
        return library.RedisCluster(startup_nodes=[node(host, int(port)) for host, port in nodes], **options)
    if "sentinel" in connect:
        hosts = [(each.rsplit(":", 1)[0], int(each.rsplit(":", 1)[1])) for each in connect["sentinel"]]
        return library.sentinel.Sentinel(hosts).master_for(connect["service"], **options)
    return library.Redis.from_url(connect["url"], **options)


def lag_since(began: float) -> float:
    """How late the timer was since then, at worst: now counts, too."""
    late = [lag for at, lag in list(lags) if at >= began]
    return max([*late, 0.0]) * 1000


async def measure() -> None:
    while True:
        began = time.monotonic()
        await pause(0.01)
        lags.append((time.monotonic(), time.monotonic() - began - 0.01))


async def outcome_of(call: Any, limiter: Any) -> dict[str, Any]:
    """How a call ended, in the words of the protocol."""
    began = time.monotonic()
    told: dict[str, Any] = {}
    try:
        told = (await call()) or {"outcome": "done"}
    except asyncio.CancelledError:
        told = {"outcome": "gave_up"}
    except Denied as denied:
        told = {"outcome": "denied", **answer(denied.result)}
    except (ValueError, TypeError) as error:
        told = {"outcome": "argument", "error": f"{type(error).__name__}: {error}"}
    except Exception as error:
        if isinstance(error, Unavailable) or (PLAIN and limiter is not None and limiter.is_unavailable(error)):
            outcome = "unavailable"
        elif isinstance(error, Refused | redis.RedisError):
            outcome = "permanent"
        else:
            outcome = "bug"
        told = {"outcome": outcome, "error": f"{type(error).__name__}: {error}"}
    return {**told, "ms": (time.monotonic() - began) * 1000, "lag_ms": lag_since(began)}


def answer(result: Any) -> dict[str, Any]:
    retry = result.retry_after_ms
    told = {"outcome": "allowed" if result.allowed else "denied", "remaining": result.remaining, "retry_ms": retry}
    for name in ("limit", "used", "at_ms", "wait_ms"):
        if hasattr(result, name):
            told[name] = getattr(result, name)
    if getattr(result, "holder", None):
        told["holder"] = result.holder
    return told


async def decide(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    key, rule = c["key"], rule_of(c["rule"])
    options = {name: c[name] for name in ("cost", "force") if name in c}
    if c["do"] == "wait":
        options["timeout"] = c.get("timeout")
    if c["do"] == "turn":
        options["within"] = c["ahead"]
    if c["do"] == "acquire":
        options = {"holder": c.get("holder")}
    return answer(await now(getattr(limiter, c["do"])(key, rule, **options)))


async def change(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    if c["do"] == "release":
        return {"outcome": "done", "count": await now(limiter.release(c["key"], c["holder"]))}
    if c["do"] == "reset":
        return {"outcome": "done", "count": await now(limiter.reset(c["key"], rule_of(c["rule"])))}
    refunded = await now(limiter.refund(c["key"], rule_of(c["rule"]), cost=c.get("cost"), at_ms=c.get("at_ms")))
    return {"outcome": "done", "count": refunded.refunded}


async def together(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    return answer(await now(limiter.all([(each["key"], rule_of(each["rule"])) for each in c["rules"]])))


async def hold(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    """Works for some seconds with a lease; tells when it has it, and when it is lost."""
    block = limiter.hold(c["key"], rule_of(c["rule"]), timeout=c.get("timeout", 0.0))
    held = await now(block.__aenter__() if ASYNC else block.__enter__())
    kinds: tuple[Any, ...] = (None, None, None)
    lost_after = None
    try:
        tell(id=c["id"], event="held")
        began = time.monotonic()
        while (passed := time.monotonic() - began) < c.get("seconds", 0):
            if held.lost and lost_after is None:
                lost_after = passed * 1000
                tell(id=c["id"], event="lost")
            await pause(min(0.02, c["seconds"] - passed))
    except BaseException:
        kinds = sys.exc_info()
        raise
    finally:
        await now(block.__aexit__(*kinds) if ASYNC else block.__exit__(*kinds))
    return {"outcome": "allowed", "lost_after_ms": lost_after}


async def reserve(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    options = {"lease": c["lease"]} if "lease" in c else {}
    made = await now(limiter.reserve(c["key"], rule_of(c["rule"]), c["units"], **options))
    reservations[c.get("as", "")] = made
    return answer(made.result)


async def settle(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    confirmed = await now(reservations[c.get("of", "")].settle(c["units"]))
    return {"outcome": "done" if confirmed else "unavailable"}


def crowded(replies: list[dict[str, Any]], began: float) -> dict[str, Any]:
    errors = collections.Counter(reply["error"] for reply in replies if "error" in reply)
    return {
        "outcome": "done",
        "outcomes": dict(collections.Counter(reply["outcome"] for reply in replies)),
        "errors": dict(errors.most_common(5)),
        "slowest_ms": max(reply["ms"] for reply in replies),
    }


async def crowd(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    """``n`` hits at once."""
    began = time.monotonic()

    each: list[dict[str, Any]] = [{} for _ in range(c["n"])]

    async def one(number: int) -> dict[str, Any]:
        asked = time.time() * 1000
        reply = await within(limiter, {**c, "do": c.get("call", "hit")})
        ended = time.time() * 1000
        told = {name: reply.get(name) for name in ("outcome", "at_ms", "wait_ms")}
        each[number] = {**told, "asked_ms": asked, "ended_ms": ended}
        return reply

    replies: list[dict[str, Any]] = []
    if ASYNC:
        tasks = []
        for number in range(c["n"]):
            if "pause" in c:
                await pause(began + number * c["pause"] - time.monotonic())
            tasks.append(asyncio.create_task(one(number)))
        replies = list(await asyncio.gather(*tasks))
    else:
        threads = [
            threading.Thread(target=lambda number=number: replies.append(step(one(number)))) for number in range(c["n"])
        ]
        for number, thread in enumerate(threads):
            if "pause" in c:
                time.sleep(max(began + number * c["pause"] - time.monotonic(), 0))
            thread.start()
        for thread in threads:
            thread.join()
    return crowded(replies, began) | ({"each": each} if c.get("each") else {})


async def flood(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    """A hit at each of ``n`` keys, 16 at a time; the keys are made as long as ``pad``."""
    began, replies, left = time.monotonic(), [], iter(range(c["n"]))

    async def some() -> None:
        for number in left:
            key = f"{c['key']}{number}".ljust(c["pad"], "x")
            replies.append(await within(limiter, {**c, "do": "hit", "key": key}))

    if ASYNC:
        await asyncio.gather(*(some() for _ in range(16)))
    else:
        await some()
    return crowded(replies, began)


async def burn(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    """Computes: in threads, or where the calls are made, which is the event loop."""

    begin = threading.Event()

    def compute() -> None:
        begin.wait()
        until = time.monotonic() + c["ms"] / 1000
        while time.monotonic() < until:
            sum(number for number in range(1000))

    threads = [threading.Thread(target=compute, daemon=True) for _ in range(c.get("threads", 0))]
    for thread in threads:
        thread.start()
    tell(id=c["id"], event="burning")
    begin.set()
    if not threads:
        compute()
    while any(thread.is_alive() for thread in threads):
        await pause(0.02)
    return {"outcome": "done"}


async def fork(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    """Forks, and lets the child make ``n`` calls at once."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # The parent's lock for the output may be held by a thread that is not here.
        logging.disable()
        replies: list[dict[str, Any]] = []
        one = {**c, "do": "hit"}
        threads = [threading.Thread(target=lambda: replies.append(step(within(limiter, one)))) for _ in range(c["n"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.write(write, json.dumps(crowded(replies, 0)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"outcome": "died", "error": "the child said nothing"}


async def loops(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    """A crowd in each of several threads at once, with asyncio in an event loop of its own."""
    replies: list[dict[str, Any]] = []

    def one() -> None:
        replies.append(asyncio.run(crowd(limiter, c)) if ASYNC else step(crowd(limiter, c)))

    threads = [threading.Thread(target=one) for _ in range(c["loops"])]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await pause(0.02)
    total: collections.Counter[str] = collections.Counter()
    errors: dict[str, int] = {}
    for reply in replies:
        total.update(reply["outcomes"])
        errors |= reply["errors"]
    slowest = max((reply["slowest_ms"] for reply in replies), default=0)
    return {"outcome": "done", "outcomes": dict(total), "errors": errors, "slowest_ms": slowest}


async def close(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    await now(limiter.aclose() if ASYNC else limiter.close())
    return {"outcome": "done"}


def overheard(event: Any) -> None:
    for key in event.keys:
        tell(hook={"call": event.call, "key": key})


async def make(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    name = c["client"]
    if name not in clients:
        clients[name] = client_of(c["connect"], c["timeout"])
    options = {key: c[key] for key in ("prefix", "mode", "timeout") if key in c}
    if c.get("hook"):
        options["hook"] = overheard
    kind: Any = AsyncLimiter if ASYNC else PlainLimiter if PLAIN else Limiter
    limiters[c["name"]] = kind(clients[name], name=c["name"], **options)
    return {"outcome": "done"}


async def stats(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    return {"outcome": "done", "threads": threading.active_count()}


COMMANDS: dict[str, Any] = {
    "limiter": make, "hit": decide, "peek": decide, "wait": decide, "turn": decide, "acquire": decide, "all": together,
    "refund": change, "reset": change, "release": change, "hold": hold, "reserve": reserve, "settle": settle,
    "crowd": crowd, "flood": flood, "burn": burn, "fork": fork, "loops": loops, "close": close, "stats": stats,
}  # fmt: skip


async def within(limiter: Any, c: dict[str, Any]) -> dict[str, Any]:
    """A command, given up by its caller after ``within`` seconds where it says so."""
    command = COMMANDS[c["do"]]

    async def call() -> Any:
        if "within" not in c:
            return await command(limiter, c)
        try:
            return await asyncio.wait_for(command(limiter, c), c["within"])
        except TimeoutError as error:
            # Of asyncio, and none of redis-py's, whose classes are others.
            if type(error) is TimeoutError:
                return {"outcome": "gave_up"}
            raise

    return await outcome_of(call, limiter)


def step(coroutine: Any) -> Any:
    """Runs a coroutine that awaits nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a synchronous call has awaited something")


async def command(c: dict[str, Any]) -> None:
    limiter = limiters.get(c.get("limiter", ""))
    tell(id=c["id"], **await within(limiter, c))


def ended(task: asyncio.Task[None], number: int) -> None:
    under_way.pop(number, None)
    if task.cancelled():
        # Before its first step.
        tell(id=number, outcome="gave_up")


async def main_async() -> None:
    tell(can=CAN)
    measuring = asyncio.create_task(measure())
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        c = json.loads(line)
        if c["do"] == "cancel":
            if task := under_way.get(c["of"]):
                task.cancel()
            tell(id=c["id"], outcome="done")
            continue
        task = asyncio.create_task(command(c))
        under_way[c["id"]] = task
        task.add_done_callback(lambda task, number=c["id"]: ended(task, number))
    measuring.cancel()


def main_threads(can: list[str] = CAN) -> None:
    tell(can=can)
    threading.Thread(target=lambda: step(measure()), daemon=True).start()
    for line in sys.stdin:
        threading.Thread(target=lambda c: step(command(c)), args=(json.loads(line),), daemon=True).start()


def overhear() -> None:
    logging.getLogger("redis_rl").addHandler(Logs())
    logging.getLogger("redis_rl").setLevel(logging.INFO)


if __name__ == "__main__":
    overhear()
    asyncio.run(main_async()) if ASYNC else main_threads()
