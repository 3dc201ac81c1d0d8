"""The commands as they go over the wire, and how to get an answer.

There is no socket here, so that the same code serves the synchronous and the asynchronous client.

A step is a generator. It yields what is to be sent (`Send`, `Everywhere`) or waited for (`Pause`), gets the reply or
the error back, and returns the answer.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeVar

from ._rules import Frames, Word

Mode = Literal["module", "functions", "script"]
MODES: tuple[Mode, ...] = ("module", "functions", "script")

Answer = TypeVar("Answer")
Steps = Generator["Send | Everywhere | Pause", Any, Answer]

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class Send:
    """A command for the node that has the key."""

    words: Sequence[Word]
    key: str | bytes
    reads: bool = False
    """Whether it changes nothing, so that a replica may answer."""
    again: bool = False
    """Whether it may be sent again after its reply was lost."""
    place: list[Any] = field(default_factory=list, compare=False)
    """The node of a cluster that got it, so that a script goes to the one that lacks it."""


@dataclass(frozen=True, slots=True)
class Everywhere:
    """A command for each primary. The answer is a list of replies and errors of the server."""

    words: Sequence[Word]


@dataclass(frozen=True, slots=True)
class Pause:
    """Time to wait, in seconds."""

    seconds: float


@dataclass(slots=True)
class Command:
    """A command of the module, in the form that all three ways of calling share."""

    name: str
    keys: Sequence[str | bytes]
    words: Sequence[Word]
    frames: Frames | None = field(default=None, compare=False, repr=False)
    """Of a command of one key: what goes over the wire around the key, if the same words are often sent."""

    @property
    def reads(self) -> bool:
        return self.name == "PEEK"

    def send(self, mode: Mode, *, whole: bool = False, promise: bool = True, place: list[Any] | None = None) -> Send:
        """The command for a server of this mode.

        ``whole`` sends the script itself and not its digest. ``promise`` says of a script that only reads that it
        does, which replicas want to hear, and which Redis 6.2 does not know.
        """
        promise = promise and self.reads
        words: list[Word]
        if mode == "module":
            words = [f"RL.{self.name}"]
            if self.name == "ALL":
                words.append(len(self.keys))
            words += self.keys
        elif mode == "functions":
            words = [
                "FCALL_RO" if self.reads else "FCALL",
                f"rl_{self.name.lower()}",
                len(self.keys),
                *self.keys,
            ]
        else:
            # The script is one for all commands, and its first argument the command's name.
            text = source("script")
            kind = "_RO" if promise else ""
            words = [f"EVAL{kind}", text] if whole else [f"EVALSHA{kind}", digest()]
            words += [len(self.keys), *self.keys, self.name.lower()]
        words += self.words
        reads = promise if mode == "script" else self.reads
        return Send(words, self.keys[0], reads, again=self.reads, place=[] if place is None else place)

    def packed(self, mode: Mode) -> bytes | None:
        """The command as it goes over the wire in UTF-8, or None if it has no frames."""
        if self.frames is None:
            return None
        frame = self.frames.get(mode)
        if frame is None:
            frame = self.frames[mode] = self._frame(mode)
        (key,) = self.keys
        if isinstance(key, str):
            key = key.encode()
        return b"%b$%d\r\n%b%b" % (frame[0], len(key), key, frame[1])

    def _frame(self, mode: Mode) -> tuple[bytes, bytes]:
        words = [word if isinstance(word, bytes) else str(word).encode() for word in self.send(mode).words]
        bulks = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        place = 1 if mode == "module" else 3
        return b"*%d\r\n%b" % (len(words), b"".join(bulks[:place])), b"\r\n" + b"".join(bulks[place + 1 :])


@cache
def source(what: Literal["library", "script"]) -> str:
    """The Lua source that the package carries."""
    return resources.files(__package__).joinpath("lua", f"rl.{what}.lua").read_text(encoding="utf-8")


@cache
def digest() -> str:
    """The script's SHA-1, by which EVALSHA calls it."""
    return hashlib.sha1(source("script").encode(), usedforsecurity=False).hexdigest()


class Stale(Exception):
    """The server does not know what it knew when the mode was found: it was replaced, or has lost its scripts."""


