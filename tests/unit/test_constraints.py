"""What constraints.txt pins can be installed on every Python that the project names; CI itself has one of them.

Asked of a package index, a minute each: HPCJET_PYTHONS=1 pytest tests/unit/test_constraints.py after a change of pins.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_NETWORK = ("Failed to establish a new connection", "Temporary failure in name resolution", "Read timed out")

pytestmark = pytest.mark.skipif("HPCJET_PYTHONS" not in os.environ, reason="takes minutes; HPCJET_PYTHONS=1 has it run")


def interpreters(version: str) -> Iterator[str]:
    """On PATH, and where pyenv keeps them."""
    if found := shutil.which(f"python{version}"):
        yield found
    yield from map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))


def has_pip(interpreter: str) -> bool:
    return subprocess.run([interpreter, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12"])
def test_all_that_is_pinned_can_be_installed(version: str) -> None:
    python = next(filter(has_pip, interpreters(version)), None)
    if python is None:
        pytest.skip(f"there is no Python {version} with pip")
    words = ["install", "--dry-run", "--ignore-installed", "--quiet", "-c", "constraints.txt", "-e", ".[swe,dev,mpi]"]
    done = subprocess.run([python, "-m", "pip", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if any(words in done.stderr for words in NO_NETWORK):
        pytest.skip("packages cannot be had here")
    assert done.returncode == 0, done.stderr
