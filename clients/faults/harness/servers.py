"""Servers on free ports, in private folders: one, a cluster, sentinels. They can hang, die and come back."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from . import resp

ROOT = Path(__file__).resolve().parents[3]
MODULE = Path(os.environ.get("MODULE", ROOT / "target/release/libredis_rl.so"))
SLOTS = 16384
_libc = ctypes.CDLL(None)
_taken: set[int] = set()


def program() -> str:
    """The server to run: SERVER, or what is installed."""
    found = os.environ.get("SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
    assert found, "the fault suite needs redis-server or valkey-server in PATH, or its path in SERVER"
    return found


def end_with_parent() -> None:
    """Has the kernel kill a server whose harness was killed (Linux)."""
    _libc.prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG.


def free_port() -> int:
    """A port on which nobody listens, nor 10000 above it, where a cluster's node has its bus."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            if port in _taken or port + 10_000 > 65_535:
                continue
            with contextlib.suppress(OSError):
                second.bind(("127.0.0.1", port + 10_000))
                _taken.add(port)
                return port


async def until(what: str, happens: Callable[[], Awaitable[Any]], seconds: float = 30) -> Any:
    """Asks until something has happened."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, resp.ServerError):
            if found := await happens():
                return found
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        await asyncio.sleep(0.02)


def lua(kind: str) -> str:
    """The source of the script or of the library, as the packages have it."""
    return "".join(
        (ROOT / f"clients/go/lua/{part}.lua").read_text() for part in (f"{kind}.head", "core", f"{kind}.tail")
    )


class Server:
    """A server. ``mode``: what it offers to a client that looks: module, functions, or script (neither of them)."""

    def __init__(self, mode: str = "module", *arguments: str) -> None:
        self.mode = mode
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="redis-rl-faults-"))
        self.arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self, mode: str | None = None) -> Server:
        """Starts it, at first or again after it was killed, then without its data."""
        self.mode = mode or self.mode
        words = [program(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        words += ["--dir", str(self.folder), "--logfile", str(self.folder / "log"), "--enable-module-command", "yes"]
        words += ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
        if self.mode == "module":
            words += ["--loadmodule", str(MODULE)]
        elif self.mode == "script":
            words += ["--rename-command", "FCALL", "", "--rename-command", "FCALL_RO", ""]
        words += self.arguments
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=end_with_parent
        )
        await until(f"the server answers, {self.folder}/log", lambda: self.run("PING"))
        return self

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def run(self, *words: object) -> Any:
        return await resp.call(self.port, *words)

    def hang(self) -> None:
        """It accepts connections, as the kernel does that, and answers nothing."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def used(self, key: str, rule: dict[str, Any]) -> int:
        """The units that the server has counted at the key, read by itself."""
        if rule["kind"] == "lease":
            # Those that are held, and have not ended.
            now = await self.run("TIME")
            return int(await self.run("ZCOUNT", key, f"({int(now[0]) * 1000 + int(now[1]) // 1000}", "+inf"))
        return (await self.state(key, rule))["used"]

    async def state(self, key: str, rule: dict[str, Any]) -> dict[str, int]:
        """What the server says of the key, which is no lease."""
        words = [rule["kind"], *_words(rule)]
        if self.mode == "module":
            reply = await self.run("RL.PEEK", key, *words, "COST", 0, "FULL")
        else:
            reply = await self.run("EVAL", lua("script"), 1, key, "peek", *words, "COST", 0, "FULL")
        return dict(zip(reply[::2], map(int, reply[1::2]), strict=True))

    async def connections(self) -> int:
        """Connections of clients that are open, without the one that asks."""
        found = await self.run("CLIENT", "LIST", "TYPE", "normal")
        return len(found.strip().splitlines()) - 1

    async def calls_of(self, command: str) -> int:
        """How many calls of a command the server has carried out, refused ones too."""
        lines = (await self.run("INFO", "commandstats")).splitlines()
        found = [line for line in lines if line.startswith(f"cmdstat_{command.lower()}:")]
        return int(found[0].split("calls=")[1].split(",")[0]) if found else 0


def _words(rule: dict[str, Any]) -> list[object]:
    """The windows of a rule of the scenarios, such as 5/minute."""
    lengths = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86400}
    words: list[object] = []
    for rate in ",".join(rule.get("rates", ())).split(","):
        if rate:
            limit, unit = rate.strip().split("/")
            number = unit.rstrip("abcdefghijklmnopqrstuvwxyz")
            words += [int(float(number or 1) * lengths[unit[len(number) :]]), int(limit)]
    return words


