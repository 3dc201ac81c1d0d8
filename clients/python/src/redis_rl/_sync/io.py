"""Connections, deadlines and background work for threads. `_async.io` has the same for asyncio."""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from .._client import MOST_AT_ONCE, Client, reader, writer
from .._protocol import Command, Errors
from .._rules import Word

Answer = TypeVar("Answer")

IS_ASYNC = False


class AnyClient(Protocol):
    """A client of redis-py or valkey-py: Redis, RedisCluster, Valkey or ValkeyCluster."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class Deadline:
    """The time by which what a thread does in this block must end. Connections that are derived obey it."""

    _of_thread = threading.local()

    def __init__(self, seconds: float, errors: Errors) -> None:
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(self._at - time.monotonic(), 0.0)

    @classmethod
    def of_thread(cls) -> Deadline | None:
        """The deadline of the block in which the thread is."""
        return getattr(cls._of_thread, "deadline", None)

    def __enter__(self) -> Deadline:
        self._of_thread.deadline = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._of_thread.deadline = None


class Helpers:
    """Threads that do what may take longer than a caller can wait. They are kept, and end with the process."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def start(self, call: Callable[[], Answer]) -> Future[Answer]:
        """Has a thread make the call, in the caller's context, as tracing wants it."""
        future: Future[Answer] = Future()
        context = contextvars.copy_context()

        def job() -> None:
            try:
                future.set_result(context.run(call))
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(job)
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="redis-rl", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            self._idle.release()


helpers = Helpers()


def _after_fork() -> None:
    # The threads have stayed in the other process.
    helpers.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)


def finish(future: Future[Answer], errors: Errors) -> Answer:
    """The future's result, or a time-out at the thread's deadline."""
    deadline = Deadline.of_thread()
    try:
        return future.result(None if deadline is None else deadline.left())
    except TimeoutError:
        if future.done():
            raise
        raise errors.timeout("the server has not answered in time") from None


class Flight(Generic[Answer]):
    """Something that is done once, in the background, for all who want it."""

    def __init__(self, call: Callable[[], Answer], errors: Errors) -> None:
        self._future = helpers.start(call)
        self._errors = errors
        self._process = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether it belongs to this process: a fork has none of the threads of the other one."""
        return self._process == os.getpid()

    def result(self) -> Answer:
        """Waits for it, until the caller's deadline at most."""
        return finish(self._future, self._errors)

    def end(self, seconds: float) -> None:
        """Waits until it has ended in some way, for this long at most."""
        wait([self._future], timeout=seconds)


def obedient(errors: Errors, reconnected: Callable[[], object]) -> Callable[[Any], Any]:
    """Makes of a class of connections one that obeys the deadline of the thread that uses it."""

    def make(base: Any) -> Any:
        class Obedient(base):  # type: ignore[misc]
            """A connection that obeys the deadline of the thread that uses it."""

            _opening: Future[None] | None = None
            _is_open = False
            _was_open = False

            def connect(self) -> None:
                # Finding the address, connecting and the handshake are several steps, some without a time-out.
                if self._is_open or Deadline.of_thread() is None:
                    super().connect()
                    return
                opening = self._opening
                if opening is None:
                    opening = self._opening = helpers.start(self._open)
                finish(opening, errors)

            def _open(self) -> None:
                try:
                    super().connect()
                    self._is_open = True
                finally:
                    self._opening = None
                if self._was_open:
                    reconnected()
                self._was_open = True

            def disconnect(self, *args: Any, **options: Any) -> None:
                self._is_open = False
                super().disconnect(*args, **options)

            def read_response(self, *args: Any, **options: Any) -> Any:
                deadline = Deadline.of_thread()
                if deadline is not None:
                    left = deadline.left()
                    # Else the socket's own time-out will do.
                    if left < 0.9 * self.socket_timeout and not self.can_read(timeout=left):
                        self.disconnect()
                        raise errors.timeout("the server has not answered in time")
                return super().read_response(*args, **options)

        return Obedient

    return make


