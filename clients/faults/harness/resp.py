"""As much of RESP2 as the harness needs to look at a server by itself, past the subject and past the proxy."""

from __future__ import annotations

import asyncio
from typing import Any


class ServerError(Exception):
    """A reply that is an error, with the server's words."""


async def call(port: int, *words: object, timeout: float = 10) -> Any:
    """One command on a connection of its own."""
    return (await calls(port, [words], timeout=timeout))[0]


async def calls(port: int, commands: list[tuple[object, ...]], timeout: float = 10) -> list[Any]:
    """Several commands, one after the other, on one connection."""
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            replies = []
            for words in commands:
                writer.write(encode(words))
                replies.append(await read(reader))
            return replies
        finally:
            writer.close()


def encode(words: tuple[object, ...]) -> bytes:
    """A command as it is sent."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


async def read(reader: asyncio.StreamReader) -> Any:
    """One reply. Texts are str, with the bytes that are not UTF-8 escaped."""
    line = (await reader.readuntil(b"\r\n"))[:-2].decode()
    kind, rest = line[:1], line[1:]
    if kind == "+":
        return rest
    if kind == "-":
        raise ServerError(rest)
    if kind == ":":
        return int(rest)
    if kind == "$":
        if rest == "-1":
            return None
        return (await reader.readexactly(int(rest) + 2))[:-2].decode(errors="backslashreplace")
    if kind == "*":
        return None if rest == "-1" else [await read(reader) for _ in range(int(rest))]
    raise ValueError(f"not RESP2: {line!r}")
