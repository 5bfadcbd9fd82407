"""What a person wants: scale/<group>.json, written by `hpcjet scale`, read by the keeper."""

import json
import os
import re
import time
from dataclasses import asdict, dataclass

from hpcjet.atomic import atomic_write
from hpcjet.config.check import bad
from hpcjet.plan import NodeGroup, Plan
from hpcjet.rundir import RunDir, path_name

MOST = 100_000
"""More nodes than any cluster has."""


@dataclass(frozen=True)
class Wish:
    """How many nodes a group should have; `at` in Unix seconds."""

    nodes: int
    at: float


def write_wish(run: RunDir, group: str, nodes: int) -> Wish:
    """Leave a wish in place of any before it."""
    wish = Wish(nodes, round(time.time(), 3))
    run.scale.mkdir(mode=0o700, exist_ok=True)
    file = run.scale / f"{path_name(group)}.json"
    atomic_write(file, json.dumps(asdict(wish)))
    if os.geteuid() == 0:  # what root wants, the keeper must be able to read: it is the run's owner
        owner = run.path.stat()
        for path in (run.scale, file):
            os.chown(path, owner.st_uid, owner.st_gid)
    return wish


def lift_wish(run: RunDir, group: str) -> None:
    """From now on the policy decides again."""
    (run.scale / f"{path_name(group)}.json").unlink(missing_ok=True)


def wishes(run: RunDir, plan: Plan) -> dict[str, Wish]:
    """By group. By listing the folder: a name that was looked for in vain is remembered by NFS."""
    try:
        there = {path.name for path in run.scale.iterdir()}
    except OSError:
        return {}
    found = {}
    for group in plan.worker_groups:
        name = f"{path_name(group.name)}.json"
        if name in there and (wish := _read(run, name)) is not None:
            found[group.name] = wish
    return found


def _read(run: RunDir, name: str) -> Wish | None:
    try:
        data = json.loads((run.scale / name).read_text())
        wish = Wish(int(data["nodes"]), float(data["at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return wish if 0 <= wish.nodes <= MOST else None


def group_to_scale(plan: Plan, name: str) -> NodeGroup:
    """The group of that name. Raises ConfigError if there is none, or if its nodes cannot change."""
    there = [group.name for group in plan.worker_groups]
    if name in there:
        return plan.group(name)
    if not there:
        raise bad(
            "group", name, "this run has no groups with jobs of their own, so its nodes do not change",
            "launch with cluster.form=jobs and cluster.groups",
        )  # fmt: skip
    if name in (group.name for group in plan.groups):
        raise bad("group", name, "the nodes of the head's group do not change", f"choose one of {', '.join(there)}")
    raise bad("group", name, f"the groups that can be scaled are {', '.join(there)}", "name one of them")


def wanted_nodes(text: str, now: int) -> int:
    """`12`, or `+8` and `-4` from `now` nodes; never fewer than none. Raises ConfigError."""
    allowed = "a number of nodes such as 12, or a change such as +8 or -4"
    match = re.fullmatch(r"([+-]?)(\d{1,7})", text.strip(), re.ASCII)
    if not match:
        raise bad("nodes", text, allowed, "for example nodes=+2")
    number = int(match[2])
    nodes = max(now + number if match[1] == "+" else now - number, 0) if match[1] else number
    if nodes > MOST:
        raise bad("nodes", text, f"{allowed}, up to {MOST} nodes", "lower it")
    return nodes