class Connections:
    """Sends commands through a client that is derived from the user's, or through the user's own."""

    def __init__(self, client: Client, timeout: float, reconnected: Callable[[], object]) -> None:
        self._errors = client.errors
        self._is_cluster = client.is_cluster
        own = client.derive(
            obedient(client.errors, reconnected), socket_timeout=timeout, socket_connect_timeout=timeout
        )
        self._own = own
        self.client = own or client.client
        self.gate: AbstractContextManager[object] = nullcontext()
        """Held by each call that is under way, so that a crowd does not open as many connections."""
        if own is not None:
            self.gate = threading.BoundedSemaphore(client.most_at_once)
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)

    def send(self, command: Command, words: Sequence[Word], place: list[Any]) -> Any:
        """Sends a command to the server that has its key, which in a cluster is the node in ``place`` or put there."""
        if not self._is_cluster:
            return self.client.execute_command(*words)
        client, key = self.client, command.keys[0]

        def call() -> Any:
            # To a node that it was given, a cluster client does not send again.
            if not place:
                place.append((reader if words[0] in READS else writer)(client, key))
            return client.execute_command(*words, target_nodes=place[0])

        return self._in_helper(call)

    def place_of(self, key: str | bytes) -> str:
        """The name of the cluster's node that has the key, ``""`` if it is not known or there is no cluster."""
        if not self._is_cluster:
            return ""
        try:
            return str(writer(self.client, key).name)
        except Exception:
            # The nodes are not known yet.
            return ""

    def everywhere(self, *words: Word) -> list[Any]:
        """Sends a command to each primary. Returns their replies, and errors that are replies."""
        client = self.client
        if not self._is_cluster:
            return [self._reply(*words)]

        def call() -> list[Any]:
            return [self._reply(*words, target_nodes=node) for node in client.get_primaries()]

        return self._in_helper(call)

    def _reply(self, *words: Word, **options: Any) -> Any:
        try:
            return self.client.execute_command(*words, **options)
        except self._errors.response as error:
            return error

    def _in_helper(self, call: Callable[[], Answer]) -> Answer:
        """A cluster client makes several steps, so that a helper makes them, which can be left behind."""
        deadline = Deadline.of_thread()
        if not self._places.acquire(timeout=None if deadline is None else deadline.left()):
            raise self._errors.timeout("the server has not answered in time")

        def placed() -> Answer:
            try:
                return call()
            finally:
                self._places.release()

        return finish(helpers.start(placed), self._errors)

    def close(self) -> None:
        """Closes the connections of our own."""
        if self._own is not None:
            self._own.connection_pool.disconnect()


READS = ("RL.PEEK", "FCALL_RO", "EVALSHA_RO", "EVAL_RO")
"""What replicas answer, too."""


def sleep(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


class Keeper:
    """Renews a lease in the background, and notices when it ends."""

    def __init__(self, renew: Callable[[], float | None], every: float, ends: float) -> None:
        """``renew`` returns the monotonic time at which the lease now ends, or None if it was lost."""
        self.lost = threading.Event()
        self.ends = ends
        self._renew = renew
        self._every = every
        self._done = threading.Event()
        self._renewing: Future[float | None] | None = None
        self._thread = threading.Thread(target=self._keep, name="redis-rl lease", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        renew_at = time.monotonic() + self._every
        while not self._done.wait(max(min(renew_at, self.ends) - time.monotonic(), 0)):
            now = time.monotonic()
            if now >= self.ends:
                self.lost.set()
                return
            if now < renew_at:
                continue
            renew_at = now + self._every
            # By a helper, as the lease may end before the server answers.
            self._renewing = helpers.start(self._renew)
            try:
                ends = self._renewing.result(max(self.ends - time.monotonic(), 0))
            except TimeoutError:
                continue
            if ends is None:
                self.lost.set()
                return
            self.ends = ends

    def stop(self) -> None:
        """Ends renewing. A renewal that is under way is waited for, as it would take the lease again."""
        self._done.set()
        self._thread.join()
        if self._renewing is not None:
            self._renewing.exception()
