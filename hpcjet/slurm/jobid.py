"""Ids of jobs: in sbatch's answers, of array elements, and with the cluster that they belong to. Pure."""

import re
from dataclasses import dataclass

from hpcjet.errors import ConfigError

_ID = re.compile(r"(?P<number>\d+)(?:;(?P<cluster>[A-Za-z0-9_.-]+))?")
_ELEMENTS = re.compile(r"(?P<job>\d+)_\[(?P<list>[^\]]*)\]")
MAX_ELEMENTS = 5_000_000
"""Slurm's own largest MaxArraySize is 4,000,001."""


@dataclass(frozen=True)
class JobId:
    """A job's number, and its cluster where Slurm named one. As text it is what Slurm's commands take."""

    number: str
    cluster: str | None = None

    def __str__(self) -> str:
        return self.number

    @property
    def key(self) -> str:
        """`123`, or `123;alpha`: one word that hpcjet's queries take and that keeps the cluster."""
        return f"{self.number};{self.cluster}" if self.cluster else self.number


def read_ids(answer: str) -> list[JobId]:
    """The lines of an answer of `sbatch --parsable` that are an id and nothing else.

    Sites print banners and warnings around it, with numbers of their own in them.
    """
    matches = (_ID.fullmatch(line.strip()) for line in answer.splitlines())
    return [JobId(match["number"], match["cluster"]) for match in matches if match]


def split_key(key: str) -> tuple[str, str | None]:
    """`12_3;alpha` -> (`12_3`, `alpha`)"""
    number, _, cluster = key.partition(";")
    return number.strip(), cluster.strip() or None


def job_of(element: str) -> str:
    """The job that an array element, a part of a heterogeneous job or a step belongs to: `12` of `12_3`, `12+1`."""
    match = re.match(r"\s*(\d+)", element)
    return match[1] if match else element


def elements(text: str) -> list[str]:
    """The single ids in one of Slurm's: `12_[0-3,7%4]` -> `12_0` to `12_3` and `12_7`; a plain id is its only one.

    Raises ConfigError for text that is no job id.
    """
    text = split_key(text)[0]
    if match := _ELEMENTS.fullmatch(text):
        listed = match["list"].partition("%")[0]
        return [f"{match['job']}_{number}" for part in listed.split(",") for number in _numbers(part, text)]
    if re.fullmatch(r"\d+(?:_\d+)?(?:\+\d+)?(?:\.\w+)?", text):
        return [text.partition(".")[0]]
    raise ConfigError(f"{text!r} is no Slurm job id; see squeue --me --array")


def _numbers(part: str, text: str) -> range:
    """`3`, `0-10` or `0-10:2`; nothing for the dots where Slurm cut a long list."""
    if part.strip() in ("...", ""):
        return range(0)
    match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
    if not match or int(match[3] or 1) == 0 or int(match[2] or 0) > MAX_ELEMENTS:
        raise ConfigError(f"{text!r} is no Slurm job id: {part!r} is no range of array elements; see squeue --me")
    return range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
