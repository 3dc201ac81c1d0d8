"""Takes the Lua sources of the repository's functions/ into the package when it is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILES = ("rl.library.lua", "rl.script.lua")


class LuaSources(BuildHookInterface):  # type: ignore[type-arg]
    """A source distribution has the files in place, and a wheel that is built of it takes them from there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources = Path(self.root).parents[1] / "functions"
        if not (sources / FILES[0]).exists():
            return
        inside = "src/redis_rl/lua" if self.target_name == "sdist" else "redis_rl/lua"
        for name in FILES:
            build_data["force_include"][str(sources / name)] = f"{inside}/{name}"
