"""Completes the package when it is built.

Takes the Lua sources of the repository's functions/ into it, and makes `redis_rl._sync`, for threads, of
`redis_rl._async`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LUA = ("rl.library.lua", "rl.script.lua")
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
        sources = Path(self.root).parents[1] / "functions"
        if not (sources / LUA[0]).exists():
            return
        inside = "src/redis_rl/lua" if self.target_name == "sdist" else "redis_rl/lua"
        for name in LUA:
            build_data["force_include"][str(sources / name)] = f"{inside}/{name}"
