"""The servers of a client: one, or the nodes of a cluster. Knows which of them has a key, and follows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .._client import Address, Client, clients_of
from .._protocol import Command
from .._rules import Word
from .io import INTERRUPTS, MOST_CONNECTIONS, Deadline, Gate, obedient

SLOTS = 16384

# Redirections that one call follows, as redis-py does.
MOST_REDIRECTIONS = 16


class Server:
    """A server, with connections of our own where these can be derived from the client's."""

    def __init__(
        self, client: Client, name: str, reconnected: Callable[[str], object], address: Address | None = None
    ) -> None:
        self.name = name
        self.answered_at = 0.0
        """When it answered last."""
        self._generation = 0
        self._reconnected = reconnected
        self._response = client.errors.response
        self.own = client.derive(self._connections, address)
        self.client: Any = self.own or client.client
        most = self.own.connection_pool.max_connections if self.own is not None else MOST_CONNECTIONS
        self.gate = Gate(min(most, MOST_CONNECTIONS), client.errors, self.aclose)

    async def execute(self, words: list[Word], asks: bool = False) -> Any:
        """Sends a command, behind an ASKING if it ``asks``."""
        try:
            if not asks:
                return await self.client.execute_command(*words)
            # For one command only, so both are sent at once.
            pipeline = self.client.pipeline(transaction=False)
            pipeline.execute_command("ASKING")
            pipeline.execute_command(*words)
            answer = (await pipeline.execute(raise_on_error=False))[-1]
            if isinstance(answer, Exception):
                raise answer
            return answer
        except (self._response, ValueError):
            # An answer, or words that cannot be sent.
            raise
        except INTERRUPTS:
            # It may come before the answer is read: the next caller would get it.
            self.renew()
            raise

    def renew(self) -> None:
        """Has each connection opened anew before it is used again: the name may lead to another server now."""
        self._generation += 1

    async def aclose(self) -> None:
        for client in clients_of(self.own):
            await client.connection_pool.disconnect()

    def _connections(self, base: Any) -> Any:
        server = self

        class Connection(obedient(base)):  # type: ignore[misc]
            _made: int | None = None
            _was_open = False

            async def connect(self) -> None:
                generation = server._generation
                try:
                    if self._made != generation:
                        # In a loop nobody waits until it is closed.
                        await self.disconnect(True)
                    await super().connect()
                except BaseException as error:
                    # It came before the command was sent.
                    error.redis_rl_unsent = True  # type: ignore[attr-defined]
                    raise
                self._made = generation

            async def _connect(self) -> Any:
                plain = await super()._connect()
                if self._was_open:
                    server._reconnected(server.name)
                self._was_open = True
                return plain

        return Connection


class Servers:
    """The servers of a client, for one event loop or process."""

    def __init__(self, client: Client, reconnected: Callable[[str], object]) -> None:
        self._client = client
        self._reconnected = reconnected
        self._known: dict[str, Server] = {}
        self._slots: list[tuple[str, ...]] = [()] * SLOTS
        self._turn = 0
        self.suspects: set[str] = set()
        """Of a cluster, those that let a caller wait until it went away. Others may have their slots by now."""
        self.version = 0
        """How often the nodes of the cluster were read."""
        self._only = None if client.is_cluster else Server(client, "", reconnected)
        self.is_cluster = client.is_cluster

    def primaries(self) -> set[str]:
        return {names[0] for names in set(self._slots) if names}

    def name(self, command: Command) -> str:
        """The name of the server that has the command's key, as far as that is known."""
        if self._only is not None:
            return ""
        return next(iter(self._slots[self._client.client.keyslot(command.keys[0])]), "")

    def primary_of(self, command: Command, server: Server) -> Server:
        """The server itself, or of a replica the primary."""
        return self._known.get(self.name(command), server)

    async def of(self, command: Command, deadline: Deadline) -> Server:
        """The server that has the command's key, or to read from one of its replicas, if the client does so."""
        if self._only is not None:
            return self._only
        slot = self._client.client.keyslot(command.keys[0])
        if not self._slots[slot]:
            await self.refresh(deadline)
        names = self._slots[slot]
        if not names:
            raise self._client.errors.connection(f"no node of the cluster has slot {slot}")
        if command.reads and self._client.reads_from_replicas:
            self._turn += 1
            return self._known[names[self._turn % len(names)]]
        return self._known[names[0]]

    async def refresh(self, deadline: Deadline) -> None:
        """Reads from a node which nodes have which slots: from the one that has answered last."""
        seen = self.version
        for host, port in self._client.nodes():
            self._at(host, port)
        failure: Exception = self._client.errors.connection("no node of the cluster is known")
        for server in sorted(self._known.values(), key=lambda server: -server.answered_at):
            # Asked last the next time, unless it answers, also where the caller goes away meanwhile.
            server.answered_at = -1.0
            try:
                # A node that does not answer leaves time for the next one.
                part = Deadline(deadline.left() / 2 or deadline.least, self._client.errors)
                async with part, server.gate.place(part):
                    if self.version != seen:
                        server.answered_at = time.monotonic()
                        return
                    listed = await server.execute(["CLUSTER", "SLOTS"])
                server.answered_at = time.monotonic()
                if listed:
                    self._learn(server, listed)
                    return
            except Exception as error:
                failure = error
                server.renew()
        raise failure

    def _learn(self, asked: Server, listed: Any) -> None:
        own_host, _, _ = asked.name.rpartition(":")
        slots: list[tuple[str, ...]] = [()] * SLOTS
        for first, last, *nodes in listed:
            names = []
            for host, port, *_ in nodes:
                host = host.decode() if isinstance(host, bytes) else host
                names.append(self._at(*self._client.remapped(host or own_host, int(port))).name)
            slots[first : last + 1] = [tuple(names)] * (last - first + 1)
        self._slots = slots
        self.version += 1

    def _at(self, host: str, port: int) -> Server:
        name = f"{host}:{port}"
        server = self._known.get(name)
        if server is None:
            server = self._known[name] = Server(self._client, name, self._reconnected, (host, port))
        return server

    async def execute(self, server: Server, words: list[Word], asked: list[Server]) -> Any:
        """Sends a command, in a cluster to where it is redirected, and adds to ``asked`` whom it was sent to."""
        errors = self._client.errors
        asks, most = False, len(asked) + MOST_REDIRECTIONS
        while True:
            asked.append(server)
            try:
                return await server.execute(words, asks)
            except errors.response as error:
                found = errors.redirection(error) if self.is_cluster and len(asked) <= most else None
                if found is None:
                    raise
            kind, slot, host, port = found
            server = self._at(*self._client.remapped(host or server.name.rpartition(":")[0], port))
            asks = kind == "ASK"
            if not asks:
                self._slots[slot] = (server.name,)

    async def aclose(self) -> None:
        for server in list(self._known.values()) if self._only is None else [self._only]:
            await server.aclose()
