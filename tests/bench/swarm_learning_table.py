"""The table of tests/bench/swarm_learning.py, from its lines of JSON."""

from collections.abc import Iterable, Mapping
from typing import Any

GOALS = ("task", "goal", "seed", "agent-steps to the goal", "CPU s", "mean at the end (agent-steps)")
HELD = ("seed", "agents", "held, greedy", "held, sampled", "collisions of an agent, greedy")


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Markdown: when goals were reached, and what the policy of the formation holds."""
    rows = list(rows)
    goals, held = [_goal(row) for row in rows], [line for row in rows for line in _held(row)]
    lines = [*_head(GOALS), *goals] + (["", *_head(HELD), *held] if held else [])
    return "\n".join(lines) + "\n"


def _head(names: tuple[str, ...]) -> list[str]:
    return [_joined(names), "|" + "---|" * len(names)]


def _joined(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _goal(row: Mapping[str, Any]) -> str:
    reached, seconds = "not reached", ""
    if row["reached"] is not None:
        reached, seconds = f"{row['reached']:,}", f"{row['reached_cpu_s']:.0f}"
    end = f"{row['last']:.3g} ({row['agent_steps']:,})"
    return _joined((row["task"], f"{row['goal']:g}", row["seed"], reached, seconds, end))


def _held(row: Mapping[str, Any]) -> Iterable[str]:
    for agents in ("100", "1000"):
        if f"{agents}_greedy_held" in row:
            shares = (f"{row[f'{agents}_{way}_held']:.1%}" for way in ("greedy", "sampled"))
            yield _joined((row["seed"], agents, *shares, f"{row[f'{agents}_greedy_collisions']:.2f}"))
