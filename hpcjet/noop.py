"""The workload that does nothing: one task on every node, to see that a cluster works."""

import json
import logging
import socket
import time

from hpcjet.atomic import atomic_write
from hpcjet.cluster.roster import UsableNode
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import EXIT_OK
from hpcjet.plan import Plan
from hpcjet.workload import Cluster

LOOK_S = 0.5

_log = logging.getLogger(__name__)


def _host() -> str:
    return socket.gethostname()


class NoopWorkload:
    """Asks every node that is in for its name and writes the names to noop.json in the run directory."""

    connects = True

    def __init__(self, plan: Plan, config: LaunchConfig) -> None:
        self._plan, self._group = plan, config.exp.group

    def prepare(self) -> None:
        pass

    def __enter__(self) -> "NoopWorkload":
        return self

    def run(self, cluster: Cluster) -> int:
        ready = time.time()
        hosts = sorted(self._asked(cluster))
        answer = {"hosts": hosts, "ready": ready, "answered": time.time()}
        atomic_write(self._plan.run.path / "noop.json", json.dumps(answer))
        print(f"{len(hosts)} nodes answered: {', '.join(hosts)}", flush=True)
        return EXIT_OK

    def __exit__(self, *_: object) -> None:
        pass

    def _asked(self, cluster: Cluster) -> list[str]:
        """The names; a node that is taken away meanwhile leaves none."""
        ray = cluster.ray
        ask = ray.remote(num_cpus=0)(_host)
        pin = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        calls = {
            node.host: ask.options(scheduling_strategy=pin(node.node_id, soft=False)).remote()
            for node in self._nodes(cluster)
        }
        found = []
        for host, call in calls.items():
            try:
                found.append(ray.get(call))
            except ray.exceptions.RayError as error:
                _log.warning("%s gave no answer: %s", host, str(error).partition("\n")[0])
        return found

    def _nodes(self, cluster: Cluster) -> list[UsableNode]:
        """All that are in now; with exp.group those of the group, once there is one."""
        while True:
            nodes = [node for node in cluster.members() if self._group in (None, node.group) and not node.drains]
            if nodes:
                return nodes
            time.sleep(LOOK_S)
