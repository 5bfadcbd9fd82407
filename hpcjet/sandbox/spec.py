"""What a sandbox is asked for and what it answers: the seam between backends and everything else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of the host shown inside."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class View:
    """A private copy-on-write view, at the path `at`, of a stack of base folders (bottom first) that stay unchanged."""

    lowers: tuple[Path, ...]
    at: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one sandbox. None: not limited."""

    memory_bytes: int | None = 4 * GIB
    processes: int | None = 512
    file_bytes: int | None = 2 * GIB
    open_files: int | None = 4096
    output_bytes: int = 1_000_000
    """Of one command's output; the head and the tail of a longer one are kept."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """One sandbox: what it shows, and its limits.

    `scratch` is a folder on a local disk that belongs to this sandbox alone; it is made if missing, holds the upper
    layer and the private /tmp, and is removed by close() unless `keep_scratch`.
    """

    scratch: Path
    view: View | None = None
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """On top of a small fixed environment (PATH, HOME, LANG=C.UTF-8, TMPDIR, ...); the caller's own is never there."""
    cwd: str = "/"
    limits: Limits = Limits()
    keep_scratch: bool = False


@dataclass(frozen=True)
class Completed:
    """How a command in a sandbox ended."""

    returncode: int
    """As a shell reports it: 128 + n for a command that signal n ended."""
    output: bytes
    """stdout and stderr as they came, at most Limits.output_bytes."""
    seconds: float
    timed_out: bool = False
    dropped_bytes: int = 0
    """Bytes cut out of the middle of a long output."""
    limit: str = ""
    """The limit that ended the command: "memory" or "processes"; empty if none did."""


class Sandbox(Protocol):
    """A living sandbox: many commands, one /tmp, one view. Used as a context manager; close() may be called twice."""

    upper: Path | None
    """On the host: the upper layer of the view, or the copied tree where there are no overlays; None without a view."""

    def run(self, command: str, *, timeout_s: float, cwd: str | None = None, stdin: bytes = b"") -> Completed:
        """Run a bash command line; at its time limit it and its descendants are killed, and the sandbox stays usable.

        Raises SandboxError if the sandbox itself is gone.
        """
        ...

    def end_background(self) -> None:
        """Kill what earlier commands left running and wait until it is gone; the sandbox stays usable.

        Raises SandboxError if the sandbox itself is gone, or if something cannot be killed.
        """
        ...

    def close(self) -> None:
        """End every process in it and remove its scratch folder."""
        ...

    def __enter__(self) -> "Sandbox": ...

    def __exit__(self, *_: object) -> None: ...
