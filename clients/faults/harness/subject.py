"""A subject: a program that makes the calls of one package, as it is told on stdin. README.md has the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .servers import ROOT, end_with_parent


@dataclass(frozen=True)
class Kind:
    """A row of subjects.toml."""

    name: str
    run: list[str]
    env: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    reference: bool = False
    quick: bool | list[str] = True
    """Whether it plays the fixed choice, or which scenarios of it."""

    def is_here(self) -> bool:
        """Whether its program has been built or installed."""
        return not self.needs or (ROOT / self.needs).exists()


class Reply(dict[str, Any]):
    """What a subject answered."""

    @property
    def outcome(self) -> str:
        return str(self["outcome"])

    @property
    def ms(self) -> float:
        return float(self.get("ms", 0))

    @property
    def lag(self) -> float:
        """How late the subject's own timer was while the call was under way: its share of the time."""
        return float(self.get("lag_ms", 0))

    @property
    def outcomes(self) -> dict[str, int]:
        """Of a crowd: how many calls ended in which way."""
        return dict(self.get("outcomes", {}))

    @property
    def allowed(self) -> int:
        return self.outcomes.get("allowed", 0) if "outcomes" in self else int(self.outcome == "allowed")

    def __str__(self) -> str:
        told = {name: value for name, value in self.items() if name not in ("id", "result", "lag_ms") and value}
        return " ".join(f"{name}={value}" for name, value in told.items())


class Subject:
    """A running subject."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.can: set[str] = set()
        self.logs: list[tuple[float, str, str]] = []
        """Time, level and text of each log line."""
        self.hooks: list[dict[str, str]] = []
        """What the hooks of limiters were told."""
        self.keys: dict[str, str] = {}
        """The names that keys have on the server, where they are others."""
        self._asked: dict[int, asyncio.Future[Reply]] = {}
        self._events: dict[tuple[int, str], asyncio.Event] = {}
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._complaints: list[str] = []

    async def start(self, env: dict[str, str]) -> Subject:
        env = {**os.environ, **self.kind.env, **env}
        words = [str(ROOT / word) if (ROOT / word).exists() else word for word in self.kind.run]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, env=env, limit=1 << 24,
            preexec_fn=end_with_parent, start_new_session=True,
        )  # fmt: skip
        self._ready: asyncio.Future[set[str]] = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._overhear())]
        self.can = await asyncio.wait_for(self._ready, 60)
        return self

    async def call(self, do: str, **fields: Any) -> Reply:
        """Tells it a command, and waits for its end."""
        return await self.begin(do, **fields)

    def begin(self, do: str, **fields: Any) -> asyncio.Future[Reply]:
        """Tells it a command. The future has its number as ``number``, to cancel it or to wait for its events."""
        self._number += 1
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        reply.number = self._number  # type: ignore[attr-defined]
        reply.key = fields.get("key")  # type: ignore[attr-defined]
        self._asked[self._number] = reply
        if self._process.returncode is not None:
            reply.set_result(Reply(outcome="died", error=self.last_words()))
            return reply
        assert self._process.stdin
        given = {name: value for name, value in fields.items() if value is not None}
        self._process.stdin.write(json.dumps({"id": self._number, "do": do, **given}).encode() + b"\n")
        return reply

    async def event(self, begun: asyncio.Future[Reply], name: str) -> None:
        """Waits until the command has told that, or has ended."""
        told = self._events.setdefault((begun.number, name), asyncio.Event())  # type: ignore[attr-defined]
        waiting = asyncio.ensure_future(told.wait())
        await asyncio.wait([begun, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    def lines(self, since: float = 0) -> list[str]:
        """Log lines from warnings upwards, and what a library printed on stderr."""
        return [text for at, level, text in self.logs if at >= since and level not in ("debug", "info")]

    def last_words(self) -> str:
        return " | ".join(self._complaints[-6:])

    def rss(self) -> int:
        """The memory of the process, in bytes."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        """It does nothing until it goes on, as a process whose share of the processor is used up."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Its children, too: it has a session of its own. Calls under way end as ``died``."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)

    async def end(self) -> None:
        self.kill()
        await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                self._complaints.append(line.decode(errors="replace").rstrip())
                continue
            if "can" in told:
                self._ready.set_result(set(told["can"]))
            elif "log" in told:
                self.logs.append((time.monotonic(), told["log"], told["text"]))
            elif "hook" in told:
                self.hooks.append(told["hook"])
            elif "event" in told:
                self._events.setdefault((told["id"], told["event"]), asyncio.Event()).set()
            elif (reply := self._asked.pop(told["id"], None)) and not reply.done():
                if "key" in told:
                    self.keys[reply.key] = told["key"]  # type: ignore[attr-defined]
                reply.set_result(Reply(told))
        await self._process.wait()
        await asyncio.sleep(0.1)  # So that its last words are read.
        if not self._ready.done():
            self._ready.set_exception(RuntimeError(f"the subject did not start: {self.last_words()}"))
        for reply in self._asked.values():
            if not reply.done():
                reply.set_result(Reply(outcome="died", error=self.last_words()))

    async def _overhear(self) -> None:
        assert self._process.stderr
        async for line in self._process.stderr:
            self._complaints.append(line.decode(errors="replace").rstrip())
