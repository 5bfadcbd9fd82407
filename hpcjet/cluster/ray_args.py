"""The arguments of `ray start` for a head and for a worker."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from hpcjet.cluster.place import GIB, Place
from hpcjet.cluster.ports import PortBlock
from hpcjet.cluster.roster import GROUP_LABEL, MEMBER_LABEL
from hpcjet.errors import BootstrapError

NO_LABELS: Mapping[str, str] = MappingProxyType({})


def head_args(
    place: Place,
    *,
    address: str,
    ports: PortBlock,
    temp_dir: Path,
    object_store_bytes: int,
    labels: Mapping[str, str] = NO_LABELS,
) -> list[str]:
    """For the first node: no dashboard, no autoscaler, every port ours."""
    return [
        "--head",
        f"--port={ports.gcs}",
        "--include-dashboard=false",
        f"--dashboard-port={ports.dashboard}",
        f"--ray-client-server-port={ports.client}",
        "--no-monitor",
        *_common(place, address, ports, temp_dir, object_store_bytes, labels),
    ]


def worker_args(
    place: Place,
    *,
    head: str,
    address: str,
    ports: PortBlock,
    temp_dir: Path,
    object_store_bytes: int,
    labels: Mapping[str, str] = NO_LABELS,
) -> list[str]:
    """For every other node; `head` is host:port of the head's GCS."""
    return [f"--address={head}", *_common(place, address, ports, temp_dir, object_store_bytes, labels)]


def member_labels(member: str, group: str) -> dict[str, str]:
    """The labels of a node in Ray: which node agent it belongs to, and which group of nodes."""
    return {MEMBER_LABEL: label_value(member), GROUP_LABEL: label_value(group)}


def label_value(text: str) -> str:
    """As Ray takes it: letters, digits, dot, dash and underscore, at most 63, none but the first two at an end."""
    return re.sub(r"[^A-Za-z0-9_.-]", ".", text)[:63].strip("._-")


LEAST_STORE = 80 * 1024**2
"""Ray refuses less than 75 MiB."""
MEMORY_BESIDE = 256 * 1024**2
"""Memory that Ray's own processes need on a node besides the object store, at the very least."""


def object_store_bytes(place: Place, *, asked_gb: float | None, shm_free_bytes: int) -> int:
    """The size of Ray's object store: by default a tenth of the node's memory, at most 8 GiB and what /dev/shm has.

    What was asked for (cluster.object_store_gb) is given or refused, never lowered: a program that was planned with
    it would spill to disk, or stop half-way, and nobody would know why. Raises BootstrapError then, and where the
    job's memory is too small for any store. Where /dev/shm cannot hold even the least, as in many containers, Ray
    keeps that little in the temp folder.
    """
    room = place.memory_bytes - MEMORY_BESIDE
    if room < LEAST_STORE:
        raise BootstrapError(
            f"the job has {_mib(place.memory_bytes)} MiB of memory on {place.host} and Ray needs "
            f"{_mib(LEAST_STORE + MEMORY_BESIDE)} for itself: ask for more with cluster.mem_gb (cluster.memory_gb on "
            "this machine)"
        )
    if not asked_gb:
        return max(LEAST_STORE, min(place.memory_bytes // 10, 8 * GIB, room, int(shm_free_bytes * 0.9)))
    asked = max(LEAST_STORE, int(asked_gb * GIB))
    if asked > room:
        raise BootstrapError(
            f"cluster.object_store_gb={asked_gb:g} does not fit into the job's memory on {place.host}, which is "
            f"{place.memory_bytes / GIB:.2f} GiB, of which Ray needs {_mib(MEMORY_BESIDE)} MiB beside it: lower it, or "
            "raise cluster.mem_gb"
        )
    if asked > shm_free_bytes:
        raise BootstrapError(
            f"cluster.object_store_gb={asked_gb:g} does not fit into /dev/shm on {place.host}, which has "
            f"{shm_free_bytes / GIB:.2f} GiB free: lower it to {shm_free_bytes * 0.9 / GIB:.1f} or leave it out; in a "
            "container, give it a larger /dev/shm or the host's"
        )
    return asked


def _mib(size: int) -> int:
    return size // 1024**2


def _common(
    place: Place, address: str, ports: PortBlock, temp_dir: Path, object_store: int, labels: Mapping[str, str]
) -> list[str]:
    return [
        *([f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}"] if labels else []),
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
