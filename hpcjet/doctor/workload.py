"""The workload of `hpcjet doctor`: the looks at every node, by a step of the job, or directly on one machine."""

import json
import os
import secrets
from pathlib import Path

from hpcjet.atomic import atomic_write
from hpcjet.cluster.child import Child, tail
from hpcjet.cluster.site import logs_here
from hpcjet.command.environment import step_env
from hpcjet.command.size import node_cpus
from hpcjet.config.doctor import DoctorConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.doctor.order import FOLDER, Order, answer_name, write_order
from hpcjet.errors import EXIT_OK
from hpcjet.plan import Plan
from hpcjet.slurm.step import step_command
from hpcjet.workload import Cluster

GRACE_S = 20.0
"""Beyond the time for the looks: a step must start."""
STEP = "step.json"
"""How the step went; facts: hosts, lost, said."""


class DoctorWorkload:
    """Leaves what the nodes found in RUN/doctor."""

    connects = False

    def __init__(self, plan: Plan, config: LaunchConfig) -> None:
        assert isinstance(config.exp, DoctorConfig)
        self._plan, self._exp = plan, config.exp
        self._folder = plan.run.path / FOLDER

    def prepare(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for old in self._folder.iterdir():
            old.unlink()

    def __enter__(self) -> "DoctorWorkload":
        return self

    def run(self, cluster: Cluster) -> int:
        """0: what does not work is for the report to tell."""
        order = write_order(self._order(cluster))
        said = self._step(order, cluster) if self._plan.cluster != "local" else self._here(order)
        if self._plan.cluster != "local" and not self._answered(0):
            # A step that did not even begin here says nothing of the node.
            said += self._here(order)
        atomic_write(
            self._folder / STEP,
            json.dumps({"hosts": list(cluster.hosts), "lost": cluster.lost(), "said": said[-2000:]}),
        )
        return EXIT_OK

    def __exit__(self, *_: object) -> None:
        pass

    def _order(self, cluster: Cluster) -> Order:
        return Order(
            plan=str(self._plan.run.plan),
            folder=str(self._folder),
            hosts=list(cluster.hosts),
            address=cluster.address,
            port=cluster.ports["master"],
            ring_port=cluster.ports["engine"],
            timeout_s=self._exp.timeout_s,
            secret=secrets.token_hex(16),
        )

    def _answered(self, rank: int) -> bool:
        return answer_name(rank) in {entry.name for entry in os.scandir(self._folder)}

    def _step(self, order: Path, cluster: Cluster) -> str:
        cpus = node_cpus(self._plan, os.environ, here=len(os.sched_getaffinity(0)))
        words = step_command(
            self._words(order),
            nodes=len(cluster.hosts),
            cpus_per_task=cpus,
            mpi="none",
            # One node where it cannot start is a finding, and no reason to end the others.
            options=["--export=ALL", "--kill-on-bad-exit=0"],
        )
        return self._ran(words, step_env(os.environ))

    def _here(self, order: Path) -> str:
        return self._ran(self._words(order), {**os.environ, "SLURM_PROCID": "0"})

    def _words(self, order: Path) -> list[str]:
        return [self._plan.python, "-m", "hpcjet.doctor.node", str(order)]

    def _ran(self, words: list[str], env: dict[str, str]) -> str:
        """Run it to its end, or to the end of its time; what it said if it did not go well."""
        log = logs_here(self._plan.run)
        try:
            child = Child("looks", words, env=env, log=log / "doctor.log")
        except OSError as error:
            return f"{words[0]}: {error.strerror}\n"
        try:
            code = child.wait(self._exp.timeout_s + GRACE_S)
        finally:
            child.stop(3)
        if code == 0:
            return ""
        return f"{tail(child.log, 6)}\n" if code is not None else f"no end in time; {tail(child.log, 3)}\n"
