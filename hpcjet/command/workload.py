"""The workloads that run a program of the user's: on the head, as MPI ranks, under torch's launcher."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from hpcjet.cluster.network import interface_names, links
from hpcjet.cluster.network_env import network_env
from hpcjet.cluster.state import annotate_state
from hpcjet.command import rank, words
from hpcjet.command.check import check_torch, check_workdir, find_mpiexec, python_of
from hpcjet.command.environment import program_env, step_env
from hpcjet.command.process import Group, ended_how, run_program
from hpcjet.command.size import node_cpus, node_gpus, procs_per_node, ranks_per_node
from hpcjet.command.step import Step
from hpcjet.config.command import CommandConfig, MpiConfig, TorchrunConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.plan import Plan
from hpcjet.slurm.step import step_command
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)


class CommandWorkload:
    """Runs exp.command; its output goes to output.log, its exit code is the run's. The driver stays without Ray."""

    connects = False

    def __init__(self, plan: Plan, config: LaunchConfig) -> None:
        assert isinstance(config.exp, CommandConfig)
        self._plan, self._exp = plan, config.exp
        self._workdir = config.exp.workdir or Path.cwd()
        self._here = len(os.sched_getaffinity(0))

    def prepare(self) -> None:
        """Raises ConfigError where this node lacks what the program needs."""
        check_workdir(self._workdir)
        env = self._env(os.environ, None)
        if isinstance(self._exp, TorchrunConfig):
            check_torch(self._python(env), env)
        if isinstance(self._exp, MpiConfig) and not self._in_slurm:
            find_mpiexec(self._ranks(os.environ), env)

    def __enter__(self) -> "CommandWorkload":
        return self

    def run(self, cluster: Cluster) -> int:
        """The program's exit code."""
        env, ending = self._env(os.environ, cluster), Group()
        command = self._words(cluster, env)
        if self._on_ranks:
            env = self._rank_env(cluster, env)
            if self._in_slurm:
                step = Path(env[rank.STEP_FILE])
                step.unlink(missing_ok=True)
                env, ending = step_env(env), Step(env["SLURM_JOB_ID"], step)
        output = self._plan.run.output(os.environ["HPCJET_ALLOCATION"], restart=int(os.environ["HPCJET_RESTART"]))
        _log.info("%s in %s; its output goes to %s", self._exp.command, self._workdir, output)
        code = run_program(
            words.on_head(command), env=env, workdir=self._workdir, output=output, stop_s=self._stop_s, ending=ending
        )
        _log.info("the program %s", ended_how(code))
        if code:
            annotate_state(self._plan.run.state, f"the program {ended_how(code)}; its output: {output}")
        return code

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def _in_slurm(self) -> bool:
        return self._plan.cluster != "local"

    @property
    def _on_ranks(self) -> bool:
        return isinstance(self._exp, MpiConfig | TorchrunConfig)

    @property
    def _stop_s(self) -> float:
        return float(os.environ.get("HPCJET_STOP_S") or self._plan.end_timeout_s)

    def _env(self, env: Mapping[str, str], cluster: Cluster | None) -> dict[str, str]:
        ray = f"{cluster.address}:{cluster.gcs_port}" if cluster and cluster.gcs_port else None
        return program_env(env, chosen=self._exp.python, interpreter=self._plan.python, ray_address=ray)

    def _rank_env(self, cluster: Cluster, env: Mapping[str, str]) -> dict[str, str]:
        """Each node finds its own network variables: those of the head would be wrong there."""
        threads = {"OMP_NUM_THREADS": str(self._threads(env))}
        made = {**threads, **env, rank.STEP_FILE: str(Path(env["HPCJET_TEMP"]) / "step")}
        if len(cluster.hosts) == 1:
            return made
        heads = heads_network(cluster.address)
        kept = {key: value for key, value in made.items() if heads.get(key) != value}
        return {**kept, rank.HEAD: cluster.address, rank.INTERFACE: self._plan.interface or ""}

    def _words(self, cluster: Cluster, env: Mapping[str, str]) -> list[str]:
        if isinstance(self._exp, MpiConfig):
            return self._mpi_words(cluster, env)
        if isinstance(self._exp, TorchrunConfig):
            return self._torchrun_words(cluster, env)
        return words.bash(self._exp.command)

    def _mpi_words(self, cluster: Cluster, env: Mapping[str, str]) -> list[str]:
        assert isinstance(self._exp, MpiConfig)
        ranks = self._ranks(env)
        shim = words.rank(words.bash(self._exp.command), interpreter=self._plan.python)
        if self._in_slurm:
            return self._step(cluster, shim, tasks=ranks, cpus=self._exp.cpus_per_rank, mpi=self._exp.mpi)
        program = find_mpiexec(ranks, env)
        return words.mpiexec(shim, program=program, ranks=ranks) if program else shim

    def _torchrun_words(self, cluster: Cluster, env: Mapping[str, str]) -> list[str]:
        launcher = words.torchrun(
            self._exp.command,
            python=self._python(env),
            nodes=len(cluster.hosts),
            procs=self._procs(env),
            address=cluster.address,
            port=cluster.master_port,
        )
        shim = words.rank(launcher, interpreter=self._plan.python)
        return self._step(cluster, shim, tasks=1, cpus=self._cpus(env), mpi="none") if self._in_slurm else shim

    def _step(self, cluster: Cluster, shim: list[str], *, tasks: int, cpus: int, mpi: str | None) -> list[str]:
        return step_command(
            shim,
            nodes=len(cluster.hosts),
            tasks_per_node=tasks,
            cpus_per_task=cpus,
            mpi=mpi,
            options=["--export=ALL"],
        )

    def _python(self, env: Mapping[str, str]) -> str:
        return python_of(env) or self._plan.python

    def _cpus(self, env: Mapping[str, str]) -> int:
        return node_cpus(self._plan, env, here=self._here)

    def _ranks(self, env: Mapping[str, str]) -> int:
        assert isinstance(self._exp, MpiConfig)
        return ranks_per_node(self._exp, self._cpus(env))

    def _procs(self, env: Mapping[str, str]) -> int:
        assert isinstance(self._exp, TorchrunConfig)
        return procs_per_node(self._exp, node_gpus(self._plan, env))

    def _threads(self, env: Mapping[str, str]) -> int:
        """CPUs for the threads of one process: its own share, or libraries would start one thread per CPU in each."""
        if isinstance(self._exp, MpiConfig):
            return self._exp.cpus_per_rank
        return max(1, self._cpus(env) // self._procs(env))


def heads_network(address: str) -> dict[str, str]:
    """The network variables that the node agent set here for the link with this address."""
    return next((network_env(link, interface_names(), {}).values for link in links() if link.address == address), {})
