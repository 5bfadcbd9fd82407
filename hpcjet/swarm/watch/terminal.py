"""What a policy does, in a terminal."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpcjet.swarm.vector import Episode
from hpcjet.swarm.watch.chart import short
from hpcjet.swarm.watch.dots import Canvas
from hpcjet.swarm.watch.trajectory import Trajectory

SECONDS = 8.0
MOST_ROWS = 34
STILLS = 3
"""Without a terminal: moments that are printed."""


def show_formation(trajectory: Trajectory, console: Console) -> None:
    """Moves in a terminal; else a few moments are printed."""
    braille = not console.options.ascii_only
    if not console.is_terminal:
        canvas = Canvas(trajectory, 20, braille=braille)
        for step in sorted({round(trajectory.steps * part / (STILLS - 1)) for part in range(STILLS)}):
            print(*canvas.draw(step).lines, _caption(trajectory, step), sep="\n", flush=True)
        return
    rows = max(4, min(console.height - 3, console.width // 2, MOST_ROWS))
    canvas = Canvas(trajectory, rows, braille=braille)
    with Live(console=console, auto_refresh=False) as live:
        began = time.monotonic()
        step = -1
        while step < trajectory.steps:
            now = round(min(1.0, (time.monotonic() - began) / SECONDS) * trajectory.steps)
            if now != step:
                step = now
                live.update(_coloured(canvas, trajectory, step), refresh=True)
            time.sleep(0.02)


def episode_table(episodes: Sequence[Episode], console: Console) -> None:
    """Returns and what the worlds say, a line for each episode; columns are separated by tabs without a terminal."""
    names, lines = episode_lines(episodes)
    if not console.is_terminal:
        print(*("\t".join(line) for line in [names, *lines]), sep="\n")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*line)
    console.print(table)


def episode_lines(episodes: Sequence[Episode]) -> tuple[list[str], list[list[str]]]:
    """Names of columns, and the episodes: number, steps, mean return of an agent by group, metrics."""
    groups = list(dict.fromkeys(group for each in episodes for group in each.returns))
    metrics = list(dict.fromkeys(name for each in episodes for name in each.metrics))
    names = ["episode", "steps", *(f"return of {group}" for group in groups), *metrics]
    lines = []
    for number, each in enumerate(episodes, 1):
        means = [
            each.returns[group] / max(1, each.agents[group]) if group in each.returns else None for group in groups
        ]
        values = [*means, *(each.metrics.get(name) for name in metrics)]
        lines.append([str(number), f"{each.steps:,}", *("–" if value is None else short(value) for value in values)])
    return names, lines


def _coloured(canvas: Canvas, trajectory: Trajectory, step: int) -> Text:
    cells = canvas.draw(step)
    text = Text(no_wrap=True)
    for row, line in enumerate(cells.lines):
        for column, letter in enumerate(line):
            style = "yellow" if cells.free[row, column] else "green" if cells.held[row, column] else "dim"
            text.append(letter, style)
        text.append("\n")
    return text.append(_caption(trajectory, step))


def _caption(trajectory: Trajectory, step: int) -> str:
    return (
        f"step {step} of {trajectory.steps}, {100 * trajectory.held[step].mean():.0f} % of {trajectory.agents:,} held"
    )
