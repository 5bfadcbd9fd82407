"""Curves over a training, as paths for a page. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpcjet.swarm.row import Row, number

WIDTH, HEIGHT = 600, 160
"""Of the picture's own coordinates; the page stretches it."""
BINS = 240
"""Most points of a line; each is the mean of the rows in its part of the training."""
MOST_LINES = 6

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One quantity; `path` and `band` are the `d` of SVG paths."""

    name: str
    path: str
    band: str
    """From the least to the largest value of each point; empty where a point is one row."""
    last: str
    """The value at the end, to be read."""
    dot: bool = False
    """There is one point alone: a line of no length, with round ends."""


@dataclass(frozen=True)
class Tick:
    at: float
    """Percent from the top."""
    text: str


@dataclass(frozen=True)
class Chart:
    title: str
    lines: list[Line]
    ticks: list[Tick]
    span: tuple[str, str]
    """What the left and the right edge are."""
    hidden: int = 0
    """Lines left out."""


@dataclass(frozen=True)
class _Series:
    name: str
    middle: list[Point]
    low: list[Point]
    high: list[Point]


def chart(title: str, rows: Sequence[Row], keys: Mapping[str, str], *, percent: bool = False) -> Chart | None:
    """Lines of `keys` (key to name) over the agent steps, or the updates where they are not told; None without points.

    `percent` for shares from 0 to 1.
    """
    axis = "agent_steps" if rows and all(number(row, "agent_steps") is not None for row in rows) else "version"
    found = [series for key, name in keys.items() if (series := _series(name, _points(rows, axis, key)))]
    if not found:
        return None
    shown = found[:MOST_LINES]
    ends = [x for series in shown for x, _ in series.middle]
    first, last = min(0.0, *ends), max(ends)
    low, high = _range([y for series in shown for part in (series.low, series.high) for _, y in part], percent=percent)
    marks = ticks(low, high)
    low, high = min(low, marks[0]), max(high, marks[-1])

    def place(point: Point) -> Point:
        x = WIDTH * (point[0] - first) / ((last - first) or 1.0)
        return x, HEIGHT * (1 - (point[1] - low) / (high - low))

    unit = "agent steps" if axis == "agent_steps" else "updates"
    return Chart(
        title=title,
        lines=[_line(series, place, percent=percent) for series in shown],
        ticks=[Tick(100 * (1 - (mark - low) / (high - low)), value_text(mark, percent=percent)) for mark in marks],
        span=(short(first), f"{short(last)} {unit}"),
        hidden=len(found) - len(shown),
    )


def ticks(low: float, high: float) -> list[float]:
    """Two to five round numbers that reach from `low` to `high` or a little beyond; low < high."""
    step = _round_step((high - low) / 3)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * index for index in range(first, max(last, first + 1) + 1)]


def _round_step(wanted: float) -> float:
    size = 10.0 ** math.floor(math.log10(wanted))
    return next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= wanted * 0.999)


def value_text(value: float, *, percent: bool = False) -> str:
    return f"{100 * value:.0f} %" if percent else short(value)


def short(value: float) -> str:
    """Three digits that matter, such as 0.0123, 84,100, 12.3 M, 1.2e-05."""
    size = abs(value)
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= unit * 0.9995:
            return f"{value / unit:.3g} {name}"
    if size >= 999.5:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def _points(rows: Iterable[Row], axis: str, key: str) -> list[Point]:
    pairs = ((number(row, axis), number(row, key)) for row in rows)
    return [(x, y) for x, y in pairs if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)]


def _series(name: str, points: list[Point]) -> _Series | None:
    if not points:
        return None
    count = min(BINS, len(points))
    edges = [index * len(points) // count for index in range(count + 1)]
    bins = [points[begin:end] for begin, end in pairwise(edges)]
    xs = [sum(x for x, _ in each) / len(each) for each in bins]
    xs[0], xs[-1] = points[0][0], points[-1][0]
    values = [[y for _, y in each] for each in bins]
    middle = [sum(each) / len(each) for each in values]
    return _Series(
        name,
        list(zip(xs, middle, strict=True)),
        list(zip(xs, map(min, values), strict=True)),
        list(zip(xs, map(max, values), strict=True)),
    )


def _range(values: Sequence[float], *, percent: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if percent:
        return 0.0, max(1.0, high)
    # What is near zero by its size is shown from zero on, so that little changes do not look big.
    if low > 0 and low < 0.7 * high:
        low = 0.0
    if high < 0 and high > 0.7 * low:
        high = 0.0
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        room = abs(high) / 2 or 1.0
        return (0.0 if low >= 0 else low - room), high + room
    return low, high


def _line(series: _Series, place: Callable[[Point], Point], *, percent: bool) -> Line:
    band = ""
    if series.low != series.high:
        band = _path([place(point) for point in series.high + series.low[::-1]]) + "Z"
    points = [place(point) for point in series.middle]
    dot = len(points) == 1
    last = value_text(series.middle[-1][1], percent=percent)
    return Line(series.name, _path(points * 2 if dot else points), band, last, dot)


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{round(x, 1):g} {round(y, 1):g}" for x, y in points)