class Cluster:
    """Three primaries, each with a replica."""

    def __init__(self, mode: str = "module", timeout_ms: int = 2000) -> None:
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(timeout_ms)]
        self.nodes = [Server(mode, *options) for _ in range(6)]
        self.primaries, self.replicas = self.nodes[:3], self.nodes[3:]

    async def start(self) -> Cluster:
        await asyncio.gather(*(node.start() for node in self.nodes))
        first = self.nodes[0]
        for number, node in enumerate(self.primaries):
            span = range(-(-number * SLOTS // 3), -(-(number + 1) * SLOTS // 3))
            await node.run("CLUSTER", "ADDSLOTS", *span)
            await node.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)

        async def met() -> bool:
            # Again and again: on a busy machine a handshake may end before it is done.
            for node in self.nodes[1:]:
                await first.run("CLUSTER", "MEET", "127.0.0.1", node.port)
            await asyncio.sleep(0.3)
            known = [await node.run("CLUSTER", "NODES") for node in self.nodes]
            return all(nodes.count("connected") == 6 and "handshake" not in nodes for nodes in known)

        await until("the nodes have met", met)
        for primary, replica in zip(self.primaries, self.replicas, strict=True):
            name = await primary.run("CLUSTER", "MYID")
            await until("a replica knows its primary", lambda r=replica, n=name: r.run("CLUSTER", "REPLICATE", n))
        await until("the cluster works", self._works)
        return self

    async def _works(self) -> bool:
        for node in self.nodes:
            nodes, info = await resp.calls(node.port, [("CLUSTER", "NODES"), ("CLUSTER", "INFO")])
            if "cluster_state:ok" not in info or nodes.count("slave ") != 3 or "handshake" in nodes:
                return False
            # A replica is shown to clients only when it is known to follow.
            shown = str(await node.run("CLUSTER", "SLOTS"))
            if not all(str(each.port) in shown for each in self.nodes):
                return False
        for replica in self.replicas:
            if "master_link_status:up" not in await replica.run("INFO", "replication"):
                return False
        return True

    def key_on(self, number: int, suffix: str = "") -> str:
        """A key whose slot is on that primary at the start."""
        tags = (f"{{{suffix}{i}}}k" for i in range(1000))
        return next(tag for tag in tags if slot_of(tag) * 3 // SLOTS == number)

    @property
    def startup(self) -> list[str]:
        """What a client is given."""
        return [f"127.0.0.1:{node.port}" for node in self.primaries]

    def end(self) -> None:
        for node in self.nodes:
            node.end()


def slot_of(key: str) -> int:
    """CRC16 of the key, or of its hash tag."""
    start = key.find("{")
    end = key.find("}", start + 1)
    hashed = key[start + 1 : end] if 0 <= start < end - 1 else key
    crc = 0
    for byte in hashed.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % SLOTS


class Sentinels:
    """One sentinel, which names a primary ``limits`` and fails over to its replica after half a second."""

    def __init__(self) -> None:
        self.primary, self.replica = Server(), Server()
        self.sentinel = Server("sentinel")

    async def start(self) -> Sentinels:
        await asyncio.gather(self.primary.start(), self.replica.start())
        await self.replica.run("REPLICAOF", "127.0.0.1", self.primary.port)
        await until("the replica is linked", self._linked)
        folder, port = self.sentinel.folder, self.sentinel.port
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder}/log\n"
            f"sentinel monitor limits 127.0.0.1 {self.primary.port} 1\n"
            "sentinel down-after-milliseconds limits 500\nsentinel failover-timeout limits 4000\n"
        )
        words = [program(), str(config), "--sentinel"]
        self.sentinel.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, preexec_fn=end_with_parent)
        await until("the sentinel knows the replica", self._knows)
        return self

    async def _linked(self) -> bool:
        return "master_link_status:up" in await self.replica.run("INFO", "replication")

    async def _knows(self) -> bool:
        return str(self.replica.port) in str(await self.sentinel.run("SENTINEL", "REPLICAS", "limits"))

    async def primary_port(self) -> int:
        """What the sentinel answers."""
        return int((await self.sentinel.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "limits"))[1])

    def end(self) -> None:
        for each in (self.sentinel, self.primary, self.replica):
            each.end()
