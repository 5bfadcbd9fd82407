"""A formation in the cells of a terminal: braille dots, or plain letters where these cannot be shown. Pure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcjet.swarm.watch.trajectory import Trajectory

BRAILLE = 0x2800
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""Of a cell's dots, by row and column."""


@dataclass(frozen=True)
class Cells:
    """A moment: rows of text, and what stands in each cell."""

    lines: list[str]
    free: npt.NDArray[np.bool_]
    """[rows, columns], cells with an agent that is on its way."""
    held: npt.NDArray[np.bool_]
    """Cells with an agent that holds its slot."""


class Canvas:
    """`rows` lines of twice as many columns: a square, as cells are twice as high as wide."""

    def __init__(self, trajectory: Trajectory, rows: int, *, braille: bool) -> None:
        self._path, self._rows, self._braille = trajectory, rows, braille
        places = np.concatenate([trajectory.slots, trajectory.position.reshape(-1, 2)])
        low, high = np.nanquantile(places, [0.002, 0.998], axis=0)
        self._centre = (low + high) / 2
        self._half = max(float((high - low).max()) / 2 * 1.04, 1e-6)

    def draw(self, step: int) -> Cells:
        position, held = self._path.position[step], self._path.held[step]
        free = self._dots(position[~held])
        holding = self._dots(position[held])
        slots = self._dots(self._path.slots)
        shown = free | holding
        with_free, with_held, with_slot = (self._cells(each) for each in (free, holding, slots))
        if self._braille:
            codes = np.tensordot(self._by_cell(shown), _BITS, axes=([1, 3], [0, 1]))
            text = [[chr(BRAILLE + code) if code else " " for code in row] for row in codes.tolist()]
        else:
            text = np.where(with_free, "*", np.where(with_held, "o", " ")).tolist()
        for row, column in zip(*np.nonzero(with_slot & ~with_free & ~with_held), strict=True):
            text[row][column] = "·" if self._braille else "."
        return Cells(["".join(row).rstrip() for row in text], with_free, with_held)

    def _dots(self, places: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
        """[4 * rows, 4 * rows]"""
        size = 4 * self._rows
        found = np.zeros((size, size), dtype=bool)
        share = np.nan_to_num((places - self._centre) / self._half * (1, -1)) / 2 + 0.5
        spots = np.floor(share * size).astype(np.int64)
        spots = spots[np.logical_and(spots >= 0, spots < size).all(axis=1)]
        found[spots[:, 1], spots[:, 0]] = True
        return found

    def _by_cell(self, dots: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """[rows, 4, columns, 2]"""
        return dots.reshape(self._rows, 4, 2 * self._rows, 2)

    def _cells(self, dots: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        return np.asarray(self._by_cell(dots).any(axis=(1, 3)))
