"""What the cluster is made of and what it allows, as sinfo, scontrol and sacctmgr say: four calls, however large it is.

What none of them says is None here.
"""

import os
import pwd
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from hpcjet.slurm.call import ask
from hpcjet.slurm.times import limit_min

NODE_FORMAT = "%R|%D|%c|%m|%G|%f|%N"


@dataclass(frozen=True)
class NodeType:
    """Nodes of a partition that are alike, down ones too: they may come back."""

    nodes: str
    """Slurm's short form."""
    count: int
    cpus: int
    mem_mb: int
    gres: Mapping[str, int] = field(default_factory=dict)
    """Per node: `gpu` is the number of all types, `gpu:a100` that of one."""
    features: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Partition:
    """A partition's limits. Times in minutes."""

    name: str
    state: str = "UP"
    is_default: bool = False
    max_time_min: float | None = None
    default_time_min: float | None = None
    min_nodes: int = 0
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    max_mem_mb_per_node: int | None = None
    default_mem_mb_per_node: int | None = None
    whole_nodes: bool = False
    """Jobs get nodes for themselves."""
    preempt_mode: str = ""
    qos: str | None = None
    """A QOS whose limits hold for all jobs of the partition."""
    allow_accounts: frozenset[str] | None = None
    deny_accounts: frozenset[str] = frozenset()
    allow_qos: frozenset[str] | None = None
    deny_qos: frozenset[str] = frozenset()
    types: tuple[NodeType, ...] = ()

    @property
    def time_if_unset_min(self) -> float | None:
        """The limit of a job that names none; None: there is no limit."""
        return self.default_time_min if self.default_time_min is not None else self.max_time_min


@dataclass(frozen=True)
class Association:
    """An account that the user may use; `qos` is None where nobody says which."""

    account: str
    partition: str | None = None
    qos: frozenset[str] | None = None


@dataclass(frozen=True)
class Site:
    """A cluster and what this user may do there."""

    version: str = ""
    cluster: str = ""
    max_array_size: int | None = None
    """One more than the largest index of an array element."""
    max_job_count: int | None = None
    job_requeue: bool = True
    preempt_mode: str = ""
    enforced: frozenset[str] = frozenset()
    """What accounting enforces: associations, limits, qos."""
    has_accounting: bool = False
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    associations: tuple[Association, ...] | None = None
    """None where there is no accounting or it does not answer."""

    @property
    def default_partition(self) -> Partition | None:
        return next((each for each in self.partitions.values() if each.is_default), None)


def site() -> Site | None:
    """Ask for all of it; None if nobody answers. Four calls at once, however many nodes there are."""
    calls = {
        "config": ("scontrol", "show", "config"),
        "partitions": ("scontrol", "show", "partition", "--oneliner"),
        "nodes": ("sinfo", "--exact", "--noheader", f"--format={NODE_FORMAT}"),
        "associations": (
            "sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={_user()}",
            "format=Cluster,Account,Partition,QOS",
        ),
    }  # fmt: skip
    with ThreadPoolExecutor(len(calls)) as pool:
        answers = dict(zip(calls, pool.map(lambda words: ask(*words), calls.values()), strict=True))
    told = {name: answer.out if answer.ok else None for name, answer in answers.items()}
    if not told["partitions"] and not told["nodes"]:
        return None
    return read_site(told["config"] or "", told["partitions"] or "", told["nodes"] or "", told["associations"])


def read_site(config: str, partitions: str, nodes: str, associations: str | None) -> Site:
    """The site in the words of the commands; what did not answer is empty, or None for associations. Pure."""
    settings = _settings(config)
    types = _node_types(nodes)
    has_accounting = settings.get("AccountingStorageType", "").endswith("slurmdbd")
    cluster = settings.get("ClusterName", "")
    found = [_partition(line, types) for line in partitions.splitlines() if line.startswith("PartitionName=")]
    found = found or [Partition(name, types=each) for name, each in types.items()]
    return Site(
        version=settings.get("SLURM_VERSION", ""),
        cluster=cluster,
        max_array_size=_number(settings.get("MaxArraySize", "")),
        max_job_count=_number(settings.get("MaxJobCount", "")),
        job_requeue=settings.get("JobRequeue", "1") != "0",
        preempt_mode=settings.get("PreemptMode", ""),
        enforced=_words(settings.get("AccountingStorageEnforce", "")),
        has_accounting=has_accounting,
        partitions={each.name: each for each in found},
        associations=_associations(associations, cluster) if has_accounting and associations is not None else None,
    )


