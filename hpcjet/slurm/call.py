"""One call of a Slurm command: with a time-out, and in an environment that does not change what it answers."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

QUERY_TIMEOUT_S = 30.0

_SETTINGS = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SCANCEL_", "SACCTMGR_", "SBATCH_")
_LOCATE = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_KEY"}
_NEVER_FOR_US = {"SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_TEST_ONLY", "SBATCH_IGNORE_PBS"}
"""Variables that would make another kind of submission of ours."""


@dataclass(frozen=True)
class Answer:
    """What a command said; `code` is None if it could not be started or took too long."""

    code: int | None
    out: str = ""
    err: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0


def ask(*command: str, timeout_s: float | None = None) -> Answer:
    """Ask Slurm something, whatever the user's own defaults for its commands are."""
    return run(command, env=query_env(os.environ), timeout_s=QUERY_TIMEOUT_S if timeout_s is None else timeout_s)


def run(command: tuple[str, ...], *, env: Mapping[str, str], timeout_s: float, stdin: str = "") -> Answer:
    """Run a command to its end, or to the time-out; it never raises."""
    text = {"encoding": "utf-8", "errors": "replace"}
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, env=dict(env), timeout=timeout_s, check=False, **text
        )  # type: ignore[call-overload]
    except subprocess.TimeoutExpired as error:
        return Answer(None, _text(error.stdout), f"{_text(error.stderr)}\nno answer after {timeout_s:g} s")
    except OSError as error:
        return Answer(None, "", f"{command[0]}: {error.strerror}")
    return Answer(done.returncode, done.stdout, done.stderr)


def query_env(env: Mapping[str, str]) -> dict[str, str]:
    """Without the user's formats, filters and clusters; times and lists of array elements are written in full."""
    kept = {
        key: value
        for key, value in env.items()
        if not key.startswith(_SETTINGS) and key not in ("SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")
    }
    return {**kept, "SLURM_TIME_FORMAT": "standard", "SLURM_BITSTR_LEN": "0"}


def submit_env(env: Mapping[str, str], script: str) -> dict[str, str]:
    """For sbatch: what the script says holds, and a job that submits hands none of its own numbers on.

    sbatch takes SBATCH_ variables before the lines of the script. Those for options that the script leaves open, such
    as an account, are the user's defaults and stay.
    """
    given = {match.replace("-", "_").upper() for match in re.findall(r"^#SBATCH\s+--([a-z-]+)", script, re.M)}
    given |= {"TIMELIMIT"} if "TIME" in given else set()
    given |= {"GPUS", "GRES"} if given & {"GPUS", "GPUS_PER_NODE", "GRES"} else set()
    given |= {"MEM_PER_NODE", "MEM_PER_CPU"} if "MEM" in given else set()
    inside = "SLURM_JOB_ID" in env
    return {
        key: value
        for key, value in env.items()
        if key not in _NEVER_FOR_US
        and not (key.startswith("SBATCH_") and key.removeprefix("SBATCH_") in given)
        and not (inside and key.startswith("SLURM_") and key not in _LOCATE)
    }


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
