"""The figure of tests/bench/allocations.py: how long the work took, and what became of the nodes' time."""

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, ROW_H, TOP, LABEL_W, PANEL_W, GAP = 920, 46, 84, 230, 290, 60
BACK, FORE, DIM, GRID = "#ffffff", "#1f2430", "#5b6475", "#dfe3ea"
PARTS = {"work": "#4c78a8", "idle": "#c3cad6", "lost": "#e07b54", "booting": "#8c6bb1"}
NAMES = {"work": "work", "idle": "idle", "lost": "lost to preemption", "booting": "booting"}


def figure(rows: Sequence[dict[str, Any]]) -> str:
    """An SVG of the rows that the bench prints."""
    height = TOP + ROW_H * len(rows) + 66
    left, right = LABEL_W, LABEL_W + PANEL_W + GAP
    most = max(row["hours_p90"] for row in rows)
    step = next(each for each in (1, 2, 5, 10, 20, 50, 100) if most / each <= 6)
    most = step * (int(most / step) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="{BACK}"/>',
        text(left, 26, "Hours from the submission to the last task", bold=True),
        text(left, 46, f"median of {rows[0]['seeds']} runs; line: 10th to 90th percentile", color=DIM, size=12),
        text(right, 26, "What became of the nodes' time", bold=True),
        *legend(right, 46),
    ]
    bottom = TOP + ROW_H * len(rows)
    for hours in range(0, most + 1, step):
        parts += tick(left + PANEL_W * hours / most, bottom, f"{hours} h")
    for percent in range(0, 101, 25):
        parts += tick(right + PANEL_W * percent / 100, bottom, f"{percent} %")
    for number, row in enumerate(rows):
        y = TOP + ROW_H * number + ROW_H / 2
        parts.append(text(left - 14, y - 2, row["way"], anchor="end"))
        parts.append(text(left - 14, y + 14, f"{row['node_hours']:.0f} node-hours", anchor="end", color=DIM, size=12))
        parts += hours_row(row, left, y, PANEL_W / most)
        parts += parts_row(row, right, y)
    parts.append(text(left, bottom + 46, CAPTION, color=DIM, size=12))
    return "\n".join([*parts, "</svg>", ""])


CAPTION = "5,500 tasks of 0.48 core-hours, up to 32 nodes of 32 cores. Simulated, with published waits."


def hours_row(row: dict[str, Any], left: float, y: float, scale: float) -> list[str]:
    median, low, high = (row[f"hours_{name}"] for name in ("median", "p10", "p90"))
    x1, x2 = left + low * scale, left + high * scale
    return [
        f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y}" y2="{y}" stroke="{PARTS["work"]}" stroke-width="3" '
        'stroke-linecap="round" opacity="0.45"/>',
        f'<circle cx="{left + median * scale:.1f}" cy="{y}" r="6" fill="{PARTS["work"]}"/>',
        text(left + median * scale, y - 11, f"{median:.1f}", anchor="middle", size=12),
    ]


def parts_row(row: dict[str, Any], left: float, y: float) -> list[str]:
    shares = {name: row[name] for name in ("idle", "lost", "booting")}
    shares = {"work": 1 - sum(shares.values()), **shares}
    drawn, x = [], left
    for name, share in shares.items():
        width = share * PANEL_W
        drawn.append(f'<rect x="{x:.1f}" y="{y - 11}" width="{width:.1f}" height="22" fill="{PARTS[name]}"/>')
        if share >= 0.03:
            color = "#ffffff" if name == "work" else FORE
            drawn.append(text(x + width / 2, y + 4, f"{share:.0%}", anchor="middle", size=12, color=color))
        x += width
    return drawn


def legend(left: float, y: float) -> list[str]:
    drawn, x = [], left
    for name, color in PARTS.items():
        drawn.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{color}"/>')
        drawn.append(text(x + 14, y, NAMES[name], size=12, color=DIM))
        x += 30 + 6.6 * len(NAMES[name])
    return drawn


def tick(x: float, bottom: float, label: str) -> list[str]:
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="{GRID}"/>'
    return [line, text(x, bottom + 18, label, anchor="middle", size=12, color=DIM)]


def text(
    x: float, y: float, words: str, *, anchor: str = "start", color: str = FORE, size: int = 13, bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {where} font-size="{size}" fill="{color}"{weight}>{escape(words)}</text>'
