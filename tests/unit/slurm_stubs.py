"""Stand-ins for Slurm's commands that print recorded text: for what a real Slurm will not say on demand."""

import os
import shlex
from pathlib import Path

import pytest


def on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, *, alone: bool = False) -> Path:
    """A folder of commands, first on PATH, or all that is on it."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", str(folder) if alone else f"{folder}:{os.environ['PATH']}")
    return folder


def stub(folder: Path, name: str, *, says: str = "", error: str = "", code: int = 0, first: str = "") -> None:
    """A command that notes its arguments in NAME.argv, runs the shell line `first`, prints, and ends with `code`."""
    file = folder / name
    file.write_text(
        "#!/bin/bash\n"
        f"printf '%s\\n' \"$@\" > {shlex.quote(str(folder / name))}.argv\n{first}\n"
        f"printf '%s' {shlex.quote(says)}\nprintf '%s' {shlex.quote(error)} >&2\nexit {code}\n"
    )
    file.chmod(0o755)


def argv(folder: Path, name: str) -> list[str]:
    """What a stub was called with last."""
    return (folder / f"{name}.argv").read_text().splitlines()
