"""limits' own tests of its strategies and storages, on ours. LIMITS_SDIST is the source distribution of limits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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


FAILED = re.compile(r"^(?:FAILED|ERROR) \S+::(\w+)", re.MULTILINE)


def run(folder: Path, words: str) -> str:
    """Runs a part of the tests on a server of its own."""
    server = Server("module", frozen=False)
    try:
        # Their settings want plugins and coverage, and are strict about open sockets.
        options = ["-q", "-rA", "-o", "addopts=", "-o", "filterwarnings=default"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *words.split()],
            cwd=folder,
            env={**os.environ, "LIMITS_TEST_PORT": str(server.port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        ).stdout
    finally:
        server.kill()


def test_limits_own_tests(tmp_path: Path) -> None:
    sdist = os.environ.get("LIMITS_SDIST")
    if not sdist:
        pytest.skip("limits' own tests are not here: LIMITS_SDIST is not set")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (sources,) = tmp_path.iterdir()
    # The installed limits is tested, with our storages.
    shutil.rmtree(sources / "limits")
    shutil.copy(Path(__file__).with_name("peers_conftest.py"), sources / "tests/conftest.py")
    folders = [shutil.copytree(sources, tmp_path / f"part-{number}") for number in range(len(SUITES))]
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(run, folders, SUITES))
    passed = sum(output.count("\nPASSED") for output in outputs)
    # Some of them sleep, and allow a tenth of a second for all else: what fails beside others is run again alone.
    for number, folder in enumerate(folders):
        for _ in range(3):
            if set(FAILED.findall(outputs[number])) <= NOT_OURS:
                break
            outputs[number] = run(folder, f"--last-failed {SUITES[number]}")
            passed += outputs[number].count("\nPASSED")
    output = "\n".join(outputs)
    assert set(FAILED.findall(output)) == NOT_OURS, output
    assert passed >= 105, output
