"""A TCP proxy between a subject and a server, which can be told what to do to connections."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol


class HasPort(Protocol):
    port: int


class Link:
    """One connection of the subject. What happens to replies is said by the proxy, or for this connection alone."""

    def __init__(self, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.writers = writers
        self.swallows = False

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """Its port stays, whatever is behind it: a name that moves, as it were."""

    def __init__(self, server: HasPort) -> None:
        self.links: list[Link] = []
        self.made = 0
        """Connections that the subject has made so far."""
        self.asked: list[tuple[float, bytes]] = []
        """When requests came, and which."""
        self._target = server.port
        self._flows = asyncio.Event()
        self._flows.set()
        self.delay = 0.0
        """Seconds that each reply is late."""
        self.trickle = 0.0
        """Seconds between two bytes of a reply; 0 passes replies on whole."""
        self.lose: Callable[[bytes], bool] = lambda request: False
        """Requests whose reply is lost: the connection is cut when the reply comes."""
        self.half: Callable[[bytes], bool] = lambda request: False
        """Requests of whose reply only half arrives, and then nothing more on this connection."""

    async def start(self) -> Proxy:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def point_to(self, server: HasPort) -> None:
        """New connections lead there; those that are open stay where they are."""
        self._target = server.port

    def hang(self) -> None:
        """Accepts connections and what they bring, and passes nothing on."""
        self._flows.clear()

    def resume(self) -> None:
        """Passes on what has come, and what comes."""
        self._flows.set()

    def swallow(self) -> None:
        """Those connections that are open bring nothing any more, and stay open; new ones work."""
        for link in self.links:
            link.swallows = True

    def cut(self) -> None:
        """Breaks the connections that are open."""
        for link in self.links:
            link.cut()

    def end(self) -> None:
        self._listener.close()
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target, limit=1 << 20)
        except OSError:
            writer.transport.abort()
            return
        link = Link((writer, to_writer))
        self.links.append(link)
        asked: list[bytes] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._up(link, reader, to_writer, asked))
                group.create_task(self._down(link, to_reader, writer, asked))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            link.cut()
            self.links.remove(link)

    async def _up(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bytes]
    ) -> None:
        while data := await reader.read(1 << 16):
            await self._flows.wait()
            if link.swallows:
                continue
            asked[:] = [data]
            self.asked.append((time.monotonic(), data))
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # The other direction ends, too.

    async def _down(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bytes]
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._flows.wait()
            request = asked[0] if asked else b""
            if self.lose(request):
                raise ConnectionResetError
            if link.swallows:
                continue
            if self.half(request):
                data, link.swallows = data[: len(data) // 2], True
            if self.trickle:
                for byte in data:
                    writer.write(bytes((byte,)))
                    await writer.drain()
                    await asyncio.sleep(self.trickle)
            else:
                writer.write(data)
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
        raise ConnectionResetError


def about(key: str) -> Callable[[bytes], bool]:
    """Whether a request names this key: a call of the scenario, and no handshake or probe."""
    return lambda request: key.encode() in request
