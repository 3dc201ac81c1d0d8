"""Live servers for the tests: in private folders, on free ports, killed at the end, with a clock set by hand."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from redis_rl import Limiter, sliding

ROOT = Path(__file__).resolve().parents[3]
MODULE = Path(os.environ.get("MODULE", ROOT / "target/release/libredis_rl.so"))
START_MS = 1_700_000_000_000
SLOTS = 16384


def program() -> str:
    """The server to run: SERVER, or what is installed."""
    found = os.environ.get("SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")
    assert found, "the tests need redis-server or valkey-server in PATH, or its path in SERVER"
    return found


@functools.cache
def is_old() -> bool:
    """Whether the server is Redis 6.2, which has neither functions nor a way to load the module."""
    shown = subprocess.run([program(), "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return " v=6." in shown


def modes() -> tuple[str, ...]:
    """The kinds of server there can be."""
    return ("script",) if is_old() else ("module", "functions", "script")


def until(what: str, happens: Callable[[], object], seconds: float = 30) -> None:
    """Asks until something has happened."""
    deadline = time.monotonic() + seconds
    pause = 0.0
    while not happens():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(pause)
        pause = min(pause + 0.001, 0.02)


def free_port(bus: bool = False) -> int:
    """A port on which nobody listens; ``bus``: and none 10000 above it.

    At random, for test runs beside this one, and below those that the system gives to connections: it is free until
    the server takes it.
    """
    while True:
        port = random.randrange(10_000, 22_000)
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            if bus:
                second.bind(("127.0.0.1", port + 10_000))
            return port


_shim: Path | None = None


def shim(folder: Path) -> Path:
    """The library that puts a server's clock into a file. Built once a run."""
    global _shim
    if _shim is None:
        _shim = folder / "clock.so"
        source = ROOT / "tests/support/clock.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", _shim, source], check=True)
    return _shim


