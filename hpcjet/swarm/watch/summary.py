"""The figures of a training, for scripts and for the head of its report. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from hpcjet.swarm.row import METRIC, Row, number, read_lags
from hpcjet.swarm.watch.told import Loss, SeatFacts
from hpcjet.swarm.watch.trajectory import Trajectory

LAST_ROWS = 10
"""At most so many, and a tenth of all, are the end of a training: one update alone says little."""
EVALUATION = "evaluation."


@dataclass(frozen=True)
class Course:
    """One quantity over the training."""

    first: float
    last: float
    """Mean of the last tenth of the updates that tell it, at most ten."""
    best: float
    """The largest."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of a training; what was not told is None or empty."""

    updates: int
    agent_steps: int
    seconds: float
    agent_steps_per_s: float | None
    """Over the whole training; None without both."""
    returns: Course | None
    """Mean per agent, of the episodes in training."""
    metrics: dict[str, Course]
    """What the worlds say of their episodes in training."""
    evaluation: dict[str, float]
    """The last one, without chance in the actions."""
    lags: dict[int, int]
    """Samples by how many versions old their policy was."""
    learner_share: float | None
    """Of the time, spent on updates; mean over the updates."""
    nodes: list[str]
    seats: int
    losses: int
    lost_fragments: int
    longest_pause_s: float | None
    """From a loss to the first new sample."""
    faults: int
    """Worlds that failed."""
    fault: str
    """One of them: world, agent, step and what was wrong."""
    trajectory: dict[str, float]
    """Of the greedy episode that is shown: agents, steps, return, held at its end."""

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        course = facts.pop("returns")
        return {**facts, "return": course, "lags": {str(lag): n for lag, n in self.lags.items()}}


def summarise(
    rows: Sequence[Row], losses: Sequence[Loss], seats: Sequence[SeatFacts], trajectory: Trajectory | None
) -> Summary:
    steps, seconds = _last(rows, "agent_steps") or 0.0, _last(rows, "seconds") or 0.0
    pauses = [each.seconds_to_first_new_sample for each in losses if each.seconds_to_first_new_sample is not None]
    shares = _values(rows, "learner_share")
    return Summary(
        updates=int(_last(rows, "version") or 0),
        agent_steps=int(steps),
        seconds=seconds,
        agent_steps_per_s=steps / seconds if steps and seconds else None,
        returns=_course(rows, "return"),
        metrics={key.removeprefix(METRIC): course for key in keys(rows, METRIC) if (course := _course(rows, key))},
        evaluation={
            key.removeprefix(EVALUATION): value
            for key in keys(rows, EVALUATION)
            if (value := _last(rows, key)) is not None
        },
        lags=dict(sorted(all_lags(rows).items())),
        learner_share=sum(shares) / len(shares) if shares else None,
        nodes=sorted({seat.node for seat in seats}),
        seats=len(seats),
        losses=len(losses),
        lost_fragments=int(max([*_values(rows, "lost_fragments"), sum(each.lost_fragments for each in losses)])),
        longest_pause_s=max(pauses, default=None),
        faults=sum(seat.faults for seat in seats),
        fault=next((seat.fault for seat in seats if seat.fault), ""),
        trajectory={} if trajectory is None else _greedy(trajectory),
    )


def keys(rows: Iterable[Row], prefix: str) -> list[str]:
    """The keys that begin so, in the order in which they came."""
    return list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))


def all_lags(rows: Iterable[Row]) -> Counter[int]:
    """Of all updates together."""
    found: Counter[int] = Counter()
    for row in rows:
        with suppress(ValueError):
            found.update(read_lags(str(row.get("lags", ""))))
    return found


def _greedy(trajectory: Trajectory) -> dict[str, float]:
    return {
        "agents": trajectory.agents,
        "steps": trajectory.steps,
        "version": trajectory.version,
        "return": trajectory.returns,
        "held": float(trajectory.held[-1].mean()),
    }


def _course(rows: Sequence[Row], key: str) -> Course | None:
    values = _values(rows, key)
    if not values:
        return None
    end = values[-max(1, min(LAST_ROWS, len(values) // 10)) :]
    return Course(values[0], sum(end) / len(end), max(values))


def _last(rows: Sequence[Row], key: str) -> float | None:
    return next(iter(_values(reversed(rows), key)), None)


def _values(rows: Iterable[Row], key: str) -> list[float]:
    found = (number(row, key) for row in rows)
    return [value for value in found if value is not None and math.isfinite(value)]
