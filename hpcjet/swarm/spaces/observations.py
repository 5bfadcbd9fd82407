"""Observations of one agent's space as rows of float32."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.swarm.spaces.refusal import Misfit, unsupported

Floats = npt.NDArray[np.float32]
MASK_KEY = "action_mask"


@dataclass(frozen=True)
class _Leaf:
    """One simple space within the whole, and its columns."""

    keys: tuple[str | int, ...]
    """The way to it through Dict and Tuple spaces."""
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    columns: slice
    choices: tuple[int, ...] | None = None
    """One-hot: the number of choices of each entry; None for numbers that stand for themselves."""
    first: tuple[int, ...] = ()
    """What each entry counts from."""

    def write(self, value: Any, out: Floats, lead: tuple[int, ...]) -> None:
        array = np.asarray(self._find(value))
        if array.shape != lead + self.shape:
            raise Misfit(f"{self.name} has shape {array.shape[len(lead) :]}, its space says {self.shape}")
        if array.dtype != self.dtype and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise Misfit(f"{self.name} has type {array.dtype}, its space says {self.dtype}")
        flat = array.reshape(*lead, -1)
        if self.choices is None:
            out[..., self.columns] = flat
        else:
            self._one_hot(flat, out[..., self.columns])

    def _one_hot(self, flat: npt.NDArray[Any], out: Floats) -> None:
        assert self.choices is not None
        chosen = flat.astype(np.int64) - self.first
        if ((chosen < 0) | (chosen >= self.choices)).any():
            raise Misfit(f"{self.name} is {flat.tolist()}, outside of its space")
        out[...] = 0
        begin = np.cumsum((0, *self.choices[:-1]))
        np.put_along_axis(out, chosen + begin, 1.0, axis=-1)

    def _find(self, value: Any) -> Any:
        for key in self.keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                raise Misfit(f"{self.name} is missing") from None
        return value


class ObservationEncoder:
    """Writes observations of a space into float32 rows: numbers as they are, choices as one-hot, in the space's order.

    A Dict with an `action_mask` (PettingZoo's convention) is encoded without it. Raises ConfigError for a space that is
    not supported, naming `path` and the part; `what` is its name in errors.
    """

    def __init__(self, space: Any, *, path: str, what: str = "observation") -> None:
        from gymnasium import spaces

        self._what = what
        self.has_mask = isinstance(space, spaces.Dict) and MASK_KEY in space.spaces
        self._leaves: list[_Leaf] = []
        self.size = 0
        for keys, leaf in _walk(space, ()):
            if keys != (MASK_KEY,):
                self._add(keys, leaf, path)

    def write(self, value: Any, out: Floats) -> None:
        """Encode one observation into a row [F], or many, stacked in each part, into [..., F]. Raises Misfit."""
        for leaf in self._leaves:
            leaf.write(value, out, out.shape[:-1])

    def write_each(self, values: list[Any], out: Floats) -> None:
        """Encode observations of many agents into rows [n, F]. Raises Misfit, without saying which one it is."""
        if len(self._leaves) > 1 or self._leaves[0].keys:
            for value, row in zip(values, out, strict=True):
                self.write(value, row)
            return
        try:
            stacked = np.asarray(values)
        except ValueError:
            raise Misfit(f"{self._what}s have different shapes") from None
        self.write(stacked, out)

    def _add(self, keys: tuple[str | int, ...], space: Any, path: str) -> None:
        from gymnasium import spaces

        name = self._what + "".join(f"[{key!r}]" for key in keys)
        choices: tuple[int, ...] | None = None
        first: tuple[int, ...] = ()
        match space:
            case spaces.Box() | spaces.MultiBinary():
                size = int(np.prod(space.shape))
            case spaces.Discrete():
                choices, first = (int(space.n),), (int(space.start),)
                size = choices[0]
            case spaces.MultiDiscrete():
                choices = tuple(int(n) for n in space.nvec.reshape(-1))
                first = tuple(int(n) for n in space.start.reshape(-1))
                size = sum(choices)
            case _:
                raise unsupported(space, path=f"{path}.{name}", what=f"part of the {self._what}")
        columns = slice(self.size, self.size + size)
        self.size += size
        self._leaves.append(
            _Leaf(keys, name, tuple(space.shape), np.dtype(space.dtype), columns, choices=choices, first=first)
        )


def _walk(space: Any, keys: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """The simple spaces within a space, in its order."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts: list[tuple[str | int, Any]] = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        parts = list(enumerate(space.spaces))
    else:
        yield keys, space
        return
    for key, part in parts:
        yield from _walk(part, (*keys, key))
