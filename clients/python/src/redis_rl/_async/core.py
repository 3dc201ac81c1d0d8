"""What the limiters on one client share: its servers, how each of them is used, and the circuit breaker."""

from __future__ import annotations

import contextlib
import random
import time
import weakref
from collections.abc import Callable
from typing import Any, cast

from .._client import Client
from .._protocol import MODES, Breaker, Command, Mode, Place, Stale, library_version, log, source
from .._rules import Word
from .io import Deadline, background, ended, here, is_gone, sleep
from .servers import Server, Servers

PROBE_EVERY = 60.0
"""Seconds after which the mode of a server is probed again, in the background."""

LOADING = 1.0
"""Seconds that loading the functions may take."""

FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.25

# By the client's id, which is not another's as long as the core holds the client.
_cores: weakref.WeakValueDictionary[tuple[int, str], Core] = weakref.WeakValueDictionary()


def core_of(client: Any, mode: str, *, asynchronous: bool) -> Core:
    """The core for a client and a mode; limiters with the same share it."""
    if mode not in (*MODES, "auto"):
        raise ValueError(f"mode must be 'auto', 'module', 'functions' or 'script', not {mode!r}")
    known = Client(client, asynchronous=asynchronous)
    core = _cores.get((id(client), mode))
    if core is None:
        core = _cores[id(client), mode] = Core(known, mode)
    return core


