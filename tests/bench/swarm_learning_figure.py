"""The figure of tests/bench/swarm_learning.py: a panel of curves for each task."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from allocations_figure import DIM, FORE, GRID, text

PANEL_W, PANEL_H, LEFT, GAP_X, GAP_Y, TOP, COLUMNS = 330, 190, 60, 80, 88, 56, 2
COLORS = ("#4c78a8", "#e07b54", "#54a24b", "#8c6bb1", "#b279a2")


@dataclass
class Curve:
    task: str
    seed: str
    points: list[tuple[float, float]] = field(default_factory=list)
    """Agent-steps and score."""


Panel = tuple[str, str, float, Sequence[Curve]]
"""Title, unit of the score, goal, curves."""


def figure(panels: Sequence[Panel]) -> str:
    """An SVG."""
    rows = math.ceil(len(panels) / COLUMNS)
    width, height = LEFT + COLUMNS * (PANEL_W + GAP_X), TOP + rows * (PANEL_H + GAP_Y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, COLUMNS)
        parts += drawn(panel, LEFT + column * (PANEL_W + GAP_X), TOP + row * (PANEL_H + GAP_Y))
    return "\n".join([*parts, "</svg>", ""])


def drawn(panel: Panel, left: float, top: float) -> list[str]:
    title, unit, goal, curves = panel
    most_x = max(x for curve in curves for x, _ in curve.points)
    most_y = max(goal, *(y for curve in curves for _, y in curve.points))
    least_y = min(0.0, *(y for curve in curves for _, y in curve.points))
    scale_x, scale_y = PANEL_W / most_x, PANEL_H / (most_y - least_y)
    bottom = top + PANEL_H

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x * scale_x, bottom - (y - least_y) * scale_y

    parts = [text(left, top - 28, title, bold=True), text(left, top - 11, unit, color=DIM, size=12)]
    for value in ticks(least_y, most_y):
        _, y = at(0, value)
        parts.append(line((left, y), (left + PANEL_W, y), GRID))
        parts.append(text(left - 8, y + 4, f"{value:g}", anchor="end", color=DIM, size=12))
    for value in ticks(0, most_x):
        x, _ = at(value, least_y)
        parts.append(text(x, bottom + 18, f"{value / 1e6:g}", anchor="middle", color=DIM, size=12))
    parts.append(text(left + PANEL_W, bottom + 34, "million agent-steps", anchor="end", color=DIM, size=12))
    parts.append(line(at(0, goal), at(most_x, goal), FORE, dashed=True))
    for number, curve in enumerate(curves):
        color = COLORS[number % len(COLORS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in curve.points))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        parts.append(text(left + 52 * number, bottom + 34, f"seed {curve.seed}", color=color, size=12))
    return parts


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers from low to high."""
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def line(one: tuple[float, float], other: tuple[float, float], color: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    where = f'x1="{one[0]:.1f}" y1="{one[1]:.1f}" x2="{other[0]:.1f}" y2="{other[1]:.1f}"'
    return f'<line {where} stroke="{color}"{dash}/>'
