"""Slurm's commands where hpcjet is started: the login node."""

import shutil

from hpcjet.doctor.line import Facts, Line, fail, ok, warn

SUBJECT = "commands"
NEEDED = ("sbatch", "squeue", "scancel")
USED = ("srun", "scontrol", "sacct", "sinfo")


def look() -> Facts:
    return {"there": {name: bool(shutil.which(name)) for name in (*NEEDED, *USED)}}


def assess(facts: Facts) -> list[Line]:
    there = facts["there"]
    do = "go to a login node, or load Slurm's module (module load slurm); for this machine alone: cluster=local"
    if missing := [name for name in NEEDED if not there[name]]:
        return [fail(SUBJECT, f"no {', no '.join(missing)} on PATH: nothing can be submitted from here", do)]
    if missing := [name for name in USED if not there[name]]:
        return [warn(SUBJECT, f"no {', no '.join(missing)} on PATH", "load Slurm's module: some states stay unknown")]
    return [ok(SUBJECT, ", ".join([*NEEDED, *USED]))]
