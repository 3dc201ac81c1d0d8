"""Sends one command through a client of redis-py or valkey-py, once.

These clients send a command again when its connection breaks before the reply, though the server may have counted
the request by then. A connection to a server is therefore taken out of the pool and used directly, which does the
same without the second sending. A cluster client does not send again to a node that it was given, and still follows
redirections, so it is given the node.
"""

from __future__ import annotations

import codecs
import inspect
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, Protocol

from ._protocol import Command, Errors, Everywhere, Mode, Send
from ._rules import Word

_NO_LOCK = nullcontext()


class SyncClient(Protocol):
    """A client of redis-py or valkey-py: Redis, RedisCluster, Valkey or ValkeyCluster."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


class AsyncClient(Protocol):
    """A client of redis.asyncio or valkey.asyncio."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...


def _is_cluster(client: object) -> bool:
    return hasattr(client, "nodes_manager")


def _named(pool: Any) -> list[str]:
    """What the pool wants to know before it gives a connection: nothing, or in older clients a command's name."""
    first = next(iter(inspect.signature(pool.get_connection).parameters.values()), None)
    wanted = first is not None and first.kind is first.POSITIONAL_OR_KEYWORD and first.default is first.empty
    return ["RL"] if wanted else []


def _is_utf8(client: Any) -> bool:
    """Whether the client would send text as UTF-8, as commands that are packed beforehand are."""
    encoder = client.get_encoder()
    return codecs.lookup(encoder.encoding).name == "utf-8" and encoder.encoding_errors == "strict"


def _node(client: Any, send: Send) -> Any:
    """The cluster's node for the command: a replica if it only reads, and the client is set to read from them."""
    if not send.reads:
        return client.nodes_manager.get_node_from_slot(client.keyslot(send.key))
    if not send.place:
        send.place.append(_reader(client, send))
    return send.place[0]


def _reader(client: Any, send: Send) -> Any:
    slot = client.keyslot(send.key)
    from_replicas = bool(getattr(client, "read_from_replicas", False))
    strategy = getattr(client, "load_balancing_strategy", None)
    options = {} if strategy is None else {"load_balancing_strategy": strategy}
    return client.nodes_manager.get_node_from_slot(slot, from_replicas, **options)


class SyncTransport:
    """Sends through a synchronous client."""

    def __init__(self, client: Any, errors: Errors, resend: bool) -> None:
        self._client = client
        self._errors = errors
        self._resend = resend
        self._cluster = _is_cluster(client)
        self._named = [] if self._cluster else _named(client.connection_pool)
        self._packs = _is_utf8(client)
        self.sends_once = not (self._cluster or resend)
        """Whether a command that writes goes out by `once`."""

    def send(self, send: Send) -> Any:
        client = self._client
        if self._cluster:
            if self._resend and not send.reads:
                return client.execute_command(*send.words)
            return client.execute_command(*send.words, target_nodes=_node(client, send))
        if self._resend or send.again:
            return client.execute_command(*send.words)
        return self._exchange(None, send.words)

    def once(self, command: Command, mode: Mode) -> Any:
        """Sends a command to one server."""
        packed = command.packed(mode) if self._packs else None
        return self._exchange(packed, command.send(mode).words if packed is None else ())

    def everywhere(self, op: Everywhere) -> list[Any]:
        if not self._cluster:
            return [self._answer(op.words)]
        primaries = self._client.get_primaries()
        return [self._answer(op.words, target_nodes=node) for node in primaries]

    def _answer(self, words: Sequence[Word], **options: Any) -> Any:
        try:
            return self._client.execute_command(*words, **options)
        except self._errors.response as error:
            return error

    def _exchange(self, packed: bytes | None, words: Sequence[Word]) -> Any:
        client = self._client
        own = client.connection
        if own is not None:
            lock: AbstractContextManager[Any] = getattr(client, "single_connection_lock", _NO_LOCK)
            with lock:
                return self._on(own, packed, words)
        pool = client.connection_pool
        connection = pool.get_connection(*self._named)
        try:
            return self._on(connection, packed, words)
        finally:
            pool.release(connection)

    def _on(self, connection: Any, packed: bytes | None, words: Sequence[Word]) -> Any:
        try:
            if packed is None:
                connection.send_command(*words)
            else:
                connection.send_packed_command((packed,))
            return connection.read_response()
        except self._errors.leave:
            connection.disconnect()
            raise


class AsyncTransport:
    """Sends through a client of asyncio."""

    def __init__(self, client: Any, errors: Errors, resend: bool) -> None:
        self._client = client
        self._errors = errors
        self._resend = resend
        self._cluster = _is_cluster(client)
        self._named = [] if self._cluster else _named(client.connection_pool)
        self._packs = _is_utf8(client)
        self.sends_once = not (self._cluster or resend)
        """Whether a command that writes goes out by `once`."""

    async def send(self, send: Send) -> Any:
        client = self._client
        if self._cluster:
            if self._resend and not send.reads:
                return await client.execute_command(*send.words)
            await client.initialize()
            return await client.execute_command(*send.words, target_nodes=_node(client, send))
        if self._resend or send.again:
            return await client.execute_command(*send.words)
        return await self._exchange(None, send.words)

    async def once(self, command: Command, mode: Mode) -> Any:
        """Sends a command to one server."""
        packed = command.packed(mode) if self._packs else None
        return await self._exchange(packed, command.send(mode).words if packed is None else ())

    async def everywhere(self, op: Everywhere) -> list[Any]:
        if not self._cluster:
            return [await self._answer(op.words)]
        await self._client.initialize()
        primaries = self._client.get_primaries()
        return [await self._answer(op.words, target_nodes=node) for node in primaries]

    async def _answer(self, words: Sequence[Word], **options: Any) -> Any:
        try:
            return await self._client.execute_command(*words, **options)
        except self._errors.response as error:
            return error

    async def _exchange(self, packed: bytes | None, words: Sequence[Word]) -> Any:
        client = self._client
        if client.single_connection_client:
            await client.initialize()
            lock: AbstractAsyncContextManager[Any] = getattr(client, "_single_conn_lock", _NO_LOCK)
            async with lock:
                return await self._on(client.connection, packed, words)
        pool = client.connection_pool
        connection = await pool.get_connection(*self._named)
        try:
            return await self._on(connection, packed, words)
        finally:
            await pool.release(connection)

    async def _on(self, connection: Any, packed: bytes | None, words: Sequence[Word]) -> Any:
        try:
            if packed is None:
                await connection.send_command(*words)
            else:
                await connection.send_packed_command((packed,))
            return await connection.read_response()
        except self._errors.leave:
            await connection.disconnect()
            raise
