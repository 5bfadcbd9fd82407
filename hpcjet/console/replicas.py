"""The table of an engine's replicas in hpcjet status."""

import contextlib
import json
import time
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from hpcjet.rundir import RunDir

FRESH_S = 30.0
"""What is older was left by a pool that ended."""


def read_replicas(run: RunDir) -> dict[str, Any] | None:
    """What the pool of a run last wrote; None without a pool."""
    with contextlib.suppress(OSError, ValueError):
        data = json.loads(run.engine.read_text())
        if isinstance(data, dict):
            return data
    return None


def replicas_table(data: dict[str, Any], *, now: float) -> RenderableType:
    """Within 80 columns."""
    age_s = now - data["updated"]
    old = f", as it was {age_s / 60:.0f} min ago" if age_s > FRESH_S else ""
    rows = data["replicas"]
    caption = f"{data['model']}: {sum(bool(each['routed']) for each in rows)} of {len(rows)} replicas serve{old}"
    table = Table(title=caption, title_justify="left", title_style="", box=None, pad_edge=False, header_style="dim")
    for name, width in (("no.", 4), ("on", 18), ("state", 10)):
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=width)
    for name in ("tok/s", "running", "waiting", "KV", "restarts"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in rows:
        table.add_row(
            each["name"].removeprefix("replica-"), ",".join(each["hosts"]), _state(each), _number(each, "tokens_per_s"),
            _number(each, "running"), _number(each, "waiting"), _percent(each), str(each["restarts"]),
        )  # fmt: skip
    return table


def _state(row: dict[str, Any]) -> str:
    drains = row["state"] == "ready" and not row["routed"]
    return "drains" if drains else str(row["state"])


def _number(row: dict[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None else f"{value:,.0f}"


def _percent(row: dict[str, Any]) -> str:
    return "" if row.get("kv_used") is None else f"{row['kv_used']:.0%}"


def print_replicas(run: RunDir, console: Any) -> None:
    """Nothing for a run without a pool."""
    if data := read_replicas(run):
        console.print(replicas_table(data, now=time.time()))
