"""The GPUs of this node, as its driver tells."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from hpcjet.cluster.gpus import VISIBLE, visible_count
from hpcjet.engine.topology import Topology, parse_topology

_WAIT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What a job has of GPUs on a node."""

    variable: str = "CUDA_VISIBLE_DEVICES"
    """The one that names them."""
    names: tuple[str, ...] = ()
    kind: str = "cpu"
    """Such as "NVIDIA H100 80GB HBM3"."""
    memory_bytes: int | None = None
    """Of the smallest of them; None if the driver does not say."""
    topology: Topology | None = None


def find_devices(env: Mapping[str, str] | None = None) -> Devices:
    """Ask the driver. Without one, what the job's variables say; without those, none."""
    env = os.environ if env is None else env
    variable = next((name for name in VISIBLE if env.get(name)), VISIBLE[0])
    listed = env.get(variable)
    smi = parse_smi(_said(["nvidia-smi", "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]))
    if listed is not None:
        names = tuple(word.strip() for word in listed.split(","))[: visible_count(listed)]
    else:
        names = tuple(index for index, _, _ in smi)
    if not names:
        return Devices(variable=variable)
    topology = parse_topology(_said(["nvidia-smi", "topo", "-m"]))
    return Devices(
        variable=variable,
        names=names,
        kind=smi[0][1] if smi else "gpu",
        memory_bytes=min(size for _, _, size in smi) if smi else None,
        # With fewer than the table has, it is not known which of them these are.
        topology=topology if topology and topology.num_gpus == len(names) else None,
    )


def parse_smi(text: str) -> list[tuple[str, str, int]]:
    """(index, name, memory in bytes) of each GPU, from nvidia-smi's comma-separated answer."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    good = [row for row in rows if len(row) == 3 and row[0].isdigit() and row[2].isdigit()]
    return [(index, name, int(mib) * 1024**2) for index, name, mib in good]


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_WAIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
