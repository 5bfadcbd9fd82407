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


def calls(folder: Path, name: str) -> list[list[str]]:
    """All calls of a stub that notes them: see `noted`."""
    file = folder / f"{name}.calls"
    return [line.split("\x1f")[:-1] for line in file.read_text().split("\x1e\n")[:-1]] if file.exists() else []


def noted(folder: Path, name: str) -> str:
    """A shell line for a stub: every call is kept, not only the last."""
    return f"{{ printf '%s\\x1f' \"$@\"; printf '\\x1e\\n'; }} >> {shlex.quote(str(folder / name))}.calls"


def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of a submission and of a question, shortened."""
    from hpcjet.slurm import query, sbatch

    monkeypatch.setattr(sbatch, "PAUSES_S", (0.01, 0.02))
    monkeypatch.setattr(sbatch, "SETTLE_S", 0.01)
    monkeypatch.setattr(query, "CONFIRM_S", 0.01)
