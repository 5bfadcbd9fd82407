"""The partition that the job goes to: its time limits and sizes."""

import re

from hpcjet.config.cluster import SlurmConfig
from hpcjet.doctor.asked import ask
from hpcjet.doctor.line import Facts, Line, ok, warn

SUBJECT = "partition"


def look() -> Facts:
    answer, complaint = ask("scontrol", "show", "partition", "--oneliner")
    return {"complaint": complaint, "partitions": read_partitions(answer)}


def read_partitions(answer: str) -> list[dict[str, str]]:
    """One for each line of words `Key=value`."""
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in answer.splitlines() if "PartitionName=" in line]


def assess(facts: Facts, config: SlurmConfig, *, time_given: bool) -> list[Line]:
    """`time_given`: whether the person set cluster.time_min, or would get the partition's default in a run."""
    known = {each["PartitionName"]: each for each in facts["partitions"]}
    wanted = config.partition.split(",") if config.partition else [
        name for name, each in known.items() if each.get("Default") == "YES"
    ]  # fmt: skip
    if not known:
        return [warn(SUBJECT, f"not told: {facts['complaint'] or 'no answer'}", "sinfo -s shows what there is")]
    if not wanted:
        return [warn(SUBJECT, "there is no default", f"choose one: cluster.partition={'|'.join(known)}")]
    lines = [line for name in wanted if name in known for line in _one(known[name], time_given)]
    others = [name for name in known if name not in wanted]
    if others:
        lines.append(ok("others", f"{', '.join(others[:8])} (cluster.partition=NAME)"))
    return lines


def _one(found: dict[str, str], time_given: bool) -> list[Line]:
    name, most, default = found["PartitionName"], found.get("MaxTime", ""), found.get("DefaultTime", "")
    nodes = found.get("TotalNodes", "?")
    if (state := found.get("State", "UP")) != "UP":
        return [warn(SUBJECT, f"{name} is {state}: jobs wait", "choose another: cluster.partition=NAME")]
    lines = [ok(SUBJECT, f"{name}: {nodes} nodes, time limit {_told(most)}")]
    if found.get("MaxNodes", "UNLIMITED") not in ("UNLIMITED", nodes):
        lines.append(ok("job size", f"{found['MaxNodes']} nodes at most in {name}"))
    if time_given:
        return lines
    if default in ("NONE", "", "UNLIMITED"):
        what = f"{name} has no default: without cluster.time_min a job asks for {_told(most)}"
        lines.append(warn("time limit", what, "set cluster.time_min in runs: shorter jobs start sooner"))
    else:
        what = f"{default} by default in {name}; cluster.time_min=MINUTES sets it"
        lines.append(ok("time limit", what))
    return lines


def _told(limit: str) -> str:
    return "none" if limit in ("UNLIMITED", "NONE", "") else limit
