"""Completes the package when it is built.

Puts the Lua sources in ../go/lua together in it, and makes `redis_rl._sync`, for threads, of
`redis_rl._async`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# io.py has nothing in common: threads and asyncio are what it deals with.
TWINS = ("core.py", "guard.py", "limiter.py", "limits.py", "servers.py", "waiting.py")
CHANGES = (
    (r"\b(async|await) ", ""),
    (r"\bAsync(?=[A-Z])|\.aio\b", ""),
    (r"\b__a(enter|exit)__", r"__\1__"),
    (r"\baclose\b", "close"),
)


class Completion(BuildHookInterface):  # type: ignore[type-arg]
    """A source distribution has all files in place, and a wheel that is built of it takes them from there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        package = Path(self.root, "src/redis_rl")
        for name in TWINS:
            text = (package / "_async" / name).read_text(encoding="utf-8")
            for old, new in CHANGES:
                text = re.sub(old, new, text)
            (package / "_sync" / name).write_text(text, encoding="utf-8")
        sources = Path(self.root).parent / "go/lua"
        if not sources.exists():
            return
        (package / "lua").mkdir(exist_ok=True)
        for kind in ("library", "script"):
            parts = [sources / f"{part}.lua" for part in (f"{kind}.head", "core", f"{kind}.tail")]
            text = "".join(part.read_text(encoding="utf-8") for part in parts)
            (package / "lua" / f"rl.{kind}.lua").write_text(text, encoding="utf-8")
