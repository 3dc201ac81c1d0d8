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


def run(sources: Path, folder: Path, suite: str) -> str:
    """Runs a part of the tests on a server of its own."""
    shutil.copytree(sources, folder)
    server = Server("module", frozen=False)
    try:
        done = subprocess.run(
            # Their settings want plugins and coverage, and are strict about open sockets.
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-rA",
                "-o",
                "addopts=",
                "-o",
                "filterwarnings=default",
                *suite.split(),
            ],
            cwd=folder,
            env={**os.environ, "LIMITS_TEST_PORT": str(server.port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout
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
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(run, sources, tmp_path / f"part-{n}", suite) for n, suite in enumerate(SUITES)]
    output = "\n".join(job.result() for job in jobs)
    passed = len(re.findall(r"^PASSED", output, re.MULTILINE))
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", output, re.MULTILINE))
    assert failed == NOT_OURS, output
    assert passed >= 105, output
