"""When a job would start, by `sbatch --test-only`: nothing is submitted."""

import os
import re
import time
from dataclasses import dataclass

from hpcjet.slurm.call import run, submit_env
from hpcjet.slurm.failures import last_words
from hpcjet.slurm.times import duration, moment

TEST_TIMEOUT_S = 10.0
"""The scheduler goes through its whole plan for the answer; nobody has to have it."""
SOON_S = 60.0

_ANSWER = re.compile(
    r"to start at (?P<start>\S+)(?: using (?P<cpus>\d+) processors)?(?: on(?: nodes)? (?P<nodes>\S+))?"
    r"(?: in partition (?P<partition>\S+))?"
)


@dataclass(frozen=True)
class Expected:
    """Slurm's answer: when and where, or its words if it sees no way. `start` in seconds since the epoch."""

    start: float | None
    nodes: str = ""
    partition: str = ""
    words: str = ""

    def text(self, *, now: float | None = None) -> str:
        """For people, such as `in 3 h (2026-11-30 12:30) on n[1-2] in partition batch`."""
        if self.start is None:
            return f"Slurm sees no start as things are: {self.words}"
        wait_s = self.start - (time.time() if now is None else now)
        clock = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.start))
        when = "now" if wait_s < SOON_S else f"in {duration(wait_s / 60)} ({clock})"
        return when + (f" on {self.nodes}" if self.nodes else "") + (
            f" in partition {self.partition}" if self.partition else ""
        )  # fmt: skip


def expected_start(script: str) -> Expected | None:
    """What Slurm says of the script; None if it does not answer in ten seconds."""
    answer = run(("sbatch", "--test-only"), env=submit_env(os.environ, script), timeout_s=TEST_TIMEOUT_S, stdin=script)
    return None if answer.code is None else read_expected(answer.err + answer.out, words=last_words(answer))


def read_expected(said: str, *, words: str = "") -> Expected | None:
    """Pure. None for words that only say that the controller is away."""
    if (match := _ANSWER.search(said)) and (start := moment(match["start"])) is not None:
        return Expected(start, match["nodes"] or "", match["partition"] or "")
    if re.search(r"allocation failure|submission failed|error: invalid", said, re.IGNORECASE):
        return None if re.search(r"contact|timed out|connect", said) else Expected(None, words=words)
    return None
