"""What kind of failure the words of sbatch are, and what a person does about it. Pure."""

import re
from dataclasses import dataclass
from enum import Enum

from hpcjet.slurm.call import Answer


class Kind(Enum):
    """Whether the same submission may succeed later, and who has to change something."""

    transient = "Slurm was away or busy; the job may have been taken all the same"
    request = "Slurm does not take such a request"
    limit = "a limit on the number or size of jobs is reached"
    unknown = "words that are not in the table"


@dataclass(frozen=True)
class Failure:
    """A failed submission: its kind, Slurm's own words, and the next step."""

    kind: Kind
    words: str
    step: str


_T, _R, _L = Kind.transient, Kind.request, Kind.limit
_LATER = "it is tried again"

TABLE: tuple[tuple[str, Kind, str], ...] = (
    (r"socket timed out|operation timed out|connection timed out|no answer after", _T, _LATER),
    (r"unable to contact slurm controller|connection (refused|reset)|no route to host|not connected", _T, _LATER),
    (r"zero bytes were transmitted|communication connection failure|message (send|receive) failure", _T, _LATER),
    (r"temporarily un(able|available)|standby mode|unexpected message|lost connection|broken pipe", _T, _LATER),
    (r"\b(408|429|50[0234])\b|too many requests|bad gateway|gateway time-?out|service unavailable", _T, _LATER),
    (r"munge|protocol authentication error|unable to write to|slurmctld.*shutting down|unspecified error", _T, _LATER),
    (r"database connection|accounting storage is temporarily", _T, _LATER),
    (r"job violates accounting/qos policy|max ?submit|submit limit|reached max jobs|maxjobs|job ?count ?limit", _L,
     "wait for jobs to end, or ask for less: sacctmgr show qos and sacctmgr show assoc user=$USER show the limits"),
    (r"disk quota|no space left", _L, "free some space in the run's directory or the home directory"),
    (r"invalid partition|partition name", _R, "set cluster.partition to one that sinfo shows"),
    (r"group not permitted|account not permitted|qos not permitted|user.* not permitted", _R,
     "choose another cluster.partition, cluster.account or cluster.qos: scontrol show partition says who may use it"),
    (r"invalid account", _R, "set cluster.account to one of yours: sacctmgr show assoc user=$USER format=account"),
    (r"invalid qos|qos specification", _R,
     "set cluster.qos to one of yours: sacctmgr show assoc user=$USER format=qos"),
    (r"memory specification|memory required", _R, "lower cluster.mem_gb; sinfo -o '%P %m' shows MiB per node"),
    (r"time limit is invalid|invalid --time|time limit", _R,
     "lower cluster.time_min; sinfo -o '%P %l' shows the limits"),
    (r"cpu count|cpus per task|more processors", _R,
     "lower cluster.cpus_per_node; sinfo -o '%P %c' shows CPUs per node"),
    (r"node count|too many nodes|node configuration is not available|partition configuration", _R,
     "ask for fewer nodes, CPUs, memory or GPUs: sinfo -N -l and scontrol show partition show what there is"),
    (r"node name", _R, "name nodes in cluster.nodelist and cluster.exclude that sinfo -N shows"),
    (r"generic resource|gres|gpu", _R, "set cluster.gres or cluster.gpus_per_node to what sinfo -o '%P %G' shows"),
    (r"feature specification|constraint", _R, "set cluster.constraint to features that sinfo -o '%P %f' shows"),
    (r"job array specification|array task", _R, "scontrol show config shows MaxArraySize: ask for a smaller array"),
    (r"dependency", _R, "the job it shall wait for is not known: correct the dependency in cluster.sbatch"),
    (r"reservation", _R, "correct the reservation in cluster.sbatch: scontrol show reservation"),
    (r"wckey|license|burst buffer|cluster ?name|no cluster", _R, "correct the option in cluster.sbatch"),
    (r"unrecogni[sz]ed option|invalid option|invalid directive|ambiguous|invalid --|invalid numeric", _R,
     "correct the option in cluster.sbatch: sbatch --help lists those of this Slurm"),
    (r"access/permission denied|permission denied", _R, "ask the site whether you may submit here"),
    (r"unable to open file|dos line breaks|empty file|not a batch script", _R, "look at the script"),
)  # fmt: skip
"""(pattern, kind, next step): the first pattern that is found in Slurm's last words holds."""


def classify(answer: Answer) -> Failure:
    """The failure behind an answer of sbatch that is no id."""
    words = last_words(answer)
    if answer.code is None and "no answer after" not in answer.err:
        return Failure(Kind.unknown, words, "is sbatch on PATH?")
    for text in (words, answer.err):
        for pattern, kind, step in TABLE:
            if re.search(pattern, text, re.IGNORECASE):
                return Failure(kind, words, step)
    if answer.code is None or answer.code < 0:
        return Failure(Kind.transient, words, _LATER)
    return Failure(Kind.unknown, words, "see squeue --me for what is queued")


def last_words(answer: Answer) -> str:
    """The line that says most: the last one with `error` or `failed` in it, else the last."""
    lines = [line.strip() for line in (answer.err or answer.out).splitlines() if line.strip()]
    if not lines:
        return "no words" if answer.code is None or answer.code >= 0 else f"ended by signal {-answer.code}"
    telling = [line for line in lines if re.search(r"error|fail|fatal|no answer|unrecogni", line, re.IGNORECASE)]
    return (telling or lines)[-1]
