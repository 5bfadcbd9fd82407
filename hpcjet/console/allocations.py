"""What is shown of a run's worker allocations: how many there are, and a line for each that lives."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpcjet.rundir import RunDir
from hpcjet.slurm.allocations import Allocation, allocation_states, allocations
from hpcjet.slurm.counts import WORDS, counted
from hpcjet.slurm.query import JobState, Stage
from hpcjet.slurm.states import explain

SOON_S = 60.0
"""A start that is nearer is no news."""


@dataclass(frozen=True)
class Listed:
    """A worker allocation with Slurm's word on it."""

    allocation: Allocation
    state: JobState


def listed(run: RunDir) -> list[Listed]:
    """All of a run, oldest first; Slurm is asked once, and only about those that may live."""
    every = allocations(run)
    states = allocation_states(run, every)
    return [Listed(each, states[each.name]) for each in every]


def as_json(found: Iterable[Listed]) -> list[dict[str, Any]]:
    """For scripts."""
    return [
        {
            **{key: value for key, value in asdict(each.allocation).items() if key not in ("uid", "token")},
            "stage": each.state.stage.value,
            "state": each.state.state,
            "reason": each.state.reason,
            "on": each.state.nodes,
            "expected_start": each.state.expected_start,
        }
        for each in found
    ]


def lines(found: list[Listed]) -> list[str]:
    """The count, and a line for each that lives."""
    if not found:
        return []
    alive = [each for each in found if each.state.stage is not Stage.ended]
    over = f", {len(found) - len(alive)} ended" if len(alive) < len(found) else ""
    shown = [f"worker allocations: {counted(each.state for each in alive) or 'none now'}{over}"]
    for each in alive:
        allocation = each.allocation
        words = [f"{allocation.nodes} node{'s' if allocation.nodes > 1 else ''}"]
        words.append(f"Slurm job {allocation.job_id}" if allocation.job_id else "being submitted")
        shown.append(f"  {allocation.name}: {', '.join([*words, *_state(each.state)])}")
    return shown


def labels(run: RunDir) -> Mapping[str, str]:
    """Job -> name of the worker allocation that it is."""
    return {each.job_id: each.name for each in allocations(run) if each.job_id}


def _state(state: JobState) -> list[str]:
    words = [WORDS.get(state.stage, state.state)]
    if state.stage is Stage.running and state.nodes:
        words[0] += f" on {state.nodes}"
    if state.stage is Stage.pending and state.reason not in ("", "None"):
        words.append(explain(state.reason))
    if state.stage is Stage.pending and state.expected_start and state.expected_start > time.time() + SOON_S:
        words.append(f"expected to start {time.strftime('%a %H:%M', time.localtime(state.expected_start))}")
    return words
