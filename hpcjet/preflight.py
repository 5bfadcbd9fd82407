"""Checks before anything is submitted: is there the Slurm that the request needs?"""

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.config.cluster import LabConfig, SlurmConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import LabError, SubmitError
from hpcjet.lab.layout import resolve_layout
from hpcjet.plan import Defaults
from hpcjet.slurm.expected import Expected, expected_start
from hpcjet.slurm.limits import site
from hpcjet.slurm.request import check_request, defaults, problems


def find_lab(config: LaunchConfig) -> None:
    """For cluster=lab: point Slurm's commands to the lab. Raises LabError if it is not up."""
    if not isinstance(config.cluster, LabConfig):
        return
    conf = resolve_layout().slurm_conf
    if not conf.exists():
        raise LabError("cluster=lab: the lab is not up; as root: hpcjet lab up --nodes 4")
    os.environ["SLURM_CONF"] = str(conf)


def become_lab_user(config: LaunchConfig) -> None:
    """For cluster=lab, started by root: start again as the lab's user; it takes jobs of ordinary users, as sites do."""
    if isinstance(config.cluster, LabConfig) and os.geteuid() == 0:
        from hpcjet.lab.run import run_as_lab_user

        program = ["hpcjet"] if Path(sys.argv[0]).name == "hpcjet" else ["python", "-m", "hpcjet.launch"]
        print("cluster=lab: going on as the lab's ordinary user, in its home", flush=True)
        run_as_lab_user([*program, *sys.argv[1:]])


def check_slurm(config: LaunchConfig, *, array: int | None = None) -> None:
    """Compare the request with what the cluster has and allows; `array` is the number of elements of a job array.

    Raises SubmitError without Slurm's commands, ConfigError for what could never start, with the nearest that could.
    """
    cluster = config.cluster
    if not isinstance(cluster, SlurmConfig):
        return
    if shutil.which("sbatch") is None:
        raise SubmitError(
            "sbatch is not on PATH: this is no login node of a Slurm cluster, or its module is not loaded; "
            "dry_run=true shows the job without Slurm"
        )
    there = site()
    if there is not None:
        check_request(cluster, there, array=array)


@dataclass(frozen=True)
class Forecast:
    """What Slurm says of a request before it is submitted; empty where there is no Slurm."""

    version: str = ""
    defaults: Mapping[str, Defaults] = field(default_factory=dict)
    """By group."""
    problems: tuple[str, ...] = ()
    expected: Expected | None = None


def forecast(config: LaunchConfig, script: str) -> Forecast:
    """What a Slurm that is there says of a dry run; nothing where there is none. It never raises."""
    cluster = config.cluster
    if not isinstance(cluster, SlurmConfig) or shutil.which("sbatch") is None:
        return Forecast()
    with contextlib.suppress(LabError):
        find_lab(config)
    there = site()
    if there is None:
        return Forecast()
    found = tuple(problems(cluster, there))
    return Forecast(
        version=there.version,
        defaults=defaults(cluster, there),
        problems=found,
        expected=None if found else expected_start(script),
    )
