"""How an action is laid out in a row of numbers, and what a policy needs to put it there."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Continuous:
    """Columns of real numbers, one for each entry of the bounds."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def columns(self) -> int:
        return len(self.low)

    @property
    def outputs(self) -> int:
        """What a policy puts out for it: means."""
        return len(self.low)


@dataclass(frozen=True)
class Categorical:
    """One column with a choice of 0 to n - 1."""

    n: int
    columns: int = 1

    @property
    def outputs(self) -> int:
        """What a policy puts out for it: logits."""
        return self.n


Part: TypeAlias = Continuous | Categorical


@dataclass(frozen=True)
class ActionLayout:
    """Parts in their order, each with its columns."""

    parts: tuple[Part, ...]

    @cached_property
    def columns(self) -> int:
        """A, numbers in an action."""
        return sum(part.columns for part in self.parts)

    @cached_property
    def outputs(self) -> int:
        """Numbers that a policy puts out for an action: means and logits."""
        return sum(part.outputs for part in self.parts)

    @cached_property
    def choices(self) -> int:
        """M, entries of a mask: one for each choice of each categorical part."""
        return sum(part.n for part in self.parts if isinstance(part, Categorical))

    @cached_property
    def dtype(self) -> npt.DTypeLike:
        """Choices alone are integers; with real numbers among them all are floats (exact for choices)."""
        return np.int64 if all(isinstance(part, Categorical) for part in self.parts) else np.float32

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """The columns of each part."""
        ends = list(accumulate(part.columns for part in self.parts))
        return tuple(slice(end - part.columns, end) for part, end in zip(self.parts, ends, strict=True))
