"""limits' own tests of its strategies and storages, on ours. LIMITS_SDIST is the source distribution of limits."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from peers import FAILED, run, unpacked
from servers import Server

SUITES = (
    "tests/test_strategy.py",
    "tests/test_storage.py tests/storage/test_redis.py",
    "tests/aio/test_strategy.py",
    "tests/aio/test_storage.py tests/aio/storage/test_redis.py",
)

# What they expect of their own storages alone.
NOT_OURS = {
    # An estimate from the window before; here the count is exact.
    "test_sliding_window_counter_previous_window",
    # The name of the key in the server.
    "test_custom_prefix",
}


def part(folder: Path, words: str) -> str:
    """Runs a part of the tests on a server of its own."""
    server = Server("module", frozen=False)
    try:
        return run(folder, words, LIMITS_TEST_PORT=str(server.port))
    finally:
        server.kill()


def test_limits_own_tests(tmp_path: Path) -> None:
    sources = unpacked("LIMITS_SDIST", "limits", "peers_conftest.py", tmp_path)
    folders = [shutil.copytree(sources, tmp_path / f"part-{number}") for number in range(len(SUITES))]
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(part, folders, SUITES))
    passed = sum(output.count("\nPASSED") for output in outputs)
    # Some of them sleep, and allow a tenth of a second for all else: what fails beside others is run again alone.
    for number, folder in enumerate(folders):
        for _ in range(3):
            if set(FAILED.findall(outputs[number])) <= NOT_OURS:
                break
            outputs[number] = part(folder, f"--last-failed {SUITES[number]}")
            passed += outputs[number].count("\nPASSED")
    output = "\n".join(outputs)
    assert set(FAILED.findall(output)) == NOT_OURS, output
    assert passed >= 105, output