def end_with_parent() -> None:
    """Has the kernel kill a server whose test run was killed (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG.


def milliseconds(time: Any) -> int:
    """The reply of TIME in milliseconds."""
    seconds, micros = time
    return int(seconds) * 1000 + int(micros) // 1000


class Server:
    """A server. ``mode``: what it offers to a client that looks, the module, functions, or neither."""

    def __init__(self, mode: str, *, frozen: bool = True, arguments: Sequence[str] = (), bus: bool = False) -> None:
        self.mode = mode
        self.folder = Path(tempfile.mkdtemp(prefix="redis-rl-py-"))
        self.clock = self.folder / "clock"
        self._watcher: redis.Redis | None = None
        self._write_clock(START_MS if frozen else 0)
        self.port = free_port(bus)
        words = [program(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        words += ["--dir", str(self.folder), "--logfile", str(self.folder / "log")]
        words += ["--jemalloc-bg-thread", "no"]  # See clock.c.
        if not is_old():
            words += ["--enable-module-command", "yes"]
        if mode == "module":
            words += ["--loadmodule", str(MODULE)]
        elif mode == "script" and not is_old():
            words += ["--rename-command", "FCALL", "", "--rename-command", "FCALL_RO", ""]
        words += arguments
        self._words = words
        self.start()

    def start(self) -> None:
        """Starts the server, at first or anew after it was killed."""
        environment = {**os.environ, "LD_PRELOAD": str(shim(self.folder)), "RL_CLOCK": str(self.clock)}
        self.process = subprocess.Popen(
            self._words, env=environment, stdout=subprocess.DEVNULL, preexec_fn=end_with_parent
        )
        until("the server answers", self._answers)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def set_clock(self, ms: int) -> None:
        """Sets the time, and waits until the server has seen it; 0 lets the clock run."""
        self._write_clock(ms)
        if ms:
            watcher = self._watcher = self._watcher or self.client()
            until("the server sees the time", lambda: milliseconds(watcher.time()) == ms)

    def _write_clock(self, ms: int) -> None:
        # In place: the server has mapped the file.
        mode = "r+b" if self.clock.exists() else "wb"
        with self.clock.open(mode) as file:
            file.write(struct.pack("=q", ms * 1000))

    def client(self) -> redis.Redis:
        """A client of the tests' own, for looking at the server."""
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=10)

    def run(self, *words: str | int) -> object:
        with self.client() as client:
            return client.execute_command(*words)

    def clean(self) -> None:
        """Removes keys, functions and scripts, and puts the clock back."""
        self.set_clock(START_MS)
        with self.client() as client:
            client.flushall()
            client.script_flush()
        self.forget_functions()

    def forget_functions(self) -> None:
        if not is_old():
            self.run("FUNCTION", "FLUSH")

    def kill(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        log = self.folder / "log"
        assert self.process.poll() is None, log.read_text() if log.exists() else "the server did not start"
        try:
            return bool(self.run("PING"))
        except redis.ConnectionError:
            return False


def compact(server: Server) -> bool:
    """Whether new logs are compact, so that a request may weigh anything."""
    with redis.Redis(port=server.port) as client, Limiter(client, timeout=30) as limiter:
        try:
            return bool(limiter.hit("compact?", sliding("5000/s"), cost=1001))
        except redis.ResponseError as error:
            if "COST above 1000 needs a compact log" not in str(error):
                raise
            return False
        finally:
            client.delete("compact?")


class Sentinel:
    """A sentinel that names a server ``limits``."""

    def __init__(self, server: Server) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redis-rl-py-"))
        self.port = free_port()
        config = self.folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\nlogfile {self.folder}/log\n"
            f"sentinel monitor limits 127.0.0.1 {server.port} 1\n"
        )
        self.process = subprocess.Popen(
            [program(), config, "--sentinel"], stdout=subprocess.DEVNULL, preexec_fn=end_with_parent
        )
        until("the sentinel answers", self._answers)

    def _answers(self) -> bool:
        try:
            with redis.Redis(port=self.port) as client:
                return bool(client.sentinel_masters())
        except redis.ConnectionError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster:
    """Three primaries, of which the first has a replica, on the real clock."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000", "--repl-diskless-sync-delay", "0"]
        options += ["--repl-ping-replica-period", "1"]
        self.nodes = [Server(mode, frozen=False, arguments=options, bus=True) for _ in range(4)]
        first, *others = self.nodes
        for number, node in enumerate(self.nodes[:3]):
            node.run("CLUSTER", "ADDSLOTS", *range(-(-number * SLOTS // 3), -(-(number + 1) * SLOTS // 3)))
            node.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in others:
            first.run("CLUSTER", "MEET", "127.0.0.1", node.port)
        self.replica = self.nodes[3]
        until("the replica finds its primary", self._replicates)
        until("the cluster works", lambda: all(map(self._is_complete, self.nodes)))
        until("the replica is linked", lambda: "master_link_status:up" in self._info(self.replica))

    @property
    def startup(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", node.port) for node in self.nodes[:3]]

    def owner(self, key: str) -> Server:
        """The primary that had the key's slot at the start."""
        return self.nodes[key_slot(key.encode()) * 3 // SLOTS]

    def key_on(self, number: int, suffix: str = "") -> str:
        """A hash tag whose slot is on the node."""
        return next(tag for tag in (f"{{{suffix}{i}}}" for i in range(1000)) if self.owner(tag) is self.nodes[number])

    def clean(self) -> None:
        for node in self.nodes[:3]:
            node.run("FLUSHALL")
            node.run("SCRIPT", "FLUSH")
            node.forget_functions()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def id(self, node: Server) -> str:
        return str(node.run("CLUSTER", "MYID"))

    def _replicates(self) -> bool:
        try:
            return bool(self.replica.run("CLUSTER", "REPLICATE", self.id(self.nodes[0])))
        except redis.ResponseError:
            return False

    @staticmethod
    def _info(node: Server) -> str:
        with socket.create_connection(("127.0.0.1", node.port)) as plain:
            plain.sendall(b"INFO replication\r\n")
            return plain.recv(65536).decode()

    def _is_complete(self, node: Server) -> bool:
        with socket.create_connection(("127.0.0.1", node.port)) as plain:
            plain.sendall(b"CLUSTER NODES\r\n")
            nodes = plain.recv(65536).decode()
        with socket.create_connection(("127.0.0.1", node.port)) as plain:
            plain.sendall(b"CLUSTER INFO\r\n")
            info = plain.recv(65536).decode()
        # A replica is shown to clients only when it is known to follow.
        seen = str(node.run("CLUSTER SLOTS"))
        return "cluster_state:ok" in info and nodes.count("slave ") == 1 and str(self.replica.port) in seen


class Proxy:
    """Stands between a client and a server, and loses replies: it breaks the connection in place of passing one on."""

    CALLS = (b"RL.", b"FCALL", b"EVALSHA")
    PROBES = (b"RL.ALL", b"rl_all")

    def __init__(self, server: Server) -> None:
        self.lose = 0
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # So that accept() returns.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        doomed = False
        with client, socket.create_connection(("127.0.0.1", self._server.port)) as server, contextlib.suppress(OSError):
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 20)
                    if not data or (doomed and ready is server):
                        return
                    if ready is client:
                        if self.lose and has(data, self.CALLS) and not has(data, self.PROBES):
                            self.lose -= 1
                            doomed = True
                        server.sendall(data)
                    else:
                        client.sendall(data)


def has(data: bytes, parts: Sequence[bytes]) -> bool:
    return any(part in data for part in parts)


class Forwarder:
    """Passes connections on to a server, or to no one: what hangs or refuses is on a port that stays."""

    def __init__(self, server: Server) -> None:
        self._port = server.port
        self._open: list[socket.socket] = []
        self._passes = threading.Event()
        self._passes.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, server: Server) -> None:
        """Breaks the connections, and passes new ones on to this server."""
        self._port = server.port
        self.cut()

    def cut(self) -> None:
        """Breaks the connections."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def hang(self) -> None:
        """Accepts connections and what they bring, and passes nothing on."""
        self._passes.clear()

    def resume(self) -> None:
        """Passes on what has come, and what comes."""
        self._passes.set()

    def close(self) -> None:
        self.resume()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self._passes.wait()
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
