"""The commands in each mode, what the errors of the client libraries mean, and the circuit breaker. No I/O."""

from __future__ import annotations

import hashlib
import importlib
import logging
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from ._rules import Word

log = logging.getLogger("redis_rl")

Mode = Literal["module", "functions", "script"]
MODES: tuple[Mode, ...] = ("module", "functions", "script")

PAUSE = 1.0
"""Seconds for which calls fail at once after the server was unavailable."""

# What may be sent again when its reply was lost, as well as what a reservation sends.
_REPEATABLE = ("PEEK", "RESET", "RELEASE", "ACQUIRE", "SETTLE")


@dataclass(slots=True)
class Command:
    """A command of the module, in the form that all modes share."""

    name: str
    keys: Sequence[str | bytes]
    words: Sequence[Word]
    holds: bool = False
    """Whether it has a HOLD."""
    is_sent: bool = False
    """Whether a server may have carried it out."""

    @property
    def reads(self) -> bool:
        return self.name == "PEEK"

    @property
    def repeatable(self) -> bool:
        return self.holds or self.name in _REPEATABLE

    def sent(self, mode: Mode, *, whole: bool = False, read_only: bool = True) -> list[Word]:
        """The command for a server of this mode.

        ``whole`` sends the script itself and not its digest. ``read_only`` says of a script that only reads that it
        does, which replicas want to hear, and which Redis 6.2 does not know.
        """
        words: list[Word]
        if mode == "module":
            words = [f"RL.{self.name}", *self.keys]
            if self.name == "ALL":
                words.insert(1, len(self.keys))
        elif mode == "functions":
            words = ["FCALL_RO" if self.reads else "FCALL", f"rl_{self.name.lower()}", len(self.keys), *self.keys]
        else:
            # The script is one for all commands, and its first argument the command's name.
            kind = "_RO" if self.reads and read_only else ""
            words = [f"EVAL{kind}", source("script")] if whole else [f"EVALSHA{kind}", digest()]
            words += [len(self.keys), *self.keys, self.name.lower()]
        words += self.words
        return words


@cache
def source(what: Literal["library", "script"]) -> str:
    return resources.files("redis_rl").joinpath("lua", f"rl.{what}.lua").read_text(encoding="utf-8")


@cache
def digest() -> str:
    """The script's SHA-1, by which EVALSHA calls it."""
    return hashlib.sha1(source("script").encode(), usedforsecurity=False).hexdigest()


def library_version(code: str) -> int:
    """The version that a function library says it has; 0 for one from before there were versions."""
    found = re.search(r"-- Version (\d+)\b", code)
    return int(found[1]) if found else 0


class Error(Exception):
    """What the calls of a limiter raise beside ValueError and TypeError. The client library's error is its cause."""


class Unavailable(Error):
    """The server cannot be reached or cannot answer now, which passes by itself: nobody has decided."""


class Refused(Error):
    """The server refuses the call, with its words: a missing permission, a key that holds something else, ..."""


