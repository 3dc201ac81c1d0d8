"""The tests that other packages ship with their sources, run on what is installed here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

FAILED = re.compile(r"^(?:FAILED|ERROR) \S+::(\w+)", re.MULTILINE)


def unpacked(variable: str, package: str, conftest: str, into: Path) -> Path:
    """The sources that an environment variable names, with a conftest of ours, and without the package itself: the
    installed one is tested."""
    sdist = os.environ.get(variable)
    if not sdist:
        pytest.skip(f"its own tests are not here: {variable} is not set")
    with tarfile.open(sdist) as archive:
        archive.extractall(into, filter="data")
    (sources,) = into.iterdir()
    shutil.rmtree(sources / package)
    shutil.copy(Path(__file__).with_name(conftest), sources / "tests/conftest.py")
    return sources


def run(folder: Path, words: str, **environment: str) -> str:
    """Runs some of the tests, and returns what pytest prints."""
    # Their settings want plugins and coverage, and are strict about open sockets.
    options = ["-q", "-rA", "-o", "addopts=", "-o", "filterwarnings=default"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words.split()],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    ).stdout
