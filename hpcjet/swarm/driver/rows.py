"""One row for each update: what learners say of it, beside what worlds and pools did until then."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcjet.swarm.row import Row
from hpcjet.swarm.vector import Episode


def of_episodes(episodes: Sequence[Episode]) -> Row:
    """`return` is the mean per agent, then over episodes, as are length and the worlds' own metrics."""
    if not episodes:
        return {"episodes": 0.0}
    row: Row = {
        "episodes": float(len(episodes)),
        "return": mean(sum(each.returns.values()) / max(1, sum(each.agents.values())) for each in episodes),
        "length": mean(each.steps for each in episodes),
    }
    names = dict.fromkeys(name for each in episodes for name in each.metrics)
    for name in names:
        row[f"metric.{name}"] = mean(each.metrics[name] for each in episodes if name in each.metrics)
    return row


def of_pools(statuses: Iterable[Mapping[str, Any]]) -> Row:
    """`pool_fill` is that of the fullest."""
    there = list(statuses)
    if not there:
        return {}
    return {
        "pool_fragments": float(sum(each["fragments"] for each in there)),
        "pool_bytes": float(sum(each["nbytes"] for each in there)),
        "pool_fill": max(float(each["fill"]) for each in there),
    }


def of_evaluation(episodes: Sequence[Episode]) -> Row:
    """Greedy episodes, under names of their own."""
    found = of_episodes(episodes)
    return {f"evaluation.{key.removeprefix('metric.')}": value for key, value in found.items()}


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
