"""Where a run came from: command, code, packages, machine. Not its environment, which may hold secrets."""

import getpass
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.rundir import RunDir

PACKAGES = ("hpcjet", "hydra-core", "submitit", "ray", "torch", "mini-swe-agent", "vllm", "sglang")
MOST_DIFF_BYTES = 10_000_000


def facts(words: Sequence[str], here: Path) -> dict[str, Any]:
    """What provenance.json holds; `words` is the command as it was typed, `here` the folder it was typed in."""
    return {
        "command": list(words),
        "folder": str(here),
        "launched": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "user": _user(),
        "host": platform.node(),
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "packages": _versions(),
        "slurm": _slurm(),
        "git": _git_facts(here),
    }


def keep(run: RunDir, found: dict[str, Any], here: Path) -> None:
    """Write provenance.json, and dirty.diff if the repository around `here` has changes that are not committed."""
    import json

    if (found["git"] or {}).get("dirty"):
        diff = _run("git", "-C", str(here), "diff", "--binary", "HEAD") or b""
        atomic_write(run.dirty_diff, diff[:MOST_DIFF_BYTES])
    atomic_write(run.provenance, json.dumps(found, indent=2))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _slurm() -> str | None:
    """Its version, where it is there."""
    if shutil.which("sbatch") is None:
        return None
    answer = (_run("sbatch", "--version") or b"").decode(errors="replace").split()
    return answer[-1] if answer else None


def _git_facts(here: Path) -> dict[str, Any] | None:
    commit = _run("git", "-C", str(here), "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = (_run("git", "-C", str(here), "status", "--porcelain", "-z") or b"").split(b"\0")
    names = [os.fsdecode(each)[3:] for each in changed if each]
    return {"commit": commit.decode().strip(), "dirty": bool(names), "changed": names[:100]}


def _run(*words: str) -> bytes | None:
    try:
        return subprocess.run(words, capture_output=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
