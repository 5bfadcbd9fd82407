"""The table of a sweep's points: for a terminal, a pipe, a CSV file, a program. Pure, but for reading results."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcjet.sweep.folder import About
from hpcjet.sweep.points import Point
from hpcjet.sweep.results import columns, results, text_of
from hpcjet.sweep.states import Standing

WIDTH = 80
WIDEST_CELL = 24


@dataclass(frozen=True)
class Row:
    """One point."""

    point: Point
    standing: Standing
    results: dict[str, Any]


def rows(points: Sequence[Point], found: Sequence[Standing]) -> list[Row]:
    """The points with their results, which are read here."""
    return [Row(point, each, results(each.run)) for point, each in zip(points, found, strict=True)]


def to_json(row: Row) -> dict[str, Any]:
    """A point for programs."""
    each = row.standing
    return {
        "index": row.point.index,
        "hash": row.point.hash,
        "overrides": list(row.point.overrides),
        "state": each.where.value,
        "exit_code": each.exit_code,
        "reason": each.reason,
        "seconds": None if each.seconds is None else round(each.seconds, 3),
        "job": each.job,
        "run": str(each.run),
        "results": row.results,
    }


def to_csv(about: About, shown: Sequence[Row]) -> str:
    """All results of all points, one column for each axis and each result."""
    keys = columns([], "", (row.results for row in shown))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", *(key.lstrip("+") for key in about.axes), "state", "exit_code", "seconds", *keys, "run"])
    for row in shown:
        each = row.standing
        seconds = "" if each.seconds is None else f"{each.seconds:.3f}"
        values = [_plain(row.results.get(key)) for key in keys]
        code = "" if each.exit_code is None else each.exit_code
        writer.writerow([row.point.index, *_values(row.point), each.where.value, code, seconds, *values, each.run])
    return text.getvalue()


def table(about: About, shown: Sequence[Row], *, width: int | None) -> str:
    """The table, no wider than `width`; all of it for None."""
    asked = about.base["sweep"]["columns"]
    keys = columns(asked, about.exp, (row.results for row in shown))
    heads = ["point", *_short([key.lstrip("+") for key in about.axes]), "state", *_short(keys), "time"]
    cells = [heads, *([_cell(text, width) for text in _texts(row, keys)] for row in shown)]
    cells = _narrowed(cells, width, keep={0, len(about.axes) + 1}) if width else cells
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(text.ljust(size) for text, size in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join(line[:width] for line in lines) + "\n"


def _texts(row: Row, keys: Sequence[str]) -> list[str]:
    each = row.standing
    state = f"{each.where.value} ({each.exit_code})" if each.exit_code else each.where.value
    return [
        str(row.point.index), *_values(row.point), state, *(text_of(row.results.get(key)) for key in keys),
        duration(each.seconds),
    ]  # fmt: skip


def _values(point: Point) -> list[str]:
    """The values of the axes, as the words have them."""
    return [word.partition("=")[2] for word in point.overrides]


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else text_of(value)


def _short(keys: Sequence[str]) -> list[str]:
    """Keys without what is the same for all: `temperature` for `engine.temperature`, if no other ends so."""
    lasts = [key.rpartition(".")[2] for key in keys]
    return [last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]


def _cell(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= WIDEST_CELL else f"{text[: WIDEST_CELL - 1]}…"


def _narrowed(cells: list[list[str]], width: int, *, keep: set[int]) -> list[list[str]]:
    """Without the columns that do not fit: results go first, from the right."""
    while True:
        size = sum(max(len(line[column]) for line in cells) + 2 for column in range(len(cells[0]))) - 2
        droppable = [column for column in range(1, len(cells[0]) - 1) if column not in keep and column > max(keep)]
        if size <= width or not droppable:
            return cells
        cells = [[*line[: droppable[-1]], *line[droppable[-1] + 1 :]] for line in cells]


def duration(seconds: float | None) -> str:
    """`41 s`, `12:07`, `3:12:07`."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
