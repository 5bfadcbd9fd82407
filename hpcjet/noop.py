"""The workload that does nothing: one task on every node, to see that a cluster works."""

import json
import socket
import time

from hpcjet.config.root import LaunchConfig
from hpcjet.errors import EXIT_OK
from hpcjet.plan import Plan
from hpcjet.rundir import atomic_write
from hpcjet.workload import Cluster


def _host() -> str:
    return socket.gethostname()


class NoopWorkload:
    """Asks every node for its name and writes them to noop.json in the run directory."""

    connects = True

    def __init__(self, plan: Plan, config: LaunchConfig) -> None:
        self._plan = plan

    def prepare(self) -> None:
        pass

    def __enter__(self) -> "NoopWorkload":
        return self

    def run(self, cluster: Cluster) -> int:
        ray = cluster.ray
        ready = time.time()
        nodes = cluster.alive()
        ask = ray.remote(num_cpus=0)(_host)
        pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        calls = [ask.options(scheduling_strategy=pin(node["NodeID"], soft=False)).remote() for node in nodes]
        hosts = sorted(ray.get(calls))
        answer = {"hosts": hosts, "ready": ready, "answered": time.time()}
        atomic_write(self._plan.run.path / "noop.json", json.dumps(answer))
        print(f"{len(hosts)} nodes answered: {', '.join(hosts)}", flush=True)
        return EXIT_OK

    def __exit__(self, *_: object) -> None:
        pass
