"""Connections, deadlines and background work for threads. `_async.io` describes what both have."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from .._protocol import Error, Errors, log
from .._rules import Rule

Answer = TypeVar("Answer")

KeyOf = Callable[[Any], str | bytes | None]
RuleOf = Rule | Callable[[Any], Rule | None]

# What is made of these is looked up when it is made, as gevent may replace it after the import.
concurrency = threading
IS_ASYNC = False
MOST_CONNECTIONS = 100
"""To a server. Further threads wait for one of these, within their deadlines."""


# A command of this many bytes goes into the socket's buffer at once.
_AT_ONCE = 4096
# Seconds in which that is done, unless other threads keep the interpreter for so long.
_LATE = 0.005


class Deadline:
    """The time by which what is called in this block must end. The sockets of derived connections have what is left.

    It judges the server and not the process: an answer that is there is read, however late. Where little is left
    because the thread was not run, it still waits a moment for the answer to what it has just sent: each time that
    sending itself was late, as the interpreter was busy with other threads, and twice more.
    """

    _current: ContextVar[Deadline | None] = ContextVar("redis_rl_deadline", default=None)

    def __init__(self, seconds: float, errors: Errors) -> None:
        self._at = time.monotonic() + seconds
        self.least = min(seconds / 4, 0.1)
        """What a step has that the process, and not the server, has made late."""
        self._spare = 2

    def left(self) -> float:
        return max(self._at - time.monotonic(), 0.0)

    @classmethod
    def for_socket(cls, *, asks: bool = True, late: bool = False) -> float:
        """The time-out of a socket's next operation. ``late``: the one before it was, though it waits for nobody."""
        deadline = cls._current.get()
        if deadline is None:
            # Outside of a call, as where connections are closed.
            return 60.0
        left = deadline.left()
        # The rest of an answer that comes in parts has no time of its own.
        if left > deadline.least or not asks or not (late or deadline._spare):
            return max(left, 0.001)
        deadline._spare -= not late
        return deadline.least

    def __enter__(self) -> Deadline:
        self._before = self._current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._current.reset(self._before)


class Socket:
    """A socket of which each operation has what is left of the deadline."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self._polls = False
        self._has_asked = True
        self._late = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def settimeout(self, seconds: float | None) -> None:
        """0 looks for what is there; any other time-out is the deadline's."""
        self._polls = seconds == 0

    def sendall(self, data: Any) -> None:
        self._plain.settimeout(60.0 if len(data) < _AT_ONCE else Deadline.for_socket())
        began = time.monotonic()
        self._plain.sendall(data)
        self._has_asked, self._late = True, time.monotonic() - began > _LATE

    def recv(self, *args: Any) -> Any:
        self._plain.settimeout(self._left())
        return self._plain.recv(*args)

    def recv_into(self, *args: Any) -> Any:
        self._plain.settimeout(self._left())
        return self._plain.recv_into(*args)

    def _left(self) -> float:
        if self._polls:
            return 0.0
        asks, self._has_asked = self._has_asked, False
        return Deadline.for_socket(asks=asks, late=self._late)


class Gate:
    def __init__(self, places: int, errors: Errors, close: object) -> None:
        self.answers = 0
        self._errors = errors
        # A library's blocking pool has locks that stay locked where a signal handler raises, or calls the limiter.
        self._places: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(places):
            self._places.put(None)

    @contextmanager
    def place(self, deadline: Deadline) -> Iterator[None]:
        try:
            self._places.get(timeout=deadline.left())
        except queue.Empty:
            raise self._errors.connection("No connection available.") from None
        try:
            yield
        finally:
            self._places.put(None)


# As by the handler of a signal, which may raise what it wants.
INTERRUPTS = (BaseException,)


def obedient(base: Any) -> Any:
    class Obedient(base):  # type: ignore[misc]
        """A connection that obeys the deadline of the thread that uses it."""

        # An address that does not answer leaves time for another one of the same name.
        socket_connect_timeout = property(lambda self: Deadline.for_socket() / 2, lambda self, value: None)
        socket_timeout = property(lambda self: Deadline.for_socket(asks=False), lambda self, value: None)

        def _connect(self) -> Socket:
            return Socket(super()._connect())

    return Obedient


def here() -> int:
    return os.getpid()


def is_gone(place: int) -> bool:
    return place != os.getpid()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def given(value: Answer) -> Answer:
    return value


def background(call: Callable[[], object]) -> None:
    try:
        threading.Thread(target=call, name="redis-rl", daemon=True).start()
    except RuntimeError:
        # There is no thread to be had, as at the end of the process.
        call()


def afterwards(call: Callable[[], object]) -> None:
    """Makes a call for a caller that goes away. The process may end with it, and with it its threads."""
    call()


def ended(seconds: float) -> None:
    """Waits for what was begun in the background. Threads need not be waited for."""


def finished(call: Callable[[], object]) -> None:
    """Makes a call to its end, also when the caller is interrupted meanwhile: then once more."""
    try:
        call()
    except BaseException:
        call()
        raise


def carried_out(call: Callable[[], Answer], undo: Callable[[Answer | None], object]) -> Answer:
    try:
        return call()
    except Error:
        raise
    except BaseException:
        try:
            undo(None)
        except Exception as error:
            log.info("what a cancelled call has done could not be undone: %s", error)
        raise


def within(seconds: float, call: Callable[..., bool]) -> bool:
    return call(timeout=min(seconds, threading.TIMEOUT_MAX))


def begun(call: Callable[[], None]) -> threading.Thread | None:
    try:
        thread = threading.Thread(target=call, name="redis-rl lease", daemon=True)
        thread.start()
        return thread
    except RuntimeError as error:
        log.warning("what is held is not renewed: %s", error)
        return None


def over(work: threading.Thread | None) -> None:
    if work is not None and work.is_alive():
        work.join()
