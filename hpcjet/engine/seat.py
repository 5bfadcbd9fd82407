"""What one process of a replica is given: a model, an address, GPUs and cores, its place among the replica's nodes."""

from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.config.engine import ServedConfig
from hpcjet.paths import cache_dir


@dataclass(frozen=True, kw_only=True)
class Seat:
    """All that the command line and the environment of an engine depend on beside the config."""

    model: Path
    """The folder to read the weights from; a staged copy, it may be."""
    host: str
    port: int
    folder: Path
    """Private to the replica, on a local disk; short, since sockets lie in it."""
    api_key: str = field(repr=False)
    on_gpu: bool
    gpus: tuple[str, ...] | None = None
    """None: those that the job shows."""
    gpu_variable: str = "CUDA_VISIBLE_DEVICES"
    gpu_type: str = "cpu"
    """Such as nvidia-h100: what is compiled for one is of no use to another."""
    cores: tuple[int, ...] = ()
    """Empty: those of the job."""
    num_nodes: int = 1
    rank: int = 0
    """0 leads; the others have no address of their own."""
    leader: str = ""
    """Of a replica over several nodes: the address where its parts find each other, and a port there."""
    leader_port: int = 0
    name: str = ""
    """Of the replica, as its answers tell it."""
    pooled: bool = False
    """Whether a pool decides when it begins to take requests of agents."""


def starter(seat: Seat, source: Path) -> Path:
    """Where a file of ours must be copied to before the start: an image sees that folder, and not hpcjet's."""
    return seat.folder / "starter" / source.name


def compile_cache(config: ServedConfig, seat: Seat, engine: str) -> Path:
    """Where this engine keeps what it compiles for this kind of GPU; it tells models and versions apart itself."""
    root = config.compile_cache or cache_dir() / "engines" / "compiled"
    return root.absolute() / engine / "".join(c if c.isalnum() else "-" for c in seat.gpu_type.lower())


def common_environment(config: ServedConfig, seat: Seat, cache: Path) -> dict[str, str]:
    """Variables that every engine gets: nothing is fetched, caches and sockets are where they should be."""
    changes = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
        "NO_COLOR": "1",
        "TMPDIR": str(seat.folder),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
    }
    if seat.on_gpu and seat.gpus is not None:
        changes[seat.gpu_variable] = ",".join(seat.gpus)
    if not seat.on_gpu:
        # A node may have GPUs that are the agents' own.
        changes["CUDA_VISIBLE_DEVICES"] = ""
    if seat.cores:
        changes["OMP_NUM_THREADS"] = str(len(seat.cores)) if not seat.on_gpu else "1"
    return changes


def core_list(cores: tuple[int, ...]) -> str:
    """As taskset and vLLM write it: 0-3,8."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
