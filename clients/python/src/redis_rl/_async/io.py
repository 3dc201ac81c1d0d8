"""Connections, deadlines and background work for asyncio. `_sync.io` has the same for threads."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from .._client import MOST_AT_ONCE, Client, reader, writer
from .._protocol import Command, Errors
from .._rules import Word

Answer = TypeVar("Answer")

IS_ASYNC = True

# When a deadline is over, the loop gets these turns, and each this long, to read the replies that have arrived.
_TURNS = 10
_TURN = 0.001
# A timer that is called as late as this shows that the loop was busy with something else.
_BUSY = 0.02


class AnyClient(Protocol):
    """A client of redis.asyncio or valkey.asyncio, for one server or a cluster."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class Deadline:
    """The time by which what is awaited in this block must end."""

    def __init__(self, seconds: float, errors: Errors) -> None:
        self._seconds = seconds
        self._errors = errors
        self._at = time.monotonic() + seconds
        self._timer: asyncio.TimerHandle

    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(self._at - time.monotonic(), 0.0)

    async def __aenter__(self) -> Deadline:
        self._scope = asyncio.timeout(None)
        await self._scope.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._seconds, self._due)
        return self

    def _due(self) -> None:
        # A deadline judges the server: a call that the loop had no time for gets that time again, once.
        late = self._loop.time() - self._timer.when()
        if late > _BUSY:
            self._at += late
            self._timer = self._loop.call_later(min(late, self._seconds), self._over, _TURNS)
        else:
            self._over(_TURNS)

    def _over(self, turns: int) -> None:
        if turns:
            self._timer = self._loop.call_later(_TURN, self._over, turns - 1)
        else:
            self._scope.reschedule(self._loop.time())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._errors.timeout("the server has not answered in time") from error


class Flight(Generic[Answer]):
    """Something that is done once, in the background, for all who want it."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, Answer]], errors: Errors) -> None:
        self._task = asyncio.create_task(call())
        # Its error is not reported as one that nobody has seen.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def is_current(self) -> bool:
        """Whether it belongs to the running loop: tests have one after the other."""
        return self._task.get_loop() is asyncio.get_running_loop()

    async def result(self) -> Answer:
        """Waits for it, until the caller's deadline at most."""
        return await asyncio.shield(self._task)

    async def end(self, seconds: float) -> None:
        """Waits until it has ended in some way, for this long at most."""
        await asyncio.wait([self._task], timeout=seconds)


class Connections:
    """Sends commands through a client that is derived from the user's, or through the user's own."""

    def __init__(self, client: Client, timeout: float, reconnected: Callable[[], object]) -> None:
        self._errors = client.errors
        self._is_cluster = client.is_cluster
        self._client = client
        self._timeout = timeout
        self._reconnected = reconnected
        self._own: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gate: AbstractAsyncContextManager[object] = nullcontext()
        self.client: Any = client.client

    @property
    def gate(self) -> AbstractAsyncContextManager[object]:
        """Held by each call that is under way, so that a crowd does not open as many connections."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # At first, and in tests, which have one loop after the other: connections belong to a loop.
            self._loop = loop
            self._open()
        return self._gate

    def _open(self) -> None:
        client = self._client
        # The deadline is kept by `Deadline`; the time-outs are for what it has left behind.
        patience = 2 * self._timeout + 1
        self._own = client.derive(socket_timeout=patience, socket_connect_timeout=patience)
        self.client = self._own or client.client
        if self._own is not None:
            self._gate = asyncio.Semaphore(client.most_at_once)
            watch(self._own.connection_pool, f"{client.library}_connect_func", self._reconnected)
        elif self._is_cluster:
            self._gate = asyncio.Semaphore(MOST_AT_ONCE)

    async def send(self, command: Command, words: Sequence[Word], place: list[Any]) -> Any:
        """Sends a command to the server that has its key, which in a cluster is the node in ``place`` or put there."""
        client = self.client
        if not self._is_cluster:
            return await client.execute_command(*words)
        await client.initialize()
        # To a node that it was given, a cluster client does not send again.
        if not place:
            place.append((reader if words[0] in READS else writer)(client, command.keys[0]))
        return await client.execute_command(*words, target_nodes=place[0])

    def place_of(self, key: str | bytes) -> str:
        """The name of the cluster's node that has the key, ``""`` if it is not known or there is no cluster."""
        if not self._is_cluster:
            return ""
        try:
            return str(writer(self.client, key).name)
        except Exception:
            # The nodes are not known yet.
            return ""

    async def everywhere(self, *words: Word) -> list[Any]:
        """Sends a command to each primary. Returns their replies, and errors that are replies."""
        if not self._is_cluster:
            return [await self._reply(*words)]
        await self.client.initialize()
        return [await self._reply(*words, target_nodes=node) for node in self.client.get_primaries()]

    async def _reply(self, *words: Word, **options: Any) -> Any:
        try:
            return await self.client.execute_command(*words, **options)
        except self._errors.response as error:
            return error

    async def aclose(self) -> None:
        """Closes the connections of our own."""
        if self._own is not None:
            await self._own.connection_pool.disconnect()


READS = ("RL.PEEK", "FCALL_RO", "EVALSHA_RO", "EVAL_RO")
"""What replicas answer, too."""


def watch(pool: Any, option: str, reconnected: Callable[[], object]) -> None:
    """Has it called when a connection of the pool, or one in place of a broken one, is opened again."""
    seen: weakref.WeakSet[Any] = weakref.WeakSet()
    own = pool.connection_kwargs.get(option)

    async def opened(connection: Any) -> None:
        if own is None:
            await connection.on_connect()
        else:
            done = own(connection)
            if asyncio.iscoroutine(done):
                await done
        if connection in seen:
            reconnected()
        seen.add(connection)

    pool.connection_kwargs[option] = opened


async def sleep(seconds: float) -> None:
    """Waits."""
    await asyncio.sleep(seconds)


class Keeper:
    """Renews a lease in the background, and notices when it ends."""

    def __init__(self, renew: Callable[[], Awaitable[float | None]], every: float, ends: float) -> None:
        """``renew`` returns the monotonic time at which the lease now ends, or None if it was lost."""
        self.lost = asyncio.Event()
        self.ends = ends
        self._renew = renew
        self._every = every
        self._done = asyncio.Event()
        self._task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        renew_at = time.monotonic() + self._every
        renewing: asyncio.Task[float | None] | None = None
        while not self._done.is_set():
            now = time.monotonic()
            if now >= self.ends:
                self.lost.set()
                break
            if renewing is None and now >= renew_at:
                renew_at = now + self._every
                renewing = asyncio.ensure_future(self._renew())
            until = self.ends if renewing else min(renew_at, self.ends)
            done = asyncio.ensure_future(self._done.wait())
            try:
                waited = [done, renewing] if renewing else [done]
                await asyncio.wait(waited, timeout=until - now, return_when=asyncio.FIRST_COMPLETED)
            finally:
                done.cancel()
            if renewing is not None and renewing.done():
                ends = renewing.result()
                renewing = None
                if ends is None:
                    self.lost.set()
                    break
                self.ends = ends
        if renewing is not None:
            await renewing

    async def stop(self) -> None:
        """Ends renewing. A renewal that is under way is waited for, as it would take the lease again."""
        self._done.set()
        await self._task
