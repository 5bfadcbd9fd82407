"""One line that says how far a training is."""

from collections.abc import Mapping
from typing import Any

from hpcjet.swarm.row import METRIC, number

WIDTH = 78
"""Columns, two less than a terminal's, for what turns in front of the line."""
SHARES = ("held",)
"""Metrics of worlds that are a share, shown in percent."""


def progress_line(data: Mapping[str, Any], *, width: int = WIDTH) -> str:
    """Of progress.json; the parts that come last are left out where all do not fit."""
    row: Mapping[str, float | str] = data.get("row") or {}
    note = str(data.get("note") or "")
    if not row:
        return note or "training begins"
    head = _stand(row, data.get("goals") or {})
    parts = [part for part in (note, *_parts(row, _left_s(data, row))) if part]
    line = head
    for part in parts:
        if len(line) + 3 + len(part) <= width:
            line += f" · {part}"
    return line


def _stand(row: Mapping[str, float | str], goals: Mapping[str, Any]) -> str:
    version, steps = number(row, "version") or 0.0, number(row, "agent_steps") or 0.0
    if updates := goals.get("updates"):
        return f"update {version:,.0f}/{updates:,.0f}"
    of = f", {100 * min(steps / goals['agent_steps'], 1.0):.0f} % of steps" if goals.get("agent_steps") else ""
    return f"update {version:,.0f}{of}"


def _parts(row: Mapping[str, float | str], left_s: float | None) -> list[str]:
    """The most telling first."""
    got = {key: number(row, key) for key in row}
    rate, reward, lag = got.get("agent_steps_per_s"), got.get("return"), got.get("lag_mean")
    shares = {name: got[METRIC + name] for name in SHARES if got.get(METRIC + name) is not None}
    return [
        "" if rate is None else f"{rate:,.0f} agent-steps/s",
        "" if reward is None else f"return {reward:.3g}",
        *(f"{name} {_percent(share)}" for name, share in shares.items()),
        "" if left_s is None else f"{_about(left_s)} left",
        "" if lag is None else f"lag {lag:.1f}",
        "" if got.get("pool_fill") is None else f"pool {_percent(got['pool_fill'])}",
        "" if got.get("learner_share") is None else f"learner {_percent(got['learner_share'])}",
        f"{got['hosts']:.0f} hosts" if got.get("hosts") else "",
    ]


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0.0):.0f} %"


def _left_s(data: Mapping[str, Any], row: Mapping[str, float | str]) -> float | None:
    """By the rate since this start, for the goal that comes first."""
    first, elapsed = (
        data.get("first"),
        float(data["updated"]) - float((data.get("first") or {}).get("t", data["updated"])),
    )
    found = []
    for goal, key in (("updates", "version"), ("agent_steps", "agent_steps")):
        wanted, here = (data.get("goals") or {}).get(goal), number(row, key)
        if wanted and here is not None and first and elapsed > 0 and here > first[key]:
            found.append(max(0.0, wanted - here) * elapsed / (here - first[key]))
    return min(found, default=None)


def _about(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
