"""Connections, deadlines and background work for asyncio. `_sync.io` has the same for threads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Self, TypeVar, cast

from .._protocol import Errors, log
from .._rules import Rule

Answer = TypeVar("Answer")

Identity = str | bytes | None
AsyncKeyOf = Callable[[Any], Identity | Awaitable[Identity]]
AsyncRuleOf = Rule | Callable[[Any], Rule | Awaitable[Rule | None] | None]

concurrency = asyncio
IS_ASYNC = True
MOST_CONNECTIONS = 32
"""To a server. Further calls wait for one of these to end."""

# A deadline is counted in ticks.
_TICKS = 10
# A tick that ends late by another tick does not count: the loop was busy. Nor does a tick in which other calls were
# answered at this rate while this call waits for its turn: then the server is not what is slow. At most _UNCOUNTED
# ticks are left out.
_FAST = 200
"""Answers a second."""
_UNCOUNTED = 40


class Limit:
    """Ends what is awaited in this block after some seconds, by a TimeoutError.

    As `asyncio.timeout`, which up to Python 3.11.2 ends nothing in a task that was cancelled before and cleans up.
    """

    def __init__(self, seconds: float) -> None:
        self._tick = seconds

    async def __aenter__(self) -> Self:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._before = self._task.cancelling()
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._timer: Any = self._loop.call_later(self._tick, self._ticked)
        return self

    def _ticked(self) -> None:
        self._is_over = True
        self._task.cancel()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._timer.cancel()
        # Where the task was cancelled meanwhile, that matters more.
        if self._is_over and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error


class Deadline(Limit):
    """The time by which what is awaited in this block must end.

    It judges the server and not the process: time that the loop was busy with something else does not count.
    """

    def __init__(self, seconds: float, errors: Errors) -> None:
        self._errors = errors
        self.least = seconds / _TICKS
        """What a step has in any case."""
        super().__init__(min(seconds, max(self.least, 0.005)))
        self._ticks = round(seconds / self._tick)
        self._uncounted = _UNCOUNTED
        self._at = time.monotonic() + seconds
        self.queue: Gate | None = None
        """Where the call waits for its turn."""
        self._seen = 0

    def left(self) -> float:
        return max(self._at - time.monotonic(), 0.0)

    def _ticked(self) -> None:
        now = self._loop.time()
        answers = self.queue.answers if self.queue is not None else 0
        moves = answers - self._seen > self._tick * _FAST
        self._seen = answers
        if (moves or now - self._timer.when() > self._tick) and self._uncounted:
            self._uncounted -= 1
            self._at += self._tick
        else:
            self._ticks -= 1
        if self._ticks > 0:
            self._timer = self._loop.call_later(self._tick, self._ticked)
        else:
            # In the loop's next turn, in which an answer that has arrived is read before.
            self._timer = self._loop.call_soon(super()._ticked)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._errors.timeout("the server has not answered in time") from error


class Gate:
    """The places for calls to a server. Without it, a crowd of requests would open as many connections."""

    def __init__(self, places: int, errors: Errors, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """``close``: closes the connections, which has to be done before the loop is closed."""
        self.answers = 0
        """How many calls have been answered."""
        self.places = asyncio.Semaphore(places)
        # Before a loop is closed it ends its asynchronous generators, as asyncio.run and servers do, and so this one.
        self._life = _until_the_loop_ends(close)
        with contextlib.suppress(StopIteration):
            self._life.__anext__().send(None)

    def place(self, deadline: Deadline) -> Place:
        return Place(self, deadline)


class Place:
    """Held by each call that is under way."""

    # No asynchronous generator, which cannot begin any more where the loop ends.
    def __init__(self, gate: Gate, deadline: Deadline) -> None:
        self._gate = gate
        self._deadline = deadline

    async def __aenter__(self) -> None:
        self._deadline.queue = self._gate
        await self._gate.places.acquire()
        self._deadline.queue = None

    async def __aexit__(self, *_: object) -> None:
        self._gate.places.release()


async def _until_the_loop_ends(close: Callable[[], Coroutine[Any, Any, object]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        # What cancelled callers have taken is given back before.
        await ended(1.0)
        # With the loop gone, only the garbage collector would close them.
        with contextlib.suppress(Exception):
            async with Limit(1.0):
                await close()


INTERRUPTS: tuple[type[BaseException], ...] = ()
"""What may end a call before its answer is read, and leave the connection as it is: the library sees to tasks."""


def obedient(base: Any) -> Any:
    class Obedient(base):  # type: ignore[misc]
        """A connection without time-outs of its own: a call ends at its deadline, and its connection with it."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.socket_timeout = None
            # Also the time-out of closing.
            self.socket_connect_timeout = 60.0

    return Obedient


sleep = asyncio.sleep
here = asyncio.get_running_loop
"""What connections belong to: the loop."""


def is_gone(place: asyncio.AbstractEventLoop) -> bool:
    """Whether what belongs there can no longer be used."""
    return place.is_closed()


async def given(value: Answer | Awaitable[Answer]) -> Answer:
    """What a function of the user's returns, which may be asynchronous."""
    found: Any = value
    return await found if inspect.isawaitable(found) else found  # type: ignore[no-any-return]


class Steady(asyncio.Task[Answer]):
    """A task that goes on where all are cancelled from outside of the loop, as at the end of ``asyncio.run``."""

    def cancel(self, msg: Any = None) -> bool:
        return asyncio._get_running_loop() is not None and super().cancel(msg)


_tasks: set[asyncio.Task[Any]] = set()


def background(call: Callable[[], Coroutine[Any, Any, Answer]]) -> asyncio.Task[Answer]:
    """Makes a call while the caller goes on."""
    task = Steady(call(), loop=here())
    _tasks.add(task)

    def end(task: asyncio.Task[Answer]) -> None:
        _tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.info("in the background: %s", task.exception())

    task.add_done_callback(end)
    return task


afterwards = background
"""Makes a call for a caller that goes away, and does not wait for it."""


async def ended(seconds: float) -> None:
    """Waits for what was begun in the background of this loop, for this long at most."""
    tasks = [task for task in tuple(_tasks) if task.get_loop() is here() and task is not asyncio.current_task()]
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


async def finished(call: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Makes a call to its end, also when the caller is cancelled meanwhile."""
    await asyncio.shield(background(call))


async def carried_out(
    call: Callable[[], Coroutine[Any, Any, Answer]], undo: Callable[[Answer | None], Coroutine[Any, Any, object]]
) -> Answer:
    """Makes a call to its end. When the caller is cancelled meanwhile, what it has done is undone.

    ``undo`` is given the answer, None where it is not known.
    """
    task = Steady(call(), loop=here())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:

        async def undone() -> None:
            (answer,) = await asyncio.gather(task, return_exceptions=True)
            await undo(None if isinstance(answer, BaseException) else answer)

        background(undone)
        raise


async def within(seconds: float, call: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
    """Waits for a lock or an event, for this long at most. Returns whether it has come."""
    try:
        async with Limit(seconds):
            return await call()
    except TimeoutError:
        return False


def begun(call: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
    return asyncio.create_task(call())


async def over(work: asyncio.Task[None] | None) -> None:
    """Waits for its end, also where it was cancelled, as all tasks are at the end of ``asyncio.run``."""
    if work is not None:
        await asyncio.wait([work])
