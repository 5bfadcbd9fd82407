"""The ledger of a run from its files."""

import json
from pathlib import Path
from typing import Any

from hpcjet.cluster.events import Entry, Event, read_events
from hpcjet.config.exp import SweConfig
from hpcjet.ledger.account import Ledger, Size, Work, account
from hpcjet.ledger.spans import spans
from hpcjet.plan import Plan, read_plan
from hpcjet.rundir import RunDir
from hpcjet.serve.nodes import serving_groups

ON_HEAD_ALLOCATION = ("mpi", "torchrun", "doctor")
"""Experiments that work on the nodes of the head allocation only."""


def read_ledger(run: RunDir, *, now: float | None = None) -> Ledger:
    """`now`, in Unix seconds, of a run that goes on; without it what has no end ended with its last sign of life.

    Raises ConfigError if its plan is of another version.
    """
    plan = read_plan(run.plan.read_text())
    entries, usage = read_events(run.events), _usage(run.usage)
    is_over = now is None and not _goes_on(entries)
    at = now if now is not None else _last_sign(run)
    work = Work(usage=usage, by_attempts=_by_attempts(plan), whole=_whole(plan), is_over=is_over)
    return account(spans(entries, plan, now=at), work, sizes=_sizes(run, plan))


def _goes_on(entries: list[Entry]) -> bool:
    return bool(entries) and entries[-1].event not in (Event.released, Event.requeued)


def _by_attempts(plan: Plan) -> bool:
    return isinstance(plan.typed_config().exp, SweConfig)


def _whole(plan: Plan) -> frozenset[str]:
    """The groups whose nodes are at work as long as the workload runs."""
    if _by_attempts(plan):
        return serving_groups(plan)
    groups = plan.head_groups if plan.exp in ON_HEAD_ALLOCATION else plan.groups
    wanted = plan.typed_config().exp.group
    return serving_groups(plan) | {group.name for group in groups if wanted in (None, group.name)}


def _sizes(run: RunDir, plan: Plan) -> dict[str, Size]:
    """As planned, or as the nodes told where the plan leaves it to the site."""
    told = {str(each.get("group")): each for each in _list(run.members)}
    return {
        group.name: Size(
            cpus=group.cpus or told.get(group.name, {}).get("cpus") or None,
            gpus=group.gpus if group.gpus is not None else told.get(group.name, {}).get("gpus"),
        )
        for group in plan.groups
    }


def _usage(file: Path) -> dict[str, dict[str, Any]]:
    found = _json(file)
    return (
        {str(member): use for member, use in found.items() if isinstance(use, dict)} if isinstance(found, dict) else {}
    )


def _list(file: Path) -> list[dict[str, Any]]:
    found = _json(file)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _last_sign(run: RunDir) -> float:
    """When one of the files that are written over and over was written last; 0 if there is none."""
    files = (run.events, run.usage, run.progress, run.backlog, run.engine)
    times = []
    for file in files:
        try:
            times.append(file.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
