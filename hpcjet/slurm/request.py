"""What a cluster would never start: the request against what the site says. Pure.

What is not known is not refused: the last word is Slurm's own. A job with a list of partitions is fine if one of them
takes it, and a partition if one of its node types fits.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.group import INHERITED, Form
from hpcjet.errors import ConfigError
from hpcjet.plan import Defaults
from hpcjet.slurm.limits import NodeType, Partition, Site, read_gres
from hpcjet.slurm.nodelist import expand
from hpcjet.slurm.times import duration

OTHER_CLUSTERS = {"clusters", "cluster", "M", "reservation"}
"""sbatch options with which this cluster's plain limits say nothing."""


def problems(config: SlurmConfig, site: Site, *, array: int | None = None) -> list[str]:
    """Why the request could never start, each with the nearest value that works; `array` is the number of elements.

    Of a run with groups, what is wrong with the request of each of them, in the keys of the group.
    """
    if not config.groups or config.form is Form.job:
        return _problems(config.components[0], site, array=array)
    found = [
        _of_group(name, problem) for name, each in config.requests.items() for problem in _problems(each, site)
    ]  # fmt: skip
    return list(dict.fromkeys(found))


def _of_group(name: str, problem: str) -> str:
    """The words about a request in the keys of its group."""
    keys = "|".join(["nodes", *INHERITED])
    return re.sub(rf"\bcluster\.({keys})\b", rf"cluster.groups.{name}.\1", problem)


def _problems(config: SlurmConfig, site: Site, *, array: int | None = None) -> list[str]:
    if OTHER_CLUSTERS & set(config.sbatch):
        return []
    found = _array(array, site) + _nodes_named(config, site) + _account(config, site)
    if "partition" in config.sbatch:
        return found
    missing = [name for name in _partitions(config) if site.partitions and name not in site.partitions]
    if missing:
        return [*(_no_such_partition(name, site) for name in missing), *found]
    verdicts: list[list[str]] = [_against(config, partition, site) for partition in chosen(config, site)]
    if verdicts and all(verdicts):
        return found + sorted(verdicts, key=len)[0]
    return found


def check_request(config: SlurmConfig, site: Site, *, array: int | None = None) -> None:
    """Raises ConfigError that names all problems."""
    if found := problems(config, site, array=array):
        raise ConfigError("\n".join(found))


def chosen(config: SlurmConfig, site: Site) -> list[Partition]:
    """The partitions that the job may run in, as far as they are known."""
    if names := _partitions(config):
        return [site.partitions[name] for name in names if name in site.partitions]
    return [site.default_partition] if site.default_partition else []


def defaults(config: SlurmConfig, site: Site) -> dict[str, Defaults]:
    """Group -> what the site fills in where its request is silent."""
    return {name: _defaults(each, site) for name, each in config.requests.items()}


def _defaults(config: SlurmConfig, site: Site) -> Defaults:
    """What the site fills in where the config is silent: for the cost. Of several partitions, the most."""
    partitions = chosen(config, site)
    times = [partition.time_if_unset_min for partition in partitions]
    whole = config.exclusive or (bool(partitions) and all(partition.whole_nodes for partition in partitions))
    types = [each for partition in partitions for each in partition.types if not _unfit(config, each, partition)]
    return Defaults(
        time_min=max((time for time in times if time is not None), default=None) if all(times) else None,
        cpus_per_node=max((each.cpus for each in types), default=None) if whole else config.cpus_per_node or 1,
        gpus_per_node=max((each.gres.get("gpu", 0) for each in types), default=None) if whole else None,
        whole_nodes=whole,
    )


def _against(config: SlurmConfig, partition: Partition, site: Site) -> list[str]:
    """The problems with one partition."""
    checks: list[Callable[[], list[str]]] = [
        lambda: _state(partition),
        lambda: _time(config, partition, site),
        lambda: _types(config, partition),
        lambda: _who(config, partition),
    ]
    return [problem for check in checks for problem in check()]