def _settings(config: str) -> dict[str, str]:
    """`Key = value` lines."""
    pairs = (line.partition("=") for line in config.splitlines())
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}


def _partition(line: str, types: Mapping[str, tuple[NodeType, ...]]) -> Partition:
    facts = dict(word.partition("=")[::2] for word in line.split())
    name = facts["PartitionName"]
    memory_per_cpu = facts.get("MaxMemPerCPU")
    return Partition(
        name,
        state=facts.get("State", "UP"),
        is_default=facts.get("Default") == "YES",
        max_time_min=limit_min(facts.get("MaxTime", "")),
        default_time_min=limit_min(facts.get("DefaultTime", "")),
        min_nodes=_number(facts.get("MinNodes", "")) or 0,
        max_nodes=_number(facts.get("MaxNodes", "")),
        max_cpus_per_node=_number(facts.get("MaxCPUsPerNode", "")),
        max_mem_mb_per_node=None if memory_per_cpu else _number(facts.get("MaxMemPerNode", "")),
        default_mem_mb_per_node=_number(facts.get("DefMemPerNode", "")),
        whole_nodes=facts.get("OverSubscribe", "").startswith("EXCLUSIVE"),
        preempt_mode=facts.get("PreemptMode", ""),
        qos=None if facts.get("QoS", "N/A") in ("N/A", "") else facts["QoS"],
        allow_accounts=_allowed(facts.get("AllowAccounts", "ALL")),
        deny_accounts=_words(facts.get("DenyAccounts", "")),
        allow_qos=_allowed(facts.get("AllowQos", "ALL")),
        deny_qos=_words(facts.get("DenyQos", "")),
        types=types.get(name, ()),
    )


def _node_types(out: str) -> dict[str, tuple[NodeType, ...]]:
    types: dict[str, tuple[NodeType, ...]] = {}
    for line in out.splitlines():
        fields = line.strip().split("|", 6)
        if len(fields) != 7:
            continue
        name, count, cpus, memory, gres, features, nodes = fields
        numbers = [_number(text) for text in (count, cpus, memory)]
        if None not in numbers:
            number, num_cpus, mem_mb = (each or 0 for each in numbers)
            each = NodeType(nodes, number, num_cpus, mem_mb, gres=read_gres(gres), features=_words(features))
            types[name] = (*types.get(name, ()), each)
    return types


def read_gres(text: str) -> dict[str, int]:
    """`gpu:a100:4(S:0-1),nvme:1` -> {gpu: 4, gpu:a100: 4, nvme: 1}; a name without a number is one."""
    found: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        words = [word for word in part.strip().split(":") if word != "no_consume"]
        if not words[0]:
            continue
        number = _count(words[-1]) if len(words) > 1 else 1
        names = words[: -1 if len(words) > 1 and number is not None else None]
        for depth in range(1, len(names) + 1):
            name = ":".join(names[:depth])
            found[name] = found.get(name, 0) + (1 if number is None else number)
    return found


def _count(text: str) -> int | None:
    """`4`, `2K` or `500M`; a type's name is none."""
    match = re.fullmatch(r"(\d+)([KMGT]?)", text, re.IGNORECASE)
    return int(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ") if match else None


def _associations(out: str, cluster: str) -> tuple[Association, ...]:
    found = []
    for line in out.splitlines():
        fields = line.strip().split("|")
        if len(fields) == 4 and fields[0] in (cluster, "") and fields[1]:
            qos = _words(fields[3])
            found.append(Association(fields[1], fields[2] or None, qos or None))
    return tuple(found)


def _allowed(text: str) -> frozenset[str] | None:
    return None if text in ("ALL", "", "(null)") else _words(text)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip() not in ("", "(null)", "none", "NONE"))


def _number(text: str) -> int | None:
    match = re.match(r"\d+", text.strip())
    return int(match[0]) if match else None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
