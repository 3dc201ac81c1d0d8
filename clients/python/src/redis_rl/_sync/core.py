"""What the limiters on one client share: its connections, the mode, and the circuit breaker."""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from typing import Any

from .._client import Client
from .._protocol import MODES, Breaker, Command, Mode, Stale, library_version, source
from .io import Connections, Deadline, Flight, sleep

log = logging.getLogger("redis_rl")

PROBE_EVERY = 60.0
"""Seconds after which the mode is probed again, in the background."""

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25

# By the client's id, which is not another's as long as the core holds the client.
_cores: weakref.WeakValueDictionary[tuple[int, str, bool, float], Core] = weakref.WeakValueDictionary()
_cores_lock = threading.Lock()


def core_of(client: Any, mode: str, load: bool, timeout: float, *, asynchronous: bool) -> Core:
    """The core for a client and these settings; limiters with the same share it."""
    if mode not in (*MODES, "auto"):
        raise ValueError(f"mode must be 'auto', 'module', 'functions' or 'script', not {mode!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    known = Client(client, asynchronous=asynchronous)
    with _cores_lock:
        core = _cores.get((id(client), mode, load, float(timeout)))
        if core is None:
            core = _cores[id(client), mode, load, float(timeout)] = Core(known, mode, load, timeout)
        return core


class Core:
    """Decides commands on a server: within a deadline, at most once, in the best mode there is."""

    def __init__(self, client: Client, mode: str, load: bool, timeout: float) -> None:
        self.errors = client.errors
        self.timeout = timeout
        self._client = client
        self.breaker = Breaker()
        self._connections = Connections(client, timeout, self._reconnected)
        self._chosen = next((known for known in MODES if known == mode), None)
        self._load = load
        # The functions may have to be loaded; the module and a script are there, or the call itself will tell.
        self._mode: Mode | None = None if self._chosen == "functions" else self._chosen
        self._probing: Flight[Mode] | None = None
        self._probe_at = time.monotonic() + PROBE_EVERY
        # Whether the server has EVALSHA_RO for this user.
        self._read_only = True

    @property
    def client(self) -> Any:
        """The client through which commands are sent."""
        return self._connections.client

    @property
    def mode(self) -> Mode | None:
        """The mode in which commands are sent; None before it is known."""
        return self._mode or self._chosen

    def _reconnected(self) -> None:
        # It may be another server.
        self._probe_at = 0.0

    def ask(self, command: Command, timeout: float, name: str) -> Any:
        """The server's answer to a command."""
        breaker = self.breaker
        if breaker.is_open:
            self._check(breaker.refusal(self._place(command)))
        with self._connections.gate:
            if breaker.is_open:
                # Of those that have waited there, too, only one goes on as a probe.
                self._check(breaker.enter(self._place(command), timeout))
            try:
                with Deadline(timeout, self.errors) as deadline:
                    answer = self._decide(command, deadline)
            except Exception as error:
                unavailable = self.errors.is_unavailable(error)
                self._judge(command, error, unavailable, name)
                if unavailable and not isinstance(error, self.errors.all):
                    # What cluster clients and sockets raise is not of the class that users catch.
                    raise self.errors.connection(str(error)) from error
                raise
        if breaker.is_open:
            self._available(command, name)
        if time.monotonic() >= self._probe_at:
            self._probe_in_background()
        return answer

    def _place(self, command: Command) -> str:
        """The node of a cluster that has the command's key, as far as that is known."""
        return self._connections.place_of(command.keys[0])

    def _check(self, refused: str | None) -> None:
        if refused is not None:
            raise self.errors.connection(f"the server was unavailable less than a second ago: {refused}")

    def _judge(self, command: Command, error: Exception, unavailable: bool, name: str) -> None:
        if self.errors.is_try_again(error):
            # A slot on the move. Other calls are answered.
            return
        if unavailable:
            self._probe_at = 0.0
            if self.breaker.open(self._place(command), error):
                log.info("limiter %r: the server is unavailable: %s", name, error)
        elif isinstance(error, self.errors.response) and self.breaker.is_open:
            self._available(command, name)

    def _available(self, command: Command, name: str) -> None:
        if self.breaker.close(self._place(command)):
            log.info("limiter %r: the server is available again", name)

    def _decide(self, command: Command, deadline: Deadline) -> Any:
        mode = self._mode or self.probe(None)
        try:
            return self._send(command, mode, deadline, fresh=False)
        except Stale:
            return self._send(command, self.probe(mode), deadline, fresh=True)

    def _send(self, command: Command, mode: Mode, deadline: Deadline, *, fresh: bool) -> Any:
        """Sends a command until the server has decided it. ``fresh``: the mode was probed just now."""
        errors = self.errors
        pause = FIRST_PAUSE
        whole = resent = False
        # The node of a cluster that was asked, so that a script goes to the one that lacks it.
        place: list[Any] = []
        while True:
            began = time.monotonic()
            try:
                words = command.sent(mode, whole=whole, read_only=self._read_only)
                return self._connections.send(command, words, place)
            except Exception as error:
                if mode == "script" and command.reads and self._read_only and self._lacks(error):
                    self._read_only = False
                    place.clear()
                elif errors.is_try_again(error):
                    # Cluster clients try for some time themselves. This error says more than a time-out.
                    if deadline.left() < pause + 1.5 * (time.monotonic() - began):
                        raise
                    # Spread out, for the others that wait for the same slot.
                    sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                    pause = min(pause * 2, LONGEST_PAUSE)
                    place.clear()
                elif errors.is_lost(error) and command.repeatable and not resent:
                    resent = True
                    place.clear()
                elif isinstance(error, errors.no_script) and mode == "script" and not whole:
                    # The server may be another one. A replica may lack what its primary has: a peek tells nothing.
                    if not (fresh or self._chosen or command.reads):
                        raise Stale from error
                    whole = True
                elif errors.is_unknown(error) and not fresh and self._chosen in (None, "functions"):
                    raise Stale from error
                else:
                    raise

    def probe(self, stale: Mode | None) -> Mode:
        """Detects the mode, if it is still the one that is stale. Concurrent callers share one probe."""
        mode: Mode | None = self._mode
        if mode is not None and mode != stale:
            return mode
        return self._start_probe().result()

    def _start_probe(self) -> Flight[Mode]:
        flight = self._probing
        if flight is None or not flight.is_current:
            flight = self._probing = Flight(self._probe, self.errors)
        return flight

    def _probe_in_background(self) -> None:
        self._probe_at = time.monotonic() + PROBE_EVERY
        if self._chosen is None:
            self._start_probe()

    def _probe(self) -> Mode:
        try:
            with Deadline(self.timeout, self.errors):
                mode = self._detect()
        finally:
            self._probing = None
        if self._mode != mode:
            log.info("the server is used by %s", {"module": "its module"}.get(mode, mode))
        self._mode = mode
        self._probe_at = time.monotonic() + PROBE_EVERY
        return mode

    def _detect(self) -> Mode:
        """Finds the best mode that the server has. All nodes of a cluster must have it."""
        everywhere = self._connections.everywhere
        # Without arguments the command is an error that changes nothing: "unknown", or "wrong number of arguments".
        if self._chosen is None and not any(map(self._lacks, everywhere("RL.ALL"))):
            return "module"
        answers = everywhere("FCALL", "rl_all", 0)
        missing = any(map(self._lacks, answers))
        if self._load and not any("unknown command" in str(answer).lower() for answer in answers):
            if missing:
                self._load_library()
                missing = any(map(self._lacks, everywhere("FCALL", "rl_all", 0)))
            elif self._mode != "functions" and self._is_older():
                self._load_library("REPLACE")
        return "script" if missing and self._chosen is None else "functions"

    def _is_older(self) -> bool:
        """Whether a server has a library from before ours."""
        listed = self._connections.everywhere("FUNCTION", "LIST", "LIBRARYNAME", "rl", "WITHCODE")
        ours = library_version(source("library"))
        texts = [str(each) for each in listed if not isinstance(each, Exception)]
        # Somebody else's library of that name is left alone.
        return any("redis-rl" in text and library_version(text) < ours for text in texts)

    def _load_library(self, *options: str) -> None:
        for answer in self._connections.everywhere("FUNCTION", "LOAD", *options, source("library")):
            if isinstance(answer, Exception):
                log.info("the function library could not be loaded: %s", answer)

    def _lacks(self, answer: object) -> bool:
        # A user who may not call it can do without it: a script needs other permissions.
        return self.errors.is_unknown(answer) or isinstance(answer, self.errors.no_permission)

    def close(self) -> None:
        """Closes the connections of our own."""
        flight = self._probing
        if flight is not None and flight.is_current:
            # The connection that it may be opening would stay open.
            flight.end(self.timeout)
        self._connections.close()