def _array(size: int | None, site: Site) -> list[str]:
    found = []
    if size and site.max_array_size and size > site.max_array_size:
        found.append(
            f"an array of {size} elements is over the cluster's MaxArraySize: at most {site.max_array_size}; "
            "submit several arrays"
        )
    if size and site.max_job_count and size >= site.max_job_count:
        found.append(
            f"{size} jobs are more than the cluster holds at once (MaxJobCount={site.max_job_count}); submit fewer"
        )
    return found


def _no_such_partition(name: str, site: Site) -> str:
    near = difflib.get_close_matches(name, site.partitions, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return (
        f"cluster.partition={name} does not exist on this cluster{hint}: "
        f"choose one of {', '.join(sorted(site.partitions))}"
    )


def _nodes_named(config: SlurmConfig, site: Site) -> list[str]:
    """Nodes that are asked for or excluded, and that are gone: Slurm refuses the job for either."""
    if not (config.nodelist or config.exclude):
        return []
    types = [each for partition in site.partitions.values() for each in partition.types]
    known = {name for nodes in {each.nodes for each in types} for name in expand(nodes)}
    found = []
    for key, text in (("nodelist", config.nodelist), ("exclude", config.exclude)):
        if not text or not known or "/" in text:
            continue
        names = expand(text)
        gone = [name for name in names if name not in known]
        if gone:
            left = ",".join(name for name in names if name in known)
            found.append(
                f"cluster.{key}={text}: {_listed(gone)} {'is no node' if len(gone) == 1 else 'are no nodes'} of this "
                f"cluster; set cluster.{key}={left or 'null'}"
            )
    return found


def _account(config: SlurmConfig, site: Site) -> list[str]:
    if not site.associations or not site.enforced & {"associations", "limits", "qos", "all"}:
        return []
    accounts = sorted({each.account for each in site.associations})
    if config.account and "account" not in config.sbatch and config.account not in accounts:
        near = difflib.get_close_matches(config.account, accounts, n=1) or accounts[:1]
        return [
            f"cluster.account={config.account} is not one of your accounts here ({', '.join(accounts)}); "
            f"set cluster.account={near[0]}"
        ]
    mine = [each for each in site.associations if config.account in (None, each.account)]
    if not config.qos or "qos" in config.sbatch or not site.enforced & {"qos", "all"}:
        return []
    if any(each.qos is None for each in mine):
        return []
    names = sorted({name for each in mine for name in each.qos or () if not name.startswith(("+", "-"))})
    if config.qos in names:
        return []
    of = f" of account {config.account}" if config.account else ""
    return [f"cluster.qos={config.qos} is not one of your QOS{of} ({', '.join(names)}); set cluster.qos to one of them"]


def _state(partition: Partition) -> list[str]:
    if partition.state in ("DOWN", "DRAIN", "INACTIVE"):
        return [
            f"partition {partition.name!r} is {partition.state}: jobs do not start there; set cluster.partition to "
            "another one or wait (sinfo -s)"
        ]
    return []


def _time(config: SlurmConfig, partition: Partition, site: Site) -> list[str]:
    if "time" in config.sbatch:
        return []
    most = partition.max_time_min
    if config.time_min is None:
        if partition.time_if_unset_min is None:
            return [
                f"cluster.time_min is not set, and partition {partition.name!r} has neither a default nor a limit: "
                "the job would ask for unlimited time; set cluster.time_min, such as 60"
            ]
        return []
    if most is None or config.time_min <= most:
        return []
    longer = sorted(
        each.name
        for each in site.partitions.values()
        if each.state == "UP" and (each.max_time_min is None or each.max_time_min >= config.time_min)
    )
    other = f" or set cluster.partition={longer[0]}" if longer else ""
    return [
        f"cluster.time_min={config.time_min} is over the limit of partition {partition.name!r} "
        f"(1 to {most:.0f}, {duration(most)}); set cluster.time_min={most:.0f}{other}"
    ]


def _types(config: SlurmConfig, partition: Partition) -> list[str]:
    """Nodes, CPUs, memory and generic resources: one by one for the message, then all of them on one node."""
    if not partition.types or {"nodes", "mem", "mem-per-cpu", "cpus-per-task", "gpus", "gpus-per-node"} & set(
        config.sbatch
    ):
        return []
    found = _too_much(config, partition)
    if found:
        return found
    fits = [each for each in partition.types if not _unfit(config, each, partition)]
    if not fits:
        return [
            f"partition {partition.name!r} has no node with all of {_asked(config)}; it has "
            + "; ".join(sorted({_described(each) for each in partition.types}))
            + "; ask for less of one of them"
        ]
    return _node_count(config, partition, fits)


def _node_count(config: SlurmConfig, partition: Partition, fits: list[NodeType]) -> list[str]:
    excluded = set(expand(config.exclude)) if config.exclude and "/" not in config.exclude else set()
    there = sum(len(set(expand(each.nodes)) - excluded) if excluded else each.count for each in fits)
    most = there if partition.max_nodes is None else min(there, partition.max_nodes)
    if config.nodes > most:
        why = "allows" if most < there else "has that fit"
        return [f"cluster.nodes={config.nodes} is more than partition {partition.name!r} {why} ({most}); "
                f"set cluster.nodes={most}"]  # fmt: skip
    if config.nodes < partition.min_nodes:
        return [
            f"cluster.nodes={config.nodes} is less than partition {partition.name!r} takes ({partition.min_nodes}); "
            f"set cluster.nodes={partition.min_nodes}"
        ]
    return []


def _too_much(config: SlurmConfig, partition: Partition) -> list[str]:
    """What no node of the partition has, each by itself."""
    types, name, found = partition.types, partition.name, []
    cpus = _most((each.cpus for each in types), partition.max_cpus_per_node)
    if config.cpus_per_node and config.cpus_per_node > cpus:
        found.append(
            f"cluster.cpus_per_node={config.cpus_per_node} is more than a node of partition {name!r} gives (1 to "
            f"{cpus}); set cluster.cpus_per_node={cpus}"
        )
    memory = _most((each.mem_mb for each in types), partition.max_mem_mb_per_node)
    if config.mem_gb and int(config.mem_gb * 1024) > memory:
        fits = math.floor(memory / 1024 * 10) / 10
        found.append(
            f"cluster.mem_gb={config.mem_gb:g} is more than a node of partition {name!r} gives ({fits:g} GiB); set "
            f"cluster.mem_gb={fits:g}"
        )
    if "gres" not in config.sbatch:
        found += [problem for resource, number in wanted_gres(config).items()
                  if (problem := _gres(resource, number, config, partition))]  # fmt: skip
    if config.constraint and (features := plain_features(config.constraint)):
        there = {feature for each in types for feature in each.features}
        found += [
            f"cluster.constraint={config.constraint}: no node of partition {name!r} has the feature {feature!r}; "
            f"choose from {', '.join(sorted(there)) or 'none'}"
            for feature in features
            if feature not in there
        ]
    return found


def _gres(resource: str, number: int, config: SlurmConfig, partition: Partition) -> str | None:
    most = max((each.gres.get(resource, 0) for each in partition.types), default=0)
    if number <= most:
        return None
    key = "gpus_per_node" if config.gpus_per_node else "gres"
    given = config.gpus_per_node or config.gres
    there = sorted({f"{name}:{count}" for each in partition.types for name, count in each.gres.items()})
    works = (
        (str(most) if key == "gpus_per_node" else f"{resource}:{most}") if most else _near(resource, number, partition)
    )
    return (
        f"cluster.{key}={given}: a node of partition {partition.name!r} has at most {most} of {resource} (there is "
        f"{', '.join(there) or 'none of any kind'}); set cluster.{key}={works}"
    )


def _near(resource: str, number: int, partition: Partition) -> str:
    """The same resource of another type, or of any."""
    family = resource.partition(":")[0]
    counts = {name: count for each in partition.types for name, count in each.gres.items() if name.startswith(family)}
    best = difflib.get_close_matches(resource, counts, n=1, cutoff=0)
    return f"{best[0]}:{min(number, counts[best[0]])}" if best else "null"


def _unfit(config: SlurmConfig, each: NodeType, partition: Partition) -> bool:
    """Whether a node of this type cannot hold the job's part of it."""
    features = plain_features(config.constraint) if config.constraint else None
    return (
        (config.cpus_per_node or 0) > _most([each.cpus], partition.max_cpus_per_node)
        or int((config.mem_gb or 0) * 1024) > _most([each.mem_mb], partition.max_mem_mb_per_node)
        or any(number > each.gres.get(name, 0) for name, number in wanted_gres(config).items())
        or bool(features and not set(features) <= each.features)
    )


def _who(config: SlurmConfig, partition: Partition) -> list[str]:
    """Accounts and QOS that the partition names."""
    found = []
    for key, given, allowed, denied in (
        ("account", config.account, partition.allow_accounts, partition.deny_accounts),
        ("qos", config.qos, partition.allow_qos, partition.deny_qos),
    ):
        if given and key not in config.sbatch and (given in denied or (allowed is not None and given not in allowed)):
            may = f"only {', '.join(sorted(allowed))}" if allowed else f"all but {', '.join(sorted(denied))}"
            found.append(
                f"cluster.{key}={given} may not use partition {partition.name!r} ({may}); choose another "
                f"cluster.{key} or cluster.partition"
            )
    return found


def wanted_gres(config: SlurmConfig) -> dict[str, int]:
    """Generic resources per node: the most exact name of each, such as {gpu:a100: 4}."""
    if config.gpus_per_node:
        return {"gpu": config.gpus_per_node}
    listed = [part for part in (config.gres or "").split(",") if part and part != "none"]
    wanted: dict[str, int] = {}
    for part in listed:
        name, number = list(read_gres(part).items())[-1]
        wanted[name] = wanted.get(name, 0) + number
    return wanted


def plain_features(constraint: str) -> list[str] | None:
    """The features of `ib&a100`; None for the forms with choices and counts, which Slurm itself judges."""
    return constraint.split("&") if re.fullmatch(r"[\w.-]+(?:&[\w.-]+)*", constraint) else None


def _partitions(config: SlurmConfig) -> list[str]:
    return [name for name in (config.partition or "").split(",") if name]


def _most(numbers: Iterable[int], limit: int | None) -> int:
    most = max(numbers, default=0)
    return most if limit is None else min(most, limit)


def _asked(config: SlurmConfig) -> str:
    parts = [f"cluster.cpus_per_node={config.cpus_per_node}"] if config.cpus_per_node else []
    parts += [f"cluster.mem_gb={config.mem_gb:g}"] if config.mem_gb else []
    parts += [f"cluster.gpus_per_node={config.gpus_per_node}"] if config.gpus_per_node else []
    parts += [f"cluster.gres={config.gres}"] if config.gres else []
    return ", ".join(parts + ([f"cluster.constraint={config.constraint}"] if config.constraint else []))


def _described(each: NodeType) -> str:
    gres = [f"{name}:{number}" for name, number in each.gres.items() if not _has_a_longer_name(name, each)]
    return ", ".join([f"{each.cpus} CPUs", f"{each.mem_mb / 1024:.1f} GiB", *gres])


def _has_a_longer_name(name: str, each: NodeType) -> bool:
    return any(fnmatchcase(other, f"{name}:*") for other in each.gres)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