class Core:
    """Decides commands on a server: within a deadline, at most once, in the best mode there is."""

    def __init__(self, client: Client, mode: str) -> None:
        self.errors = client.errors
        self.breaker = Breaker()
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        """The limiters that are open."""
        self._client = client
        self._chosen: Mode | None = None if mode == "auto" else cast("Mode", mode)
        # By the names of servers. Each node of a cluster is used as it can be: keys and answers are the same.
        self._modes: dict[str, Mode] = {}
        self._probe_at: dict[str, float] = {}
        # Until when a caller is loading the functions, for which others wait.
        self._loading: dict[str, float] = {}
        self._servers: dict[Any, Servers] = {}
        # Whether the server has EVALSHA_RO for this user.
        self._read_only = True

    @property
    def servers(self) -> Servers:
        """Those of the running loop, or of this process."""
        place = here()
        servers = self._servers.get(place)
        if servers is None:
            # Connections belong to where they were opened.
            for gone in filter(is_gone, tuple(self._servers)):
                self._servers.pop(gone, None)
            servers = self._servers.setdefault(place, Servers(self._client, self._reconnected))
        return servers

    @property
    def mode(self) -> Mode | None:
        """The mode in which commands are sent; None before it is known. In a cluster, the least of its nodes'."""
        return self._chosen or max(self._modes.values(), key=MODES.index, default=None)

    def _reconnected(self, name: str) -> None:
        # It may be another server.
        self._probe_at[name] = 0.0

    async def ask(
        self,
        command: Command,
        timeout: float,
        name: str,
        *,
        within: float = float("inf"),
        known: Callable[[], object] = lambda: None,
    ) -> tuple[Any, Any]:
        """The server's answer to a command, and None; or None and what ``known`` returns when the call's turn comes.

        Args:
            command, timeout: what is asked, and the deadline, by which the server is judged.
            name: of the limiter, for log lines; empty where an adapter writes its own.
            within: the time that this caller has, if it is less. It does not judge the server.
            known: an answer that another call may have brought meanwhile.
        """
        breaker, servers, errors = self.breaker, self.servers, self.errors
        server: Server | None = None
        is_asked = False
        judges = within >= timeout
        place = (servers.name(command), timeout)
        self._check(breaker.refusal(place))
        began = time.monotonic()
        try:
            async with Deadline(max(min(timeout, within), 0.001), errors) as deadline:
                if servers.is_cluster and (place[0] in servers.suspects or breaker.knows(place)):
                    servers.suspects.discard(place[0])
                    await servers.refresh(deadline)
                    breaker.forget_others(servers.primaries())
                server = await servers.of(command, deadline)
                place = (server.name, timeout)
                async with server.gate.place(deadline):
                    answer = known()
                    if answer is not None:
                        return None, answer
                    # Of those that have waited, too, only one goes on as a probe.
                    self._check(breaker.enter(place))
                    is_asked, began = True, time.monotonic()
                    # Where most of the time went by in the queue, being late says nothing of the server.
                    judges = judges and deadline.left() >= timeout / 2
                    reply = await self._decide(server, command, deadline)
        except Exception as error:
            if is_asked or server is None:
                self._judge(server, place, error, name, began, judges)
            if errors.is_crowd(error):
                raise errors.timeout("the calls that are under way have not been answered in time") from error
            raise
        except BaseException:
            # The caller goes away. What it saw of its connection is true of those that are idle, too.
            if server is not None and is_asked and time.monotonic() - began > timeout / 20:
                server.renew()
                servers.suspects.add(server.name)
            raise
        self._answered(server, place, name)
        if time.monotonic() >= self._probe_at.get(server.name, 0.0):
            self._probe_later(server)
        return reply, None

    def _check(self, refused: str | None) -> None:
        if refused is not None:
            raise self.errors.connection(f"the server was unavailable less than a second ago: {refused}")

    def _judge(
        self, server: Server | None, place: Place, error: Exception, name: str, began: float, judges: bool
    ) -> None:
        errors = self.errors
        if errors.is_try_again(error) or errors.is_crowd(error):
            # A slot on the move, or a process with too many calls. Other calls are answered.
            return
        if not errors.is_unavailable(error):
            if server is not None and isinstance(error, errors.response):
                self._answered(server, place, name)
            return
        if server is not None:
            server.renew()
            self._probe_at[server.name] = 0.0
            if server.answered_at > began:
                # A connection that was left behind: others are answered.
                return
        if (judges or not isinstance(error, errors.timeout)) and self.breaker.open(place, error) and name:
            log.info("limiter %r: the server is unavailable: %s", name, error)

    def _answered(self, server: Server, place: Place, name: str) -> None:
        server.gate.answers += 1
        server.answered_at = time.monotonic()
        if self.breaker.close(place) and name:
            log.info("limiter %r: the server is available again", name)

    async def _decide(self, server: Server, command: Command, deadline: Deadline) -> Any:
        # A replica has what its primary has, which it cannot be asked for.
        primary = self.servers.primary_of(command, server)
        mode = self._modes.get(primary.name) or await self._detect(primary)
        try:
            return await self._send(server, command, mode, deadline, fresh=False)
        except Stale as stale:
            asked = primary if stale.server is server else stale.server
            found = await self._detect(asked)
            # The call may have been redirected, and both nodes have to know what is sent.
            server = await self.servers.of(command, deadline)
            mode = MODES[max(MODES.index(found), -1 if asked is primary else MODES.index(mode))]
            return await self._send(server, command, mode, deadline, fresh=True)

    async def _send(self, server: Server, command: Command, mode: Mode, deadline: Deadline, *, fresh: bool) -> Any:
        """Sends a command until the server has decided it. ``fresh``: the mode was probed just now."""
        errors = self.errors
        pause = FIRST_PAUSE
        whole = resent = False
        asked: list[Server] = []
        while True:
            began = time.monotonic()
            try:
                words = command.sent(mode, whole=whole, read_only=self._read_only)
                reply = await self.servers.execute(server, words, asked)
                command.is_sent = True
                return reply
            except BaseException as error:
                command.is_sent |= not hasattr(error, "redis_rl_unsent")
                if not isinstance(error, Exception):
                    raise
                if mode == "script" and command.reads and self._read_only and self._lacks(error):
                    self._read_only = False
                elif errors.is_try_again(error):
                    # This error says more than a time-out.
                    if deadline.left() < pause + 1.5 * (time.monotonic() - began):
                        raise
                    # Spread out, for the others that wait for the same slot.
                    await sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                    pause = min(pause * 2, LONGEST_PAUSE)
                elif errors.is_lost(error) and command.repeatable and not resent:
                    resent = True
                    server.renew()
                elif isinstance(error, errors.kinds.NoScriptError) and mode == "script" and not whole:
                    # The server may be another one. A replica may lack what its primary has: a peek tells nothing.
                    if not (fresh or self._chosen or command.reads):
                        raise Stale(asked[-1]) from error
                    whole = True
                elif errors.is_unknown(error) and not fresh and self._chosen in (None, "functions"):
                    raise Stale(asked[-1]) from error
                else:
                    raise

    def _probe_later(self, server: Server) -> None:
        known = self._probe_at.get(server.name)
        self._probe_at[server.name] = time.monotonic() + PROBE_EVERY
        if self._chosen is not None or known is None:
            return

        async def probe() -> None:
            try:
                async with Deadline(1.0, self.errors) as deadline:
                    if self.servers.is_cluster:
                        await self.servers.refresh(deadline)
                    async with server.gate.place(deadline):
                        await self._detect(server)
            except Exception as error:
                # Also what the client library makes of connections that are closed meanwhile.
                log.info("the server could not be probed: %s", error)

        background(probe)

    async def _detect(self, server: Server) -> Mode:
        chosen = self._chosen
        mode = await self._found(server) if chosen is None or chosen == "functions" else chosen
        before = self._modes.get(server.name)
        self._modes[server.name] = mode
        if before != mode:
            where = f"the server {server.name}" if server.name else "the server"
            log.info("%s is used by %s", where, {"module": "its module"}.get(mode, mode))
        return mode

    async def _found(self, server: Server) -> Mode:
        # Without arguments the command is an error that changes nothing: "unknown", or "wrong number of arguments".
        if self._chosen is None and not self._lacks(await self._reply(server, "RL.ALL")):
            return "module"
        answer = await self._reply(server, "FCALL", "rl_all", 0)
        missing = self._lacks(answer)
        if not self.errors.is_unknown_command(answer):
            if missing:
                missing = await self._load_once(server)
            elif self._modes.get(server.name) != "functions" and await self._is_older(server):
                await self._load_library(server, "REPLACE")
        return "script" if missing and self._chosen is None else "functions"

    async def _load_once(self, server: Server) -> bool:
        """Loads the library, or waits while another caller does. Returns whether it is missing still."""
        loads = time.monotonic() >= self._loading.get(server.name, 0.0)
        if loads:
            self._loading[server.name] = time.monotonic() + LOADING
            try:
                await self._load_library(server)
            finally:
                self._loading[server.name] = 0.0
        while True:
            missing = self._lacks(await self._reply(server, "FCALL", "rl_all", 0))
            if loads or not missing or time.monotonic() >= self._loading.get(server.name, 0.0):
                return missing
            await sleep(FIRST_PAUSE)

    async def _is_older(self, server: Server) -> bool:
        """Whether a server has a library from before ours."""
        text = str(await self._reply(server, "FUNCTION", "LIST", "LIBRARYNAME", "rl", "WITHCODE"))
        # Somebody else's library of that name is left alone.
        return "redis-rl" in text and library_version(text) < library_version(source("library"))

    async def _load_library(self, server: Server, *options: str) -> None:
        answer = await self._reply(server, "FUNCTION", "LOAD", *options, source("library"))
        if isinstance(answer, Exception) and "already exists" not in str(answer):
            log.info("the function library could not be loaded: %s", answer)

    async def _reply(self, server: Server, *words: Word) -> Any:
        """The server's reply, which may be an error. That it is unavailable is raised."""
        try:
            return await server.execute(list(words))
        except self.errors.response as error:
            if self.errors.is_unavailable(error):
                raise
            return error

    def _lacks(self, answer: object) -> bool:
        # A user who may not call it can do without it: a script needs other permissions.
        return self.errors.is_unknown(answer) or isinstance(answer, self.errors.kinds.NoPermissionError)

    async def leave(self, user: object, seconds: float) -> None:
        """A limiter is closed. With the last of them the connections of our own are."""
        await ended(seconds)
        self.users.discard(user)
        if not self.users:
            # TLS says farewell, which a server that hangs does not answer.
            with contextlib.suppress(self.errors.timeout):
                async with Deadline(seconds, self.errors):
                    await self.servers.aclose()
