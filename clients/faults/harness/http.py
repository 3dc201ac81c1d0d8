"""As much of HTTP/1.1 as it takes to be the clients of an application, many of them at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """A response. Status 0: the connection broke, or there was none in time."""

    status: int
    headers: dict[str, str]
    body: str
    ms: float


class Connection:
    """A connection that is kept, for one request after the other."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str = "/", timeout: float = 30, body: str = "", **headers: str) -> Answer:
        """One request. ``x_key`` in ``headers`` is the field ``x-key``; with a body it is a POST."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                status, told, text = await self._get(path, body, headers)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.close()
            return Answer(0, {}, f"{type(error).__name__}: {error}", (time.monotonic() - began) * 1000)
        return Answer(status, told, text, (time.monotonic() - began) * 1000)

    async def open(self, path: str, body: str = "", **headers: str) -> asyncio.StreamReader:
        """Sends a request, and leaves its response to be read."""
        self._streams = self._streams or await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        reader, writer = self._streams
        fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        method = "POST" if body else "GET"
        length = f"content-length: {len(body.encode())}\r\n" if body else ""
        writer.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{length}{fields}\r\n{body}".encode())
        return reader

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _get(self, path: str, sent: str, given: dict[str, str]) -> tuple[int, dict[str, str], str]:
        reader = await self.open(path, sent, **given)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        elif "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body = await reader.read()
            self.close()
        if headers.get("connection", "").lower() == "close":
            self.close()
        return int(head[0].split()[1]), headers, body.decode(errors="replace")


class App:
    """An application that a subject serves."""

    def __init__(self, port: int, refuses: int) -> None:
        self.port = port
        self.refuses = refuses
        """The status for a request while the server is away, with the policy closed."""

    async def get(self, path: str = "/", timeout: float = 30, **headers: str) -> Answer:
        """A request on a connection of its own."""
        connection = Connection(self.port)
        try:
            return await connection.get(path, timeout, **headers)
        finally:
            connection.close()

    async def crowd(self, n: int, timeout: float = 30, **headers: str) -> Counter[int]:
        """Requests at once, each on a connection of its own, and how many were answered with which status."""
        answers = await asyncio.gather(*(self.get(timeout=timeout, **headers) for _ in range(n)))
        return Counter(answer.status for answer in answers)

    async def each(self, keys: list[str], width: int = 16, **headers: str) -> Counter[int]:
        """A request for each identity, some of them at once."""
        statuses: Counter[int] = Counter()
        left = iter(keys)

        async def caller() -> None:
            connection = Connection(self.port)
            for key in left:
                statuses[(await connection.get(x_key=key, **headers)).status] += 1
            connection.close()

        await asyncio.gather(*(caller() for _ in range(width)))
        return statuses
