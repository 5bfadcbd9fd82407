"""Actions of one agent's space from rows of numbers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.swarm.spaces.layout import ActionLayout, Categorical, Continuous, Part
from hpcjet.swarm.spaces.refusal import Misfit, unsupported

Row = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


class ActionDecoder:
    """Makes actions of a space of rows [A] in its `layout`: parts in the space's order, choices counted from 0.

    Real numbers beyond the bounds of a Box are clipped to them, since policies draw from distributions without bounds.
    Raises ConfigError for a space that is not supported, naming `path` and the part.
    """

    def __init__(self, space: Any, *, path: str) -> None:
        self._space = space
        parts: list[Part] = []
        _collect(space, parts, f"{path}.action")
        self.layout = ActionLayout(tuple(parts))
        self._low = np.concatenate([_bound(part, low=True) for part in parts])
        self._high = np.concatenate([_bound(part, low=False) for part in parts])
        self._choice = np.concatenate([np.full(part.columns, isinstance(part, Categorical)) for part in parts])

    def decode(self, row: Row) -> Any:
        """One action. Raises Misfit for numbers that are none, and choices that do not exist."""
        return self._build(self._space, self._fit(row), 0)[0]

    def decode_each(self, rows: Row) -> list[Any]:
        """One action for each of rows [n, A]."""
        from gymnasium import spaces

        fit = self._fit(rows)
        if isinstance(self._space, spaces.Dict | spaces.Tuple):
            return [self._build(self._space, row, 0)[0] for row in fit]
        return list(self._build(self._space, fit, 0)[0])

    def decode_many(self, rows: Row) -> Any:
        """Actions of rows [n, A], as a Gymnasium vector environment takes them: stacked in each part."""
        return self._build(self._space, self._fit(rows), 0)[0]

    def check_allowed(self, row: Row, mask: Bools) -> None:
        """Raise Misfit if a choice of this row is not allowed by the mask [M]."""
        begin = 0
        for part, columns in zip(self.layout.parts, self.layout.slices, strict=True):
            if isinstance(part, Categorical):
                choice = int(row[columns.start])
                if not mask[begin + choice]:
                    raise Misfit(f"the action {choice} is not allowed by the action mask")
                begin += part.n

    def _fit(self, rows: Row) -> Row:
        if not np.isfinite(rows).all():
            raise Misfit(f"the action {rows.tolist()} is not finite")
        fit = np.clip(rows, self._low, self._high)
        wrong = self._choice & ((rows != fit) | (rows != np.rint(rows)))
        if wrong.any():
            raise Misfit(f"the action {rows.tolist()} is outside of its space {self._space}")
        return fit

    def _build(self, space: Any, rows: Row, at: int) -> tuple[Any, int]:
        """The value of a space from the columns that begin at `at`, and the column after it."""
        from gymnasium import spaces

        match space:
            case spaces.Dict():
                values: dict[str, Any] = {}
                for key, part in space.spaces.items():
                    values[key], at = self._build(part, rows, at)
                return values, at
            case spaces.Tuple():
                items = []
                for part in space.spaces:
                    item, at = self._build(part, rows, at)
                    items.append(item)
                return tuple(items), at
            case spaces.Discrete():
                return rows[..., at].astype(space.dtype) + space.start, at + 1
            case _:
                end = at + int(np.prod(space.shape))
                value = rows[..., at:end].reshape((*rows.shape[:-1], *space.shape)).astype(space.dtype)
                return (value + space.start if isinstance(space, spaces.MultiDiscrete) else value), end


def flat_mask(mask: Any, choices: int) -> Bools:
    """A mask [M] of an array, or of a tuple with one per part. Raises Misfit for another size, or all zeros."""
    parts = mask if isinstance(mask, tuple | list) else [mask]
    flat: Bools = np.concatenate([np.asarray(part).reshape(-1) for part in parts]) != 0
    if flat.shape != (choices,):
        raise Misfit(f"the action mask has {flat.size} entries, the action space has {choices} choices")
    if not flat.any():
        raise Misfit("the action mask allows nothing")
    return flat


def _collect(space: Any, parts: list[Part], path: str) -> None:
    from gymnasium import spaces

    match space:
        case spaces.Dict():
            for key, part in space.spaces.items():
                _collect(part, parts, f"{path}[{key!r}]")
        case spaces.Tuple():
            for number, part in enumerate(space.spaces):
                _collect(part, parts, f"{path}[{number}]")
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            low, high = (tuple(map(float, bound.reshape(-1))) for bound in (space.low, space.high))
            parts.append(Continuous(low, high))
        case spaces.Discrete():
            parts.append(Categorical(int(space.n)))
        case spaces.MultiDiscrete():
            parts.extend(Categorical(int(n)) for n in space.nvec.reshape(-1))
        case spaces.MultiBinary():
            parts.extend(Categorical(2) for _ in range(int(np.prod(space.shape))))
        case _:
            raise unsupported(space, path=path, what="an action (a Box must be of floats)")


def _bound(part: Part, *, low: bool) -> Row:
    if isinstance(part, Continuous):
        return np.asarray(part.low if low else part.high)
    return np.full(part.columns, 0 if low else part.n - 1, dtype=np.float64)
