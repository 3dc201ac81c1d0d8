"""Makes src/redis_rl/_sync of src/redis_rl/_async, with unasync.

python scripts/make_sync.py [--check]
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import unasync

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/redis_rl"
# io.py has nothing in common: threads and asyncio are what it deals with.
MADE = ("core.py", "guard.py", "limiter.py", "limits.py", "servers.py")
NAMES = {
    "AsyncAnswer": "Answer",
    "AsyncGuard": "Guard",
    "AsyncKept": "Kept",
    "AsyncKeyOf": "KeyOf",
    "AsyncLimiter": "Limiter",
    "AsyncRuleOf": "RuleOf",
    "AsyncHeldLease": "HeldLease",
    "AsyncReservation": "Reservation",
    "AsyncPending": "Pending",
    "AsyncRlStorage": "RlStorage",
    "aclose": "close",
}


def make(folder: Path) -> list[Path]:
    """Makes the files in a folder, formatted."""
    rule = unasync.Rule(f"{PACKAGE}/_async/", f"{folder}/", NAMES)
    unasync.unasync_files([str(PACKAGE / "_async" / name) for name in MADE], [rule])
    made = [folder / name for name in MADE]
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    for options in (["check", "--select", "I", "--fix"], ["format"]):
        command: list[str | Path] = [ruff, *options, "--quiet", "--config", ROOT / "pyproject.toml", *made]
        subprocess.run(command, check=True)  # noqa: S603
    return made


def main() -> None:
    """Makes the files, or with --check fails if they are not those that would be made."""
    target = PACKAGE / "_sync"
    if "--check" not in sys.argv[1:]:
        make(target)
        return
    with tempfile.TemporaryDirectory() as folder:
        for file in make(Path(folder)):
            if file.read_text() != (target / file.name).read_text():
                sys.exit(f"{target / file.name} is not made of _async/{file.name}: run scripts/make_sync.py")


if __name__ == "__main__":
    main()
