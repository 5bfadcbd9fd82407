"""Running mean and variance of what is seen, by which the inputs of networks are normalised."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.swarm.vector import Floats

Doubles = npt.NDArray[np.float64]
CLIP = 10.0
"""Standard deviations beyond which an input says no more."""
SMALLEST_VARIANCE = 1e-8


@dataclass
class ObservationNormaliser:
    """Of all rows that were ever taken in, each feature for itself; before the first ones it changes nothing.

    Statistics are part of a policy's weights: who acts normalises as those did who learned. They are to be updated
    after what was seen was learned from: so the probabilities of the first step are those of acting.
    """

    count: Doubles
    """[], rows so far."""
    total: Doubles
    """[F], their sum."""
    squares: Doubles
    """[F], the sum of their squares."""

    @staticmethod
    def of(size: int) -> "ObservationNormaliser":
        return ObservationNormaliser(np.zeros(()), np.zeros(size), np.zeros(size))

    @property
    def no_rows(self) -> Floats:
        return np.empty((0, len(self.total)), dtype=np.float32)

    @staticmethod
    def moments(rows: Floats) -> Doubles:
        """Number, sums and sums of squares of rows [n, F], as one vector [1 + 2 F]."""
        doubled = rows.astype(np.float64)
        return np.concatenate([[len(rows)], doubled.sum(axis=0), np.square(doubled).sum(axis=0)])

    def update_moments(self, moments: Doubles) -> None:
        """Take in rows by their `moments` (added up over ranks)."""
        size = len(self.total)
        self.count, self.total, self.squares = (
            old + more for old, more in zip(
                (self.count, self.total, self.squares),
                (moments[0], moments[1 : size + 1], moments[size + 1 :]), strict=True,
            )
        )  # fmt: skip

    @property
    def mean(self) -> Doubles:
        return np.asarray(self.total / np.maximum(self.count, 1))

    @property
    def variance(self) -> Doubles:
        if not self.count:
            return np.ones_like(self.total)
        return np.asarray(np.maximum(self.squares / self.count - np.square(self.mean), SMALLEST_VARIANCE))

    def normalise(self, rows: Floats) -> Floats:
        """[..., F], at most `CLIP` on either side."""
        if not self.count:
            return rows
        mean, scale = self.mean.astype(np.float32), (1 / np.sqrt(self.variance)).astype(np.float32)
        return np.asarray(np.clip((rows - mean) * scale, -CLIP, CLIP))

    def state(self) -> dict[str, Any]:
        """For weights: `ObservationNormaliser(**state)` is this one."""
        return dict(vars(self))
