"""The arguments of `ray start` for a head and for a worker."""

from pathlib import Path

from hpcjet.cluster.place import GIB, Place
from hpcjet.cluster.ports import PortBlock


def head_args(place: Place, *, address: str, ports: PortBlock, temp_dir: Path, object_store_bytes: int) -> list[str]:
    """For the first node: no dashboard, no autoscaler, every port ours."""
    return [
        "--head",
        f"--port={ports.gcs}",
        "--include-dashboard=false",
        f"--dashboard-port={ports.dashboard}",
        f"--ray-client-server-port={ports.client}",
        "--no-monitor",
        *_common(place, address, ports, temp_dir, object_store_bytes),
    ]


def worker_args(
    place: Place, *, head: str, address: str, ports: PortBlock, temp_dir: Path, object_store_bytes: int
) -> list[str]:
    """For every other node; `head` is host:port of the head's GCS."""
    return [f"--address={head}", *_common(place, address, ports, temp_dir, object_store_bytes)]


def object_store_bytes(place: Place, *, asked_gb: float | None, shm_free_bytes: int) -> int:
    """A tenth of the node's memory, at most 8 GiB, or what was asked; no more than /dev/shm has. Ray needs 80 MiB."""
    wanted = int(asked_gb * GIB) if asked_gb else min(place.memory_bytes // 10, 8 * GIB)
    return max(80 * 1024**2, min(wanted, int(shm_free_bytes * 0.9)))


def _common(place: Place, address: str, ports: PortBlock, temp_dir: Path, object_store: int) -> list[str]:
    return [
        f"--node-ip-address={address}",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        f"--dashboard-agent-listen-port={ports.agent_http}",
        f"--dashboard-agent-grpc-port={ports.agent_grpc}",
        f"--runtime-env-agent-port={ports.runtime_env_agent}",
        f"--metrics-export-port={ports.metrics}",
        # Workers bind ports that the kernel draws: a range could be too small, or clash with another job's.
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--num-cpus={place.cpus}",
        f"--num-gpus={place.gpus}",
        f"--memory={place.memory_bytes - object_store}",
        f"--object-store-memory={object_store}",
        f"--temp-dir={temp_dir}",
        "--disable-usage-stats",
        "--include-log-monitor=false",
        "--block",
    ]
