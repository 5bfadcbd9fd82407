"""The seam between the driver and the workloads, and the cluster that a workload is given."""

import time
from dataclasses import dataclass
from typing import Any, Protocol

from hpcjet.cluster.child import tail
from hpcjet.errors import BootstrapError
from hpcjet.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster that is up, seen from its head."""

    ray: Any
    """The module ray, connected."""
    address: str
    """Of this node, as the other nodes reach it."""
    engine_port: int
    """A port on this node for an engine."""
    hosts: tuple[str, ...]
    """The nodes of the allocation, in Slurm's order."""

    def alive(self) -> list[dict[str, Any]]:
        """The nodes that are in Ray now, as ray.nodes() tells them."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def await_nodes(self, plan: Plan) -> None:
        """Wait until at least plan.min_nodes are in. Raises BootstrapError naming the missing ones and their logs."""
        deadline = time.monotonic() + plan.boot_timeout_s
        while len(self.alive()) < plan.min_nodes:
            if time.monotonic() > deadline:
                raise BootstrapError(self._missing(plan))
            time.sleep(0.05)

    def _missing(self, plan: Plan) -> str:
        present = {node["NodeManagerHostname"] for node in self.alive()}
        missing = [host for host in self.hosts if host not in present]
        logs = [log for host in missing for log in sorted(plan.run.path.glob(f"logs/*/{host}.ray.log"))[-1:]]
        tails = "".join(f"\n{log} ends with:\n{tail(log, 8)}" for log in logs[:3])
        return (
            f"{len(present)} of {len(self.hosts)} nodes joined Ray within {plan.boot_timeout_s:.0f} s "
            f"(cluster.boot_timeout_s), cluster.min_nodes={plan.min_nodes} are needed; "
            f"missing: {', '.join(missing)}{tails}"
        )


class Workload(Protocol):
    """One experiment. Made with (plan, config); used as a context manager around `run`."""

    def prepare(self) -> None:
        """Work that needs no Ray, done while Ray starts. Raises HpcjetError for what would fail later."""
        ...

    def __enter__(self) -> "Workload": ...

    def run(self, cluster: Cluster) -> int:
        """Do the work; returns the exit code: 0, or 1 if the work itself failed."""
        ...

    def __exit__(self, *_: object) -> None: ...
