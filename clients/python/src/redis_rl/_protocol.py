"""The commands in each mode, what the errors of the client libraries mean, and the circuit breaker. No I/O."""

from __future__ import annotations

import hashlib
import importlib
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from ._rules import Word

Mode = Literal["module", "functions", "script"]
MODES: tuple[Mode, ...] = ("module", "functions", "script")

PAUSE = 1.0
"""Seconds for which calls fail at once after the server was unavailable."""

# What may be sent again when its reply was lost.
_REPEATABLE = ("PEEK", "RESET", "RELEASE", "ACQUIRE")


@dataclass(slots=True)
class Command:
    """A command of the module, in the form that all modes share."""

    name: str
    keys: Sequence[str | bytes]
    words: Sequence[Word]

    @property
    def reads(self) -> bool:
        return self.name == "PEEK"

    @property
    def repeatable(self) -> bool:
        return self.name in _REPEATABLE

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
    """The Lua source that the package carries."""
    return resources.files("redis_rl").joinpath("lua", f"rl.{what}.lua").read_text(encoding="utf-8")


@cache
def digest() -> str:
    """The script's SHA-1, by which EVALSHA calls it."""
    return hashlib.sha1(source("script").encode(), usedforsecurity=False).hexdigest()


def library_version(code: str) -> int:
    """The version that a function library says it has; 0 for one from before there were versions."""
    found = re.search(r"-- Version (\d+)\b", code)
    return int(found[1]) if found else 0


class Stale(Exception):
    """The server does not know what it knew when the mode was detected: it was replaced, or has lost its scripts."""


class Errors:
    """The error classes of the client library, redis-py or valkey-py, and what they mean."""

    def __init__(self, library: str, *, cluster: bool) -> None:
        module = importlib.import_module(f"{library}.exceptions")
        # Not the same name in the two libraries.
        self.all: type[Exception] = getattr(module, "RedisError", None) or module.ValkeyError
        self.connection: type[Exception] = module.ConnectionError
        self.timeout: type[Exception] = module.TimeoutError
        self.response: type[Exception] = module.ResponseError
        self.no_script: type[Exception] = module.NoScriptError
        self.no_permission: type[Exception] = module.NoPermissionError
        self._try_again: type[Exception] = module.TryAgainError
        self._cluster_error: type[Exception] = module.ClusterError
        # Classes of connection errors that are mistakes, and those of replies that say "not now".
        self._permanent: tuple[type[Exception], ...] = (module.AuthenticationError, module.AuthorizationError)
        self._unavailable: tuple[type[Exception], ...] = (
            module.ConnectionError,
            module.TimeoutError,
            OSError,
            module.ReadOnlyError,
            module.ClusterDownError,
            module.MasterDownError,
            module.OutOfMemoryError,
            module.SlotNotCoveredError,
        )
        if cluster:
            # Raised by a cluster client that could not follow.
            self._unavailable += (module.MovedError, module.AskError)
        self._codes = _UNAVAILABLE | _REDIRECTIONS if cluster else _UNAVAILABLE
        self.topology: type[Exception] = getattr(module, f"{library.capitalize()}ClusterException")

    def is_try_again(self, error: BaseException) -> bool:
        """Whether the server asks to be asked again, which it has done without counting the request.

        Cluster clients follow redirections and try again some times themselves; they end with a ClusterError of
        their own, after which nothing was counted either.
        """
        return (
            isinstance(error, self._try_again)
            or (type(error) is self._cluster_error and "TTL exhausted" in str(error))
            or (isinstance(error, self.response) and _code(error) == "TRYAGAIN")
        )

    def is_unknown(self, error: object) -> bool:
        """Whether the server does not know the command or the function."""
        text = str(error).lower()
        return isinstance(error, self.response) and ("unknown command" in text or "function not found" in text)

    def is_lost(self, error: BaseException) -> bool:
        """Whether the connection broke, so that it is unknown whether the call was counted."""
        return isinstance(error, (self.connection, OSError)) and not isinstance(error, (self.timeout, *self._permanent))

    def is_unavailable(self, error: BaseException) -> bool:
        """Whether the server cannot answer or write now, through no fault of the call or of the settings."""
        if isinstance(error, self._permanent):
            return False
        if isinstance(error, self._unavailable) or self.is_try_again(error):
            return True
        text = str(error)
        if isinstance(error, self.topology):
            # Raised where no node answers. Other errors of this class are mistakes.
            return "cannot be connected" in text or "not covered" in text
        # For some the client libraries have no class, or only their cluster clients use it.
        return isinstance(error, self.response) and (
            _code(error) in self._codes or text.startswith("max number of clients")
        )


_UNAVAILABLE = {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "REDIRECT"}
_REDIRECTIONS = {"ASK", "MOVED"}


def _code(error: BaseException) -> str:
    return str(error).partition(" ")[0]


class Breaker:
    """Fails calls at once for a second after a server was unavailable, and then lets one of them through.

    Each node of a cluster has a state of its own. Outside of a cluster the one place is ``""``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[float, str]] = {}

    @property
    def is_open(self) -> bool:
        """Whether any place is known to be unavailable."""
        return bool(self._open)

    def refusal(self, place: str) -> str | None:
        """Why a call fails at once, if it does."""
        until, reason = self._open.get(place, (0.0, ""))
        return reason if time.monotonic() < until else None

    def enter(self, place: str, seconds: float) -> str | None:
        """As `refusal`. If the call is let through as a probe, it is the only one until these seconds are over."""
        with self._lock:
            refused = self.refusal(place)
            if refused is None and place in self._open:
                self._open[place] = (time.monotonic() + seconds, self._open[place][1])
            return refused

    def open(self, place: str, error: BaseException) -> bool:
        """The place was unavailable. Returns whether that is new."""
        with self._lock:
            new = place not in self._open
            self._open[place] = (time.monotonic() + PAUSE, str(error) or type(error).__name__)
            return new

    def close(self, place: str) -> bool:
        """The place has answered. Returns whether that is new."""
        with self._lock:
            return self._open.pop(place, None) is not None
