"""Checks before anything is submitted: is there the Slurm that the request needs?"""

import os
import shutil
import sys
from pathlib import Path

from hpcjet.config.cluster import LabConfig, SlurmConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import ConfigError, LabError, SubmitError
from hpcjet.lab.layout import resolve_layout
from hpcjet.slurm.query import partitions


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


def check_slurm(config: LaunchConfig) -> None:
    """Raises SubmitError without Slurm's commands, ConfigError for a partition that the cluster does not have."""
    cluster = config.cluster
    if not isinstance(cluster, SlurmConfig):
        return
    if shutil.which("sbatch") is None:
        raise SubmitError(
            "sbatch is not on PATH: this is no login node of a Slurm cluster, or its module is not loaded; "
            "dry_run=true shows the job without Slurm"
        )
    there = partitions()
    if cluster.partition and there is not None:
        for wanted in cluster.partition.split(","):
            if wanted not in there:
                raise ConfigError(
                    f"cluster.partition={wanted} does not exist on this cluster: choose one of {', '.join(there)}"
                )
