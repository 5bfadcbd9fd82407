"""How each kind of program is started: on the head, as MPI ranks, under torch's launcher."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.cluster.network import interface_names, links
from hpcjet.cluster.network_env import network_env
from hpcjet.command import rank, words
from hpcjet.command.check import check_torch, find_mpiexec, python_of
from hpcjet.command.environment import step_env
from hpcjet.command.process import Group
from hpcjet.command.size import node_cpus, node_gpus, procs_per_node, ranks_per_node
from hpcjet.command.step import Step
from hpcjet.config.command import CommandConfig, MpiConfig, TorchrunConfig
from hpcjet.plan import Plan
from hpcjet.slurm.step import step_command
from hpcjet.workload import Cluster


@dataclass(frozen=True)
class Start:
    """What is run on the head, and how it is ended."""

    words: list[str]
    env: dict[str, str]
    ending: Group = field(default_factory=Group)


class Starter:
    """A program on the head alone."""

    def __init__(self, plan: Plan, exp: CommandConfig) -> None:
        self._plan, self._command = plan, exp.command

    def check(self, env: Mapping[str, str]) -> None:
        """Raise ConfigError for what this node lacks; `env` is the program's."""

    def start(self, cluster: Cluster, env: dict[str, str]) -> Start:
        return Start(words.on_head(words.bash(self._command)), env)


class RankStarter(Starter):
    """A program on all nodes: through srun within a job, else by what this machine has."""

    @property
    def _in_slurm(self) -> bool:
        return self._plan.cluster != "local"

    def _cpus(self, env: Mapping[str, str]) -> int:
        return node_cpus(self._plan, env, here=len(os.sched_getaffinity(0)))

    def _start(self, command: list[str], cluster: Cluster, env: dict[str, str], *, threads: int) -> Start:
        """Libraries would start a thread per CPU in each process: `threads` is the share of one."""
        made = {"OMP_NUM_THREADS": str(threads), **env}
        if len(cluster.hosts) > 1:
            made = {**without_heads_network(made, cluster.address), rank.HEAD: cluster.address}
            made[rank.INTERFACE] = self._plan.interface or ""
        if not self._in_slurm:
            return Start(words.on_head(command), made)
        number = Path(env["HPCJET_TEMP"]) / "step"
        number.unlink(missing_ok=True)
        made[rank.STEP_FILE] = str(number)
        return Start(words.on_head(command), step_env(made), Step(env["SLURM_JOB_ID"], number))

    def _step(self, program: list[str], cluster: Cluster, *, tasks: int, cpus: int, mpi: str | None) -> list[str]:
        return step_command(
            program,
            nodes=len(cluster.hosts),
            tasks_per_node=tasks,
            cpus_per_task=cpus,
            mpi=mpi,
            options=["--export=ALL"],
        )


class MpiStarter(RankStarter):
    def __init__(self, plan: Plan, exp: MpiConfig) -> None:
        super().__init__(plan, exp)
        self._exp = exp

    def check(self, env: Mapping[str, str]) -> None:
        if not self._in_slurm:
            find_mpiexec(ranks_per_node(self._exp, self._cpus(env)), env)

    def start(self, cluster: Cluster, env: dict[str, str]) -> Start:
        return self._start(self._launch(cluster, env), cluster, env, threads=self._exp.cpus_per_rank)

    def _launch(self, cluster: Cluster, env: Mapping[str, str]) -> list[str]:
        ranks = ranks_per_node(self._exp, self._cpus(env))
        program = words.rank(words.bash(self._command), interpreter=self._plan.python)
        if self._in_slurm:
            return self._step(program, cluster, tasks=ranks, cpus=self._exp.cpus_per_rank, mpi=self._exp.mpi)
        launcher = find_mpiexec(ranks, env)
        return words.mpiexec(program, program=launcher, ranks=ranks) if launcher else program


class TorchrunStarter(RankStarter):
    def __init__(self, plan: Plan, exp: TorchrunConfig) -> None:
        super().__init__(plan, exp)
        self._exp = exp

    def check(self, env: Mapping[str, str]) -> None:
        check_torch(self._python(env), env)

    def start(self, cluster: Cluster, env: dict[str, str]) -> Start:
        cpus, procs = self._cpus(env), procs_per_node(self._exp, node_gpus(self._plan, env))
        launcher = words.torchrun(
            self._command,
            python=self._python(env),
            nodes=len(cluster.hosts),
            procs=procs,
            address=cluster.address,
            port=cluster.ports["master"],
        )
        program = words.rank(launcher, interpreter=self._plan.python)
        if self._in_slurm:
            program = self._step(program, cluster, tasks=1, cpus=cpus, mpi="none")
        return self._start(program, cluster, env, threads=max(1, cpus // procs))

    def _python(self, env: Mapping[str, str]) -> str:
        return python_of(env) or self._plan.python


def starter(plan: Plan, exp: CommandConfig) -> Starter:
    """The one for this kind of program."""
    if isinstance(exp, MpiConfig):
        return MpiStarter(plan, exp)
    return TorchrunStarter(plan, exp) if isinstance(exp, TorchrunConfig) else Starter(plan, exp)


def without_heads_network(env: Mapping[str, str], address: str) -> dict[str, str]:
    """Without the network variables that the node agent set for the head's link: each node finds its own."""
    heads = {}
    for link in links():
        if link.address == address:
            heads = network_env(link, interface_names(), {}).values
    return {key: value for key, value in env.items() if heads.get(key) != value}
