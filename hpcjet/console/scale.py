"""hpcjet scale: how many nodes a group of a run should have, while the run goes on."""

import argparse
import json
from typing import TYPE_CHECKING

from hpcjet.config.check import bad
from hpcjet.console.commands import ROOT
from hpcjet.console.completion import run_names
from hpcjet.errors import EXIT_OK, ConfigError
from hpcjet.rundir import RunDir, find_run

if TYPE_CHECKING:
    from hpcjet.plan import NodeGroup

AUTO = "auto"
KEYS = ("group", "nodes")


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add it to the parser."""
    text = "add nodes to a group of a run, or give some back, while the run goes on"
    command = commands.add_parser("scale", help=text, description=text.capitalize() + ".")
    known = "a path, the start or end of its name such as the short id, or latest"
    command.add_argument("run", metavar="RUN", help=known).completer = run_names  # type: ignore[attr-defined]
    how = "group=NAME and nodes=12, nodes=+8, nodes=-4, or nodes=auto for what the work needs"
    command.add_argument("wanted", nargs="+", metavar="KEY=VALUE", help=how)
    command.add_argument("--root", type=type(ROOT), default=ROOT, help="folder of runs (default: runs)")
    command.add_argument("--json", action="store_true", help="for scripts")
    command.set_defaults(func=_scale)


def _scale(arguments: argparse.Namespace) -> int:
    from hpcjet.elastic.login import LoginKeeper
    from hpcjet.elastic.wish import group_to_scale, lift_wish, wanted_nodes, wishes, write_wish
    from hpcjet.preflight import find_lab
    from hpcjet.slurm.allocations import alive_nodes
    from hpcjet.start import stored_config, stored_plan

    run = find_run(arguments.run, arguments.root)
    wanted = _values(arguments.wanted)
    plan = stored_plan(run)
    group = group_to_scale(plan, wanted["group"])
    _check_goes_on(run)
    find_lab(stored_config(run))
    now = alive_nodes(run).get(group.name, 0)
    before = wishes(run, plan).get(group.name)
    nodes: int | None = None
    if wanted["nodes"].strip().lower() == AUTO:
        lift_wish(run, group.name)
    else:
        nodes = wanted_nodes(wanted["nodes"], _base(wanted["nodes"], now, before.nodes if before else None))
        write_wish(run, group.name, nodes)
    helper = LoginKeeper(plan)
    from_here = helper.keep()
    helper.close()
    if arguments.json:
        print(json.dumps({"run": str(run.path), "group": group.name, "now": now, "wanted": nodes}))
    else:
        print("\n".join(_lines(run, group, now, nodes, from_here=from_here)))
    return EXIT_OK


def _values(words: list[str]) -> dict[str, str]:
    """Raises ConfigError for anything but one group and one number of nodes."""
    values: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or key not in KEYS:
            raise bad("argument", word, "group=NAME and nodes=12, +8, -4 or auto", "for example group=cpu nodes=+8")
        if key in values:
            raise bad(key, value, f"{key}={values[key]} was given as well", "give it once")
        values[key] = value
    for key in KEYS:
        if not values.get(key):
            raise ConfigError(f"{key} is not given: hpcjet scale RUN group=NAME nodes=12, +8, -4 or auto")
    return values


def _base(text: str, now: int, wish: int | None) -> int:
    """What a change counts from: the wish before, which may not be fulfilled yet; never take away from more than is."""
    if wish is None:
        return now
    return min(wish, now) if text.strip().startswith("-") else wish


def _check_goes_on(run: RunDir) -> None:
    from hpcjet.cluster.state import read_state
    from hpcjet.start import read_submission

    if read_submission(run) is None:
        raise ConfigError(f"{run} was never submitted: there is nothing to scale; hpcjet resume {run}")
    state = read_state(run.state)
    if state and state.final and not state.then:
        raise ConfigError(f"{run} has ended ({state.phase.value}): there is nothing to scale; hpcjet resume {run}")


def _lines(run: RunDir, group: "NodeGroup", now: int, nodes: int | None, *, from_here: bool) -> list[str]:
    there = f"group {group.name} has {now} {_nodes(now)}, with those in the queue"
    if nodes is None:
        return [f"{there}; from now on the work decides, {group.min_nodes} to {group.max_nodes}", _watch(run)]
    lines = [f"{there}; {nodes} wanted"]
    if nodes > group.max_nodes:
        lines.append(f"that is over cluster.groups.{group.name}.max={group.max_nodes}, and holds until nodes=auto")
    if nodes < group.min_nodes:
        lines.append(f"that is under cluster.groups.{group.name}.min={group.min_nodes}, and holds until nodes=auto")
    if nodes > now:
        who = "this command asked Slurm for what is missing" if from_here else "the run asks Slurm for what is missing"
        lines.append(f"{who}, as long as there is work for it")
    elif nodes < now:
        lines.append("the queue is emptied first; then nodes end what they are doing, and are given back")
        if group.nodes_per_job > 1:
            lines.append(f"whole jobs only (nodes_per_job={group.nodes_per_job}): up to that many fewer are given back")
    return [*lines, _watch(run)]


def _nodes(number: int) -> str:
    return "node" if number == 1 else "nodes"


def _watch(run: RunDir) -> str:
    return f"watch it with: hpcjet status {run}"
