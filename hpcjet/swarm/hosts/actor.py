"""The Ray actor of a seat, and what a driver calls to have it."""

from collections.abc import Sequence
from typing import Any

from hpcjet.swarm.hosts.spec import HostSpec, HostState


def host_name(seat: str) -> str:
    return f"swarm-host-{seat}"


def start_host(node_id: str, spec: HostSpec, attempt: int, *, state: HostState | None = None) -> Any:
    """The actor of a seat on this node (Ray's id), which ends what there is of an earlier attempt.

    It does nothing before `run` is called. `state` is where the seat goes on from.
    """
    raise NotImplementedError


def host_snapshots(seats: Sequence[str], version: int, timeout_s: float) -> dict[str, HostState]:
    """For each seat that answers in time, its state at the begin of its first fragment of this version or a newer one.

    Waits for seats that have not begun it yet.
    """
    raise NotImplementedError
