"""What a sandbox is asked for and what it answers: the seam between backends and everything else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from hpcjet.config.sandbox import SandboxConfig

GIB = 1024**3


class Network(Enum):
    """What of the network a sandbox has."""

    none = "none"
    """A loopback of its own; names are unknown at once."""
    engine = "engine"
    """That, and one TCP server of the host, at SandboxSpec.engine on both sides."""
    host = "host"
    """All that the host has."""


class Background(Enum):
    """What becomes of processes that a finished command has left running."""

    keep = "keep"
    """They live until end_background() or close()."""
    kill = "kill"
    """They are gone before run() returns."""


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
    """Processes and threads."""
    cpu_s: float | None = None
    """CPU seconds of one command with all that it starts."""
    cpus: int | None = None
    """CPUs to use at a time; nproc, make and Python count as many."""
    file_bytes: int | None = 2 * GIB
    """Of one file."""
    disk_bytes: int | None = 20 * GIB
    """Written to the view, /tmp and home together."""
    disk_files: int | None = 1_000_000
    """Files and folders made there."""
    open_files: int | None = 4096
    """Of one process."""
    wall_s: float | None = None
    """Life of the sandbox in seconds: commands are ended when it is over, whatever their own time limit."""
    output_bytes: int = 1_000_000
    """Of one command's output; the head and the tail of a longer one are kept."""

    @classmethod
    def of(cls, config: SandboxConfig) -> "Limits":
        """The limits that a configuration sets."""
        return cls(
            memory_bytes=int(config.memory_gb * GIB),
            processes=config.processes,
            cpus=config.cpus,
            disk_bytes=None if config.disk_gb is None else int(config.disk_gb * GIB),
            disk_files=config.disk_files,
        )


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
    network: Network = Network.none
    engine: str = ""
    """With Network.engine: host:port of the one server; inside it is at 127.0.0.1 and the same port."""
    background: Background = Background.keep
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
    """The limit that was hit: memory, processes, cpu, file, disk, files or wall; empty if none was."""


class Sandbox(Protocol):
    """A living sandbox: many commands, one /tmp, one view. Used as a context manager; close() may be called twice."""

    upper: Path | None
    """On the host: the upper layer of the view, or the copied tree where there are no overlays; None without a view."""

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        cwd: str | None = None,
        stdin: bytes = b"",
        background: Background | None = None,
        on_output: Callable[[bytes], object] | None = None,
    ) -> Completed:
        """Run a bash command line; at its time limit it and its descendants are killed, and the sandbox stays usable.

        `on_output` gets all output as it comes. Raises SandboxError if the sandbox itself is gone.
        """
        ...

    def where(self, path: str) -> str:
        """Where commands find `path` of the view, of a mount or of /tmp: there, but for the kind `process`."""
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
