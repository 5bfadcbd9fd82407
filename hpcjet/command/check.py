"""What can be checked of a user's program before anything starts: its folder, its Python, torch, the kind of MPI."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hpcjet.command.environment import program_env
from hpcjet.command.size import ranks_per_node
from hpcjet.command.step import mpi_types
from hpcjet.config.check import bad
from hpcjet.config.cluster import LocalConfig, SlurmConfig
from hpcjet.config.command import CommandConfig, MpiConfig, TorchrunConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import ConfigError

FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
FIND_TORCH_TIMEOUT_S = 20.0


def resolve(config: LaunchConfig, *, here: Path) -> LaunchConfig:
    """The config with the folder of the launch, `here`, and with whole paths. Raises ConfigError."""
    exp = config.exp
    assert isinstance(exp, CommandConfig)
    workdir = here / exp.workdir.expanduser() if exp.workdir else here
    check_workdir(workdir)
    return replace(config, exp=replace(exp, workdir=workdir, python=_whole(exp.python, here)))


def check(config: LaunchConfig, *, interpreter: str) -> None:
    """Raises ConfigError for what would fail on the nodes, as far as it can be seen from here."""
    exp, cluster = config.exp, config.cluster
    assert isinstance(exp, CommandConfig)
    env = program_env(os.environ, chosen=exp.python, interpreter=interpreter, ray_address=None)
    # With modules of the site's, what there is on the nodes cannot be seen from here.
    alike = isinstance(cluster, LocalConfig) or (isinstance(cluster, SlurmConfig) and not cluster.setup)
    if isinstance(exp, TorchrunConfig) and alike and (python := python_of(env)):
        check_torch(python, env)
    if isinstance(exp, MpiConfig) and isinstance(cluster, LocalConfig):
        cpus = cluster.cpus or len(os.sched_getaffinity(0))
        find_mpiexec(ranks_per_node(exp, cpus), env)
    if isinstance(exp, MpiConfig) and exp.mpi and isinstance(cluster, SlurmConfig):
        _check_mpi_type(exp.mpi)


def check_workdir(workdir: Path) -> None:
    """Raise ConfigError if the program cannot run in this folder."""
    if not workdir.is_dir():
        raise bad("exp.workdir", workdir, f"it is no folder on {os.uname().nodename}", "make it, or name another")


def check_torch(python: str, env: Mapping[str, str]) -> None:
    """Raise ConfigError if this Python has no torch; it is not imported, which takes seconds."""
    try:
        words = [python, "-c", FIND_TORCH]
        done = subprocess.run(words, env=dict(env), capture_output=True, timeout=FIND_TORCH_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return  # a Python that does not start here: the program itself will say why
    if done.returncode:
        raise ConfigError(
            f"exp=torchrun: {python} has no torch; install it there, or name the Python of an environment that has it: "
            "exp.python=/path/venv/bin/python"
        )


def python_of(env: Mapping[str, str]) -> str | None:
    """What `python` is in the command."""
    return shutil.which("python", path=env.get("PATH"))


def find_mpiexec(ranks: int, env: Mapping[str, str]) -> str | None:
    """The launcher of this machine's MPI; None for one rank, which needs none. Raises ConfigError without one."""
    if ranks == 1:
        return None
    for name in ("mpiexec", "mpirun"):
        if found := shutil.which(name, path=env.get("PATH")):
            return found
    raise ConfigError(
        f"exp=mpi with {ranks} ranks on this machine needs mpiexec or mpirun, and neither is on PATH: install an MPI "
        "(apt-get install mpich, or pip install mpich mpi4py), load its module, or set exp.ranks_per_node=1"
    )


def _check_mpi_type(asked: str) -> None:
    known = mpi_types()
    if known is not None and asked not in known:
        raise bad("exp.mpi", asked, f"this Slurm has {', '.join(known)}", "choose one of them (srun --mpi=list)")


def _whole(python: str | None, here: Path) -> str | None:
    """A path stays as it is, links too: a virtual environment is one by the place of its link."""
    if python is None:
        return None
    found = str(here / Path(python).expanduser()) if "/" in python else shutil.which(python)
    if found is None:
        raise bad("exp.python", python, "it is not on PATH", "give its path, such as /path/venv/bin/python")
    return found
