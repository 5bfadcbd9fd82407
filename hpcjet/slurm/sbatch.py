"""Submit a batch script exactly once, whatever becomes of sbatch's answer.

The token goes along as the script's one argument. Slurm keeps that with the job for all to see: in squeue's %o and in
scontrol's Command. Unlike the comment it is no place where users and sites write something of their own.
"""

import itertools
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import ConfigError, SubmitError
from hpcjet.slurm.call import Answer, ask, run, submit_env
from hpcjet.slurm.failures import Failure, Kind, classify
from hpcjet.slurm.jobid import JobId, job_of, read_ids
from hpcjet.slurm.query import cancel_job
from hpcjet.slurm.states import Stage, stage_of, word_of

logger = logging.getLogger(__name__)

SBATCH_TIMEOUT_S = 90.0
"""sbatch itself waits for a controller that is busy."""
GIVE_UP_S = 300.0
"""After this long without success a submission is given up; Slurm's default memory of ended jobs is as long."""
SETTLE_S = 2.0
"""Between two looks that find nothing: a request that the controller had not read yet may still become a job."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


@dataclass(frozen=True)
class Found:
    """A job with our token."""

    job: JobId
    stage: Stage


def sbatch(script: Path, *, token: str, options: Sequence[str] = (), look_first: bool = False) -> JobId:
    """Submit `script` with sbatch's `options`; returns the one job that carries `token`, a word used for no other.

    After a lost reply the job is looked for by this user and the token before anything is tried again. With
    `look_first` a job of an earlier call with the same token is taken if it still waits or runs. Transient failures
    are tried again for five minutes, and said. Raises ConfigError if Slurm does not take such a request, SubmitError
    for the rest, both with Slurm's words and the next step.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", token):
        raise ConfigError(f"submission token {token!r} is not one plain word: use letters, digits, - _ and .")
    return _Submission(script, token, tuple(options)).once(look_first=look_first)


def find(token: str, *, clusters: str | None = None) -> list[Found] | None:
    """This user's jobs with the token that the controller knows, oldest first; None if it does not answer."""
    where = [f"--clusters={clusters}"] if clusters else []
    answer = ask(
        "squeue", *where, f"--user={os.getuid()}", "--noheader", "--states=all", "--format=%i|%T|%o", timeout_s=60
    )
    if not answer.ok:
        return None
    found: dict[JobId, Stage] = {}
    cluster = None
    for line in answer.out.splitlines():
        if match := re.fullmatch(r"CLUSTER: (\S+)", line.strip()):
            cluster = match[1]
        name, state, command = [*line.strip().split("|", 2), "", ""][:3]
        number = job_of(name)
        if re.search(r"\+[1-9]", name):
            continue  # of a heterogeneous job, which its first component stands for
        if number.isdigit() and command.split()[-1:] == [token]:
            stage = stage_of(word_of(state))
            job = JobId(number, cluster)
            # An array has several lines; it lives as long as one of its elements.
            found[job] = stage if found.get(job, Stage.ended) is Stage.ended else found[job]
    return [Found(job, stage) for job, stage in sorted(found.items(), key=lambda pair: int(pair[0].number))]


