"""A step that runs within the job: how it is ended, and which kinds of MPI Slurm knows."""

import os
import signal
import subprocess
from pathlib import Path

from hpcjet.command.process import Group, signal_group

CALL_TIMEOUT_S = 5.0


class Step(Group):
    """How a step is ended; its first rank leaves its number in `file`."""

    def __init__(self, job_id: str, file: Path) -> None:
        self._job_id, self._file = job_id, file

    def ask(self, leader: int) -> None:
        """SIGTERM to the ranks, through Slurm: srun itself would turn it into SIGKILL, the last resort here."""
        if not self._signal_ranks():
            self.force(leader)

    def force(self, leader: int) -> None:
        """Have srun kill the ranks on all nodes: without it they would live until the job ends."""
        signal_group(leader, signal.SIGTERM)

    def _signal_ranks(self) -> bool:
        try:
            words = ["scancel", "--signal=TERM", f"{self._job_id}.{self._file.read_text()}"]
            done = subprocess.run(words, capture_output=True, timeout=CALL_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def mpi_types() -> list[str] | None:
    """The kinds of MPI that `srun --mpi=list` names here; None where srun does not say."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_MPI")}
    words = ["srun", "--mpi=list"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else read_mpi_types(done.stdout + done.stderr)


def read_mpi_types(answer: str) -> list[str] | None:
    """The names in the answer: one on each line, and after `specific pmix plugin versions available:` with commas."""
    names: list[str] = []
    for line in answer.splitlines():
        _, colon, rest = line.removeprefix("srun: ").partition(":")
        words = rest.replace(",", " ").split() if colon else line.removeprefix("srun: ").split()
        if colon or len(words) == 1:
            names += words
    return list(dict.fromkeys(names)) or None