class Stale(Exception):
    """The server does not know what it knew when the mode was detected: it was replaced, or has lost its scripts."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.server = server


class Errors:
    """The error classes of the client library, redis-py or valkey-py, and what they mean."""

    def __init__(self, library: str, *, cluster: bool) -> None:
        self.kinds: Any = importlib.import_module(f"{library}.exceptions")
        self._cluster = cluster
        # Not the same name in the two libraries.
        self.all: type[Exception] = getattr(self.kinds, "RedisError", None) or self.kinds.ValkeyError
        self.connection: type[Exception] = self.kinds.ConnectionError
        self.timeout: type[Exception] = self.kinds.TimeoutError
        self.response: type[Exception] = self.kinds.ResponseError
        # Classes of connection errors that are mistakes, and those of replies that say "not now".
        self._permanent: Any = (self.kinds.AuthenticationError, self.kinds.AuthorizationError)
        replies = (self.kinds.ReadOnlyError, self.kinds.ClusterDownError, self.kinds.OutOfMemoryError)
        self._unavailable: Any = (self.connection, self.timeout, OSError, *replies)

    def is_try_again(self, error: BaseException) -> bool:
        """Whether the server asks to be asked again, which it has done without counting the request."""
        is_named = isinstance(error, self.response) and _code(error) == "TRYAGAIN"
        return is_named or isinstance(error, self.kinds.TryAgainError)

    def redirection(self, error: BaseException) -> tuple[str, int, str, int] | None:
        """MOVED or ASK, the slot, and the host and port to which a node of a cluster sends the call."""
        if not isinstance(error, self.response):
            return None
        # The classes of some versions leave the code out, and those of others know no such error.
        code = {self.kinds.MovedError: "MOVED", self.kinds.AskError: "ASK"}.get(type(error), "")
        words = f"{code} {error}".split()
        if len(words) != 3 or words[0] not in ("ASK", "MOVED") or not words[1].isdecimal():
            return None
        host, _, port = words[2].rpartition(":")
        return words[0], int(words[1]), host, int(port)

    def is_crowd(self, error: BaseException) -> bool:
        """Whether the process had no connection left, which says nothing of the server."""
        return isinstance(error, self.connection) and str(error) in ("No connection available.", "Too many connections")

    def is_unknown_command(self, error: object) -> bool:
        """Whether the server does not know the command."""
        return isinstance(error, self.response) and _UNKNOWN_COMMAND.search(str(error)) is not None

    def is_unknown(self, error: object) -> bool:
        """Whether the server does not know the command or the function."""
        return self.is_unknown_command(error) or (
            isinstance(error, self.response) and "function not found" in str(error).lower()
        )

    def is_ended(self, error: BaseException) -> bool:
        """Whether the period of a calendar is over by the server's clock."""
        return isinstance(error, (self.response, Refused)) and "the window has ended" in str(error)

    def is_settled(self, error: BaseException) -> bool:
        """Whether the reservation was settled by a call whose reply was lost."""
        return isinstance(error, (self.response, Refused)) and "this hold is settled" in str(error)

    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection broke, so that it is unknown whether the call was counted."""
        return isinstance(error, (self.connection, OSError)) and not isinstance(error, (self.timeout, *self._permanent))

    def is_unavailable(self, error: BaseException) -> bool:
        """Whether the server cannot answer or write now, through no fault of the call or of the settings."""
        if isinstance(error, self._permanent):
            return False
        # In a cluster also what could not be followed to the end.
        if (
            isinstance(error, self._unavailable)
            or self.is_try_again(error)
            or (self._cluster and self.redirection(error))
        ):
            return True
        # For some the client libraries have no class, or only their cluster clients use it.
        return isinstance(error, self.response) and (
            _code(error) in _UNAVAILABLE or str(error).startswith("max number of clients")
        )

    def raised(self, error: Exception) -> Exception:
        """What a caller gets for an error of the client library's."""
        if self.is_unavailable(error):
            return Unavailable(str(error) or type(error).__name__)
        return Refused(str(error)) if isinstance(error, self.all) else error


# Servers that are no Redis, and proxies, have words of their own for a command that they do not know.
_UNKNOWN_COMMAND = re.compile("unknown command|unsupported command|command is not (available|supported)", re.IGNORECASE)
_UNAVAILABLE = {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "REDIRECT"}


def _code(error: BaseException) -> str:
    return str(error).partition(" ")[0]


class Breaker:
    """Fails calls at once for a second after a server was unavailable, and then lets one of them through.

    Each place has a state of its own: a server, as limiters with one deadline see it. There are no locks, which a fork
    could leave locked: the steps that count are single operations of dicts and lists.
    """

    def __init__(self) -> None:
        self._open: dict[Place, tuple[float, str, list[None]]] = {}

    def is_open(self, deadline: float) -> bool:
        """Whether a server is known to be unavailable to limiters with this deadline."""
        return any(place[1] == deadline for place in tuple(self._open))

    def knows(self, place: Place) -> bool:
        """Whether the place was unavailable, and has not answered since."""
        return place in self._open

    def refusal(self, place: Place) -> str | None:
        """Why a call fails at once, if it does."""
        until, reason, _ = self._open.get(place, _CLOSED)
        return reason if time.monotonic() < until else None

    def enter(self, place: Place) -> str | None:
        """As `refusal`. If the call is let through as a probe, it is the only one for as long as its deadline."""
        known = self._open.get(place)
        if known is None:
            return None
        until, reason, ticket = known
        if time.monotonic() < until:
            return reason
        try:
            ticket.pop()
        except IndexError:
            return reason
        self._open[place] = (time.monotonic() + place[1], reason, [None])
        return None

    def open(self, place: Place, error: BaseException) -> bool:
        """The place was unavailable. Returns whether that is new."""
        new = place not in self._open
        self._open[place] = (time.monotonic() + PAUSE, str(error) or type(error).__name__, [None])
        return new

    def close(self, place: Place) -> bool:
        """The place has answered. Returns whether that is new."""
        return self._open.pop(place, None) is not None

    def forget_others(self, names: Collection[str]) -> None:
        """These are the servers that there are: nobody asks others again."""
        for place in tuple(self._open):
            if place[0] not in names:
                self._open.pop(place, None)


Place = tuple[str, float]
"""The name of a server, and the deadline of the limiters that judge it."""

_CLOSED: tuple[float, str, list[None]] = (0.0, "", [])
