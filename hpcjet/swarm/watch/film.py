"""A trajectory as a page holds it: packed for a small script, and as a strip of still pictures. Pure."""

import base64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcjet.swarm.watch.trajectory import Floats, Trajectory

MOST_BYTES = 6_000_000
"""Of positions, before base64 makes a third more of them."""
LEAST_MOMENTS = 26
STILLS = 5
MOST_DOTS = 1_000
"""In each still picture."""
SIZE = 1_000
"""Of a still picture's own coordinates, square."""
MARGIN = 0.04


@dataclass(frozen=True)
class Film:
    """Numbers are little-endian int16 from -32767 to 32767 for the square of side `side` around the centre."""

    position: str
    """base64 of [F, K, 2]"""
    slots: str
    """base64 of [K, 2]"""
    held: str
    """base64 of the bits of [F, K], the first in the highest bit, each moment from a new byte on."""
    moments: int
    agents: int
    """That are drawn."""
    of_agents: int
    steps: list[int]
    """Of each moment."""
    dot: float
    """Radius of an agent, in parts of the square's side."""
    share_held: list[float]
    """At each moment, of all agents."""


@dataclass(frozen=True)
class Still:
    """The `d` of SVG paths whose subpaths have no length: dots, by round ends."""

    slots: str
    held: str
    free: str
    step: int
    share_held: float
    width: float
    """Of the strokes."""


def film(trajectory: Trajectory) -> Film:
    """All agents at all moments, as far as they fit."""
    moments, agents = trajectory.held.shape
    keep = _every(moments, max(LEAST_MOMENTS, MOST_BYTES // (4 * agents)))
    who = _every(agents, MOST_BYTES // (4 * len(keep)))
    places = _Square(trajectory)
    return Film(
        position=_text(places.whole(trajectory.position[np.ix_(keep, who)], 32767)),
        slots=_text(places.whole(trajectory.slots[who], 32767)),
        held=_text(np.packbits(trajectory.held[np.ix_(keep, who)], axis=1)),
        moments=len(keep),
        agents=len(who),
        of_agents=agents,
        steps=[int(step) for step in keep],
        dot=places.dot,
        share_held=[round(float(share), 4) for share in trajectory.held[keep].mean(axis=1)],
    )


def stills(trajectory: Trajectory) -> list[Still]:
    """A few moments from the first to the last."""
    places = _Square(trajectory)
    who = _every(trajectory.agents, MOST_DOTS)
    slots = _dots(places.whole(trajectory.slots[who], SIZE // 2))
    found = []
    for step in _every(trajectory.steps + 1, STILLS):
        spots, held = places.whole(trajectory.position[step][who], SIZE // 2), trajectory.held[step][who]
        share = float(trajectory.held[step].mean())
        width = round(2 * SIZE * places.dot, 1)
        found.append(Still(slots, _dots(spots[held]), _dots(spots[~held]), int(step), share, width))
    return found


class _Square:
    """What is shown of the plane: all slots, and agents but those that fly off far beyond the others."""

    def __init__(self, trajectory: Trajectory) -> None:
        slots = trajectory.slots.astype(np.float64)
        low, high = slots.min(axis=0), slots.max(axis=0)
        self._centre = (low + high) / 2
        away = np.abs(trajectory.position - self._centre).max(axis=2)
        reach = max(float((high - low).max()) / 2, min(float(away.max()), 1.5 * float(np.quantile(away, 0.98))), 1e-6)
        self._half = reach * (1 + 2 * MARGIN)
        self.dot = float(np.clip(0.32 * _spacing(slots) / (2 * self._half), 0.0035, 0.013))

    def whole(self, places: Floats, half: int) -> npt.NDArray[np.int16]:
        """In whole numbers from -half to half; y points up here, down there."""
        share = np.clip((places - self._centre) / self._half * (1.0, -1.0), -1, 1)
        return np.asarray(np.rint(np.nan_to_num(share) * half), dtype="<i2")


def _spacing(slots: npt.NDArray[np.float64]) -> float:
    """About how far a slot is from the nearest other one; 0 for one slot."""
    some = slots[:: max(1, len(slots) // 200)]
    away = np.linalg.norm(some[:, None] - slots[None], axis=2)
    away[away == 0] = np.inf
    nearest = away.min(axis=1)
    return float(np.median(nearest)) if np.isfinite(nearest).all() else 0.0


def _every(count: int, most: int) -> npt.NDArray[np.int64]:
    """At most `most` of the indexes 0 to count - 1, evenly, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, max(1, min(count, most))).round().astype(np.int64))


def _text(array: npt.NDArray[np.generic]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _dots(spots: npt.NDArray[np.int16]) -> str:
    return "".join(f"M{x} {y}h0" for x, y in spots.tolist())