class Errors:
    """The error classes of the client library, redis-py or valkey-py."""

    def __init__(self, client: object) -> None:
        roots = [base.__module__.partition(".")[0] for base in type(client).__mro__]
        library = next((root for root in roots if root in ("redis", "valkey")), None)
        if library is None:
            raise TypeError(f"a client of redis-py or valkey-py is needed, not {type(client)!r}")
        module = importlib.import_module(f"{library}.exceptions")
        # Not the same name in the two libraries.
        self.all: type[Exception] = getattr(module, "RedisError", None) or module.ValkeyError
        self.response: type[Exception] = module.ResponseError
        self.cluster: type[Exception] = module.ClusterError
        self.try_again: type[Exception] = module.TryAgainError
        self.no_script: type[Exception] = module.NoScriptError
        self.no_permission: type[Exception] = module.NoPermissionError
        self.lost: tuple[type[Exception], ...] = (module.ConnectionError, module.TimeoutError, OSError)
        self.read_only: type[Exception] = module.ReadOnlyError
        # A demoted primary is left, as well as a broken connection: its name may lead to the new one.
        self.leave: tuple[type[Exception], ...] = (*self.lost, self.read_only)
        self._wrong_password: type[Exception] = module.AuthenticationError
        self._away: tuple[type[Exception], ...] = (
            *self.lost,
            self.read_only,
            module.ClusterDownError,
            module.MasterDownError,
            module.OutOfMemoryError,
            module.SlotNotCoveredError,
        )

    def is_try_again(self, error: BaseException) -> bool:
        """Whether the server asks to be asked again, which it has done without counting the request.

        Cluster clients follow redirections and try again some times themselves; they end with a ClusterError of
        their own, after which nothing was counted either.
        """
        return isinstance(error, self.try_again) or (type(error) is self.cluster and "TTL exhausted" in str(error))

    def is_unknown(self, error: BaseException) -> bool:
        """Whether the server does not know the command or the function."""
        text = str(error).lower()
        return isinstance(error, self.response) and ("unknown command" in text or "function not found" in text)

    def is_away(self, error: BaseException) -> bool:
        """Whether the server cannot answer or write now, through no fault of the call or of the settings."""
        if isinstance(error, self._wrong_password):
            return False
        return (
            isinstance(error, self._away)
            or self.is_try_again(error)
            or str(error).startswith(("MISCONF", "NOREPLICAS"))
        )


@dataclass(slots=True)
class Core:
    """What a limiter knows of its server, and how it gets its answers."""

    errors: Errors
    mode: Mode | None
    """How the server is called; None before the first call."""
    fixed: bool
    """Whether the user has chosen the mode."""
    load: bool
    """Whether the function library may be loaded."""
    patience: float
    """Seconds for which a server that answers TRYAGAIN is asked again."""
    promise: bool = True
    """Whether the server has EVALSHA_RO for this user."""

    def look(self) -> Steps[Mode]:
        """Finds out what the server has to offer, the best first. A cluster's nodes must all have it."""
        # Without arguments the command is an error that changes nothing: "unknown", or "wrong number of arguments".
        if all(not self._lacks(answer) for answer in (yield Everywhere(["RL.ALL"]))):
            return "module"
        answers = yield Everywhere(["FCALL", "rl_all", 0])
        if all(not self._lacks(answer) for answer in answers):
            return "functions"
        if self.load and not any("unknown command" in str(answer).lower() for answer in answers):
            yield Everywhere(["FUNCTION", "LOAD", source("library")])
            if all(not self._lacks(answer) for answer in (yield Everywhere(["FCALL", "rl_all", 0]))):
                return "functions"
        return "script"

    def _lacks(self, answer: object) -> bool:
        if not isinstance(answer, Exception):
            return False
        # A user who may not call it can do without it: a script needs other permissions.
        return self.errors.is_unknown(answer) or isinstance(answer, self.errors.no_permission)

    def ask(self, command: Command, mode: Mode, fresh: bool, failed: Exception | None = None) -> Steps[Any]:
        """Sends the command until the server has decided it.

        ``fresh``: the server was just looked at. ``failed``: how a first attempt ended.
        """
        deadline = time.monotonic() + self.patience
        pause = FIRST_PAUSE
        whole = False
        place: list[Any] = []
        while True:
            try:
                if failed is not None:
                    # Not kept, as it refers to this very call.
                    first, failed = failed, None
                    try:
                        raise first
                    finally:
                        del first
                return (yield command.send(mode, whole=whole, promise=self.promise, place=place))
            except Exception as error:
                if mode == "script" and command.reads and self.promise and self._lacks(error):
                    self.promise = False
                    place.clear()
                    continue
                if self.errors.is_try_again(error):
                    if time.monotonic() + pause >= deadline:
                        raise
                elif isinstance(error, self.errors.no_script) and mode == "script" and not whole:
                    # A replica may lack what its primary has, so that a peek proves nothing.
                    if not (fresh or self.fixed or command.reads):
                        raise Stale from error
                    whole = True
                    continue
                elif self.errors.is_unknown(error) and not (fresh or self.fixed):
                    raise Stale from error
                else:
                    raise
            # Spread out, for the others that wait for the same slot.
            yield Pause(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, LONGEST_PAUSE)
            place.clear()
