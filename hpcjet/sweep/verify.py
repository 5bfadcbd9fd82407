"""Whether Slurm still has what it took: a controller that is killed forgets the jobs of its last seconds.

It gives their numbers to the next jobs then, so a number alone proves nothing: the token that each submission carries
does.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress

from hpcjet.slurm.call import ask
from hpcjet.slurm.jobid import job_of, split_key
from hpcjet.sweep.folder import Array, SweepDir

LOST = "Slurm forgot the job: its controller was killed"


def tokens(*, uid: int | None = None) -> dict[str, str] | None:
    """Job -> the last word of its command, the token, of all jobs that the controller knows; None without an answer."""
    user = f"--user={os.getuid() if uid is None else uid}"
    answer = ask("squeue", user, "--noheader", "--states=all", "--format=%F|%o")
    if not answer.ok:
        return None
    pairs = (line.strip().partition("|") for line in answer.out.splitlines())
    return {job: (command.split() or [""])[-1] for job, _, command in pairs if job.isdigit()}


def is_anothers(array: Array, held: dict[str, str] | None) -> bool:
    """Whether the array's number belongs to another job now."""
    number, cluster = split_key(array.job)
    return bool(held) and not cluster and number in (held or {}) and (held or {})[number] != array.token


def lost(sweep: SweepDir, arrays: Iterable[Array]) -> list[Array]:
    """Those of arrays that were submitted just now that Slurm does not have any more."""
    asked = [array for array in arrays if array.job and not array.pid and not split_key(array.job)[1]]
    held = tokens() if asked else None
    if held is None:
        return []
    known = set(held.values())
    return [each for each in asked if each.token not in known and seen(sweep, each) is None and _is_unknown(each)]


def _is_unknown(array: Array) -> bool:
    """Asked in another way: that a list lacks a job proves little, and to submit it twice is worse than to wait."""
    answer = ask("scontrol", "show", "job", "--oneliner", array.job)
    if answer.ok:
        return "JobId=" in answer.out and array.token not in answer.out
    return "Invalid job id" in answer.err


def seen(sweep: SweepDir, array: Array) -> str | None:
    """The job of an array whose elements ran already: they left its token in their runs."""
    for index in array.points:
        with suppress(OSError, ValueError, KeyError):
            said = json.loads(sweep.run(index).submission.read_text())
            if said["token"] == array.token:
                return job_of(str(said["job_id"]))
    return None
