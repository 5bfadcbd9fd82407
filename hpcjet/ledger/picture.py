"""The nodes of each group over time, as paths for a small picture. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcjet.ledger.account import most_at_once
from hpcjet.ledger.span import Span, Stand

BINS = 240
"""Columns; each shows the mean number of nodes in its time."""
WIDTH, HEIGHT = 960, 60
"""Of the picture's own coordinates."""
ORDER = (Stand.joined, Stand.draining, Stand.booting, Stand.dead)
"""From below."""


@dataclass(frozen=True)
class Area:
    """The nodes that stood at one place."""

    stand: str
    path: str
    """As the `d` of an SVG path, from (0, HEIGHT) below left."""


@dataclass(frozen=True)
class GroupPicture:
    """One group; all have the same times."""

    name: str
    most: int
    """Nodes at the top of the picture."""
    areas: list[Area]


def pictures(spans: Sequence[Span], names: Sequence[str]) -> list[GroupPicture]:
    """One for each group that had nodes, in the order of `names`."""
    if not spans:
        return []
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    found = []
    for name in names:
        mine = [span for span in spans if span.group == name]
        if mine and end > begin:
            most = most_at_once(mine)
            found.append(GroupPicture(name, most, _areas(mine, most, begin, (end - begin) / BINS)))
    return found


def _areas(spans: Sequence[Span], most: int, begin: float, width_s: float) -> list[Area]:
    areas, floor = [], [0.0] * BINS
    for stand in ORDER:
        mine = [span for span in spans if span.stand is stand]
        top = [below + here for below, here in zip(floor, _counts(mine, begin, width_s), strict=True)]
        if mine:
            areas.append(Area(stand.value, _path(floor, top, most)))
        floor = top
    return areas


def _counts(spans: Sequence[Span], begin: float, width_s: float) -> list[float]:
    """The mean number of nodes in each bin; spans as changes, so that thousands of long ones are quick."""
    change = [0.0] * (BINS + 2)
    for span in spans:
        for t, sign in ((span.begin, 1.0), (span.end, -1.0)):
            at = min(max((t - begin) / width_s, 0.0), float(BINS))
            index, part = int(at), at - int(at)
            change[index] += sign * (1.0 - part)
            change[index + 1] += sign * part
    counts, here = [], 0.0
    for each in change[:BINS]:
        here += each
        counts.append(max(here, 0.0))
    return counts


def _path(floor: Sequence[float], top: Sequence[float], most: int) -> str:
    def points(heights: Sequence[float]) -> list[tuple[float, float]]:
        step = WIDTH / BINS
        found = []
        for index, height in enumerate(heights):
            y = round(HEIGHT * (1 - min(height / most, 1.0)), 1)
            found += [(round(index * step, 1), y), (round((index + 1) * step, 1), y)]
        return found

    corners = _plain(points(top)) + _plain(points(floor))[::-1]
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in corners) + "Z"


def _plain(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without those between two others of the same height."""
    return [
        point
        for index, point in enumerate(points)
        if index in (0, len(points) - 1) or not points[index - 1][1] == point[1] == points[index + 1][1]
    ]
