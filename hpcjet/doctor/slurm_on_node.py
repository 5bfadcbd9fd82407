"""Slurm's commands on a node: what a requeue and steps of the job need."""

import os
import shutil
import subprocess

from hpcjet.doctor.line import Facts, Line, ok, warn
from hpcjet.doctor.order import Scene

SUBJECT = "Slurm there"


def look(scene: Scene) -> Facts:
    if not scene.in_slurm:
        return {"alone": True}
    here = {name: bool(shutil.which(name)) for name in ("scontrol", "srun")}
    said = "" if not here["scontrol"] else _said(["scontrol", "show", "job", os.environ.get("SLURM_JOB_ID", "")])
    return {**here, "said": said}


def assess(facts: Facts) -> list[Line]:
    if facts.get("alone"):
        return []
    if missing := [name for name in ("scontrol", "srun") if not facts[name]]:
        do = "load Slurm's module in cluster.setup; without it go on by hand: hpcjet resume"
        cost = "no requeue from the node" if "scontrol" in missing else "no +exp=mpi, no +exp=torchrun"
        return [warn(SUBJECT, f"no {' and no '.join(missing)}: {cost}", do)]
    if facts["said"]:
        do = "a preempted run is not requeued from such a node: go on by hand with hpcjet resume, or ask the site"
        return [warn(SUBJECT, f"scontrol does not answer: {facts['said']}", do)]
    return [ok(SUBJECT, "srun, and scontrol answers: a run can be queued again from there")]


def _said(command: list[str]) -> str:
    """What a command complains of; empty if it works."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=15, check=False
        )
    except subprocess.TimeoutExpired:
        return "no answer in 15 s"
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
    return lines[-1] if done.returncode else ""