class _Submission:
    def __init__(self, script: Path, token: str, options: tuple[str, ...]) -> None:
        self._script, self._token, self._options = script, token, options
        self._text = script.read_text(errors="replace") if script.exists() else ""
        self._clusters = _clusters(options, self._text)
        self._deadline = time.monotonic() + GIVE_UP_S
        self._began = time.time()

    def once(self, *, look_first: bool) -> JobId:
        if look_first and (job := self._looked_for("the job of an earlier try is looked for", alive=True)):
            return job
        for tries, pause_s in enumerate(_pauses()):
            answer = self._submit()
            ids = read_ids(answer.out)
            if answer.ok and len(ids) == 1:
                return self._alone(ids[0]) if tries else ids[0]
            failure = classify(answer)
            if failure.kind in (Kind.request, Kind.limit) and not answer.ok:
                raise self._refused(failure)
            if job := self._looked_for(failure.words):
                return self._alone(job)
            if answer.ok:
                raise SubmitError(
                    f"sbatch answered without a job id: {answer.out.strip()!r}, and no job of yours carries "
                    f"{self._token}; see squeue --me"
                )
            if failure.kind is not Kind.transient or time.monotonic() + pause_s > self._deadline:
                raise self._refused(failure)
            logger.warning("Slurm did not take the job (%s); trying again in %g s", failure.words, pause_s)
            time.sleep(pause_s)
        raise AssertionError("the pauses never end")

    def _submit(self) -> Answer:
        command = ("sbatch", "--parsable", *self._options, str(self._script), self._token)
        return run(command, env=submit_env(os.environ, self._text), timeout_s=SBATCH_TIMEOUT_S)

    def _looked_for(self, why: str, *, alive: bool = False) -> JobId | None:
        """The job with our token; None once Slurm has said twice that there is none. Raises SubmitError."""
        if found := self._asked(why, alive=alive):
            return found
        time.sleep(SETTLE_S)
        return self._asked(why, alive=alive) or (None if alive else self._accounted())

    def _asked(self, why: str, *, alive: bool) -> JobId | None:
        for number, pause_s in enumerate(_pauses()):
            found = find(self._token, clusters=self._clusters)
            if found is not None:
                jobs = [each.job for each in found if not (alive and each.stage is Stage.ended)]
                return jobs[0] if jobs else None
            if time.monotonic() + pause_s > self._deadline:
                raise SubmitError(
                    f"Slurm does not answer ({why}), and whether it has the job is not known; once it is back, "
                    f"hpcjet resume, or squeue --me -o '%i %o' | grep {self._token}, finds it"
                )
            if not number:
                logger.warning(
                    "Slurm does not answer (%s); asking for up to %.0f s whether it has the job", why, GIVE_UP_S
                )
            time.sleep(pause_s)
        raise AssertionError("the pauses never end")

    def _accounted(self) -> JobId | None:
        """A job that ran and was forgotten by the controller before it was asked; Slurm before 21.08 cannot tell."""
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self._began - 600))
        where = [f"--clusters={self._clusters}"] if self._clusters else []
        answer = ask(
            "sacct", *where, "--allocations", "--noheader", "--parsable2", f"--starttime={since}",
            f"--uid={os.getuid()}", "--format=JobID,SubmitLine",
        )  # fmt: skip
        for line in answer.out.splitlines() if answer.ok else ():
            name, _, command = line.partition("|")
            if command.split()[-1:] == [self._token] and (match := re.match(r"\d+", name)):
                return JobId(match[0])
        return None

    def _alone(self, job: JobId) -> JobId:
        """End what came in twice: a request that was thought lost and was only late."""
        found = find(self._token, clusters=self._clusters) or [Found(job, Stage.unknown)]
        for twin in found[1:]:
            logger.warning("Slurm took the submission twice; job %s is cancelled", twin.job)
            cancel_job(twin.job.key)
        return found[0].job

    def _refused(self, failure: Failure) -> SubmitError | ConfigError:
        text = f"Slurm refused the job: {failure.words}; {failure.step} (script: {self._script})"
        if failure.kind is Kind.request:
            return ConfigError(text)
        if failure.kind is Kind.transient:
            text = f"Slurm did not take the job for {GIVE_UP_S:.0f} s: {failure.words}; submit again later"
        return SubmitError(text)


def _pauses() -> Iterator[float]:
    """The pauses between tries; the last one repeats."""
    return itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))


def _clusters(options: Sequence[str], script: str) -> str | None:
    """The clusters that sbatch is told to choose from, by option, script or environment, in sbatch's order."""
    words = list(options)
    for number, word in enumerate(words):
        if match := re.fullmatch(r"(?:--clusters=|-M)(.+)", word):
            return match[1]
        if word in ("--clusters", "-M", "--cluster") and number + 1 < len(words):
            return words[number + 1]
    for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS"):
        if os.environ.get(name):
            return os.environ[name]
    match = re.search(r"^#SBATCH\s+(?:--clusters=|-M\s*)(\S+)", script, re.MULTILINE)
    return match[1].strip("'\"") if match else None
