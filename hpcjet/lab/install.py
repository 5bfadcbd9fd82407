"""A virtual environment for the lab's user, with the project installed as its users install it: from a wheel."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

from hpcjet.errors import LabError
from hpcjet.lab.layout import Layout
from hpcjet.lab.process import clean_environment
from hpcjet.lab.state import locked_file
from hpcjet.lab.user import User, become

# Oldest last: the newest that the project supports is taken, but the one that runs us first.
INTERPRETERS = ("/usr/bin/python3.12", "/usr/bin/python3.11", "/usr/bin/python3.10")
# Stands in an environment that is whole: holds the constraints that it was made with, bears the time of its last use.
COMPLETE = ".complete"
EXTRA = re.compile(r"""\bextra\s*==\s*['"]([^'"]+)""")
KEEP = 3
CHECK = "import ensurepip, sys, venv; assert (3, 10) <= sys.version_info < (3, 13); print(sys.version)"


def install(layout: Layout, user: User, project_root: Path, *, extras: Sequence[str]) -> Path:
    """Build a wheel of the project and install it; what it depends on is kept for as long as it stays the same."""
    python, version = find_interpreter(user)
    venvs = layout.root / "venvs"
    venvs.mkdir(exist_ok=True)
    with locked_file(venvs / "lock", wait_s=1800), tempfile.TemporaryDirectory(dir=venvs) as scratch:
        wheel = _build_wheel(python, project_root, Path(scratch))
        constraints = project_root / "constraints.txt"
        pins = constraints.read_text() if constraints.exists() else ""
        venv = venvs / environment_key(requirements_of(wheel, extras), extras, version)
        if not (venv / COMPLETE).exists():
            shutil.rmtree(venv, ignore_errors=True)
            _run([python, "-m", "venv", venv])
        if not (venv / COMPLETE).exists() or (venv / COMPLETE).read_text() != pins:
            # Where only pins have changed, pip has little to do.
            _install_dependencies(venv, wheel, extras, constraints if pins else None)
        _pip(venv / "bin/python", "install", "--force-reinstall", "--no-deps", wheel)
        (venv / COMPLETE).write_text(pins)
        _forget(venvs, keep=KEEP)
    return venv


def find_interpreter(user: User) -> tuple[str, str]:
    """A Python that the user can run and make environments with, and its version."""
    candidates = [os.path.realpath(sys.executable), *INTERPRETERS]
    for python in dict.fromkeys(candidates):
        command = [*become(user), python, "-I", "-c", CHECK]
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), cwd="/")
        if done.returncode == 0:
            return python, done.stdout.strip()
    raise LabError(
        f"user {user.name} can run none of {', '.join(candidates)} with the venv module; install one for all users:\n"
        f"    apt-get install python3 python3-venv"
    )


def environment_key(requirements: Sequence[str], extras: Sequence[str], version: str) -> str:
    """The same for the same dependencies and Python."""
    parts = [*sorted(requirements), ",".join(sorted(extras)), version]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def requirements_of(wheel: Path, extras: Sequence[str]) -> list[str]:
    """What the wheel says it depends on, with these extras."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    found = [(line, EXTRA.search(line)) for line in metadata.get_all("Requires-Dist") or []]
    return [line for line, of in found if not of or of[1] in extras]


def _build_wheel(python: str, project_root: Path, scratch: Path) -> Path:
    """Build with pip of a bare environment: the interpreter's own may be missing (Debian) or patched."""
    builder = scratch.parent / "builder"
    if not (builder / "bin/pip").exists():
        _run([python, "-m", "venv", "--clear", builder])
    _pip(builder / "bin/python", "wheel", "--no-deps", "--wheel-dir", scratch, project_root)
    return next(scratch.glob("*.whl"))


def _install_dependencies(venv: Path, wheel: Path, extras: Sequence[str], constraints: Path | None) -> None:
    pins: list[str | Path] = ["--constraint", constraints] if constraints else []
    wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    _pip(venv / "bin/python", "install", *pins, wanted)


def _forget(venvs: Path, *, keep: int) -> None:
    """Remove all environments but those last used: each is half a gigabyte or more."""
    marks = sorted(venvs.glob(f"*/{COMPLETE}"), key=lambda mark: mark.stat().st_mtime, reverse=True)
    for mark in marks[keep:]:
        shutil.rmtree(mark.parent)


def _pip(python: Path, *words: str | Path) -> None:
    _run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *words])


def _run(command: Sequence[str | Path]) -> None:
    """Root's own environment stays, as it says where packages come from; the files are for all to read."""
    done = subprocess.run(command, capture_output=True, text=True, umask=0o022, cwd="/")
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise LabError(f"`{words}` failed with exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
