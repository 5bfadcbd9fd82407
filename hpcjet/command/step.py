"""A step that runs within the job: how it is ended, and which kinds of MPI Slurm knows."""

import os
import re
import signal
import subprocess
from pathlib import Path

from hpcjet.command.process import Group, signal_group

CALL_TIMEOUT_S = 5.0
FAILED_RANK = re.compile(
    r"srun: error: \S+: tasks? [\d,\[\]-]+: (?:Exited with exit code (?P<code>\d+)|(?P<how>[A-Z][A-Za-z /]+))"
    r"|application called MPI_Abort\(.*?, (?P<mpich>-?\d+)\)"
    r"|MPI_ABORT was invoked on rank .{0,300}?(?:with errorcode|Errorcode:) (?P<openmpi>-?\d+)",
    re.DOTALL,
)
"""What srun says of a rank, and MPICH and Open MPI of one that aborts: all ranks are killed then, itself too."""


class Step(Group):
    """How a step is ended; its first rank leaves its number in `file`."""

    def __init__(self, job_id: str, file: Path) -> None:
        self._job_id, self._file = job_id, file

    def code(self, code: int, output: Path) -> int:
        """That of the rank that failed first."""
        first = first_bad_code(_end_of(output)) if code else None
        return code if first is None else first

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


def first_bad_code(output: str) -> int | None:
    """The exit code of the rank that failed first, from what srun and MPI say of each; 128+N for signal N.

    srun ends the others when one fails, and itself with the highest code of all, which may be that of a rank that it
    ended.
    """
    if not (failed := FAILED_RANK.search(output)):
        return None
    if number := failed["code"] or failed["mpich"] or failed["openmpi"]:
        return int(number) & 0xFF or 1
    names = {signal.strsignal(each): 128 + each for each in signal.valid_signals()}
    return names.get(failed["how"].strip())


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


def _end_of(file: Path, most: int = 4 << 20) -> str:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - most))
        return opened.read().decode(errors="replace")
