"""Fragments made smaller for the way from their pool to the learner; off by default.

Only float32 arrays that may lose precision are touched: observations, states, values. Actions, rewards,
log-probabilities and flags are what targets and ratios are made of, and stay as they are. `sparse` loses nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.config.swarm.compression import Compression
from hpcjet.swarm.fragment import Fragment

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Packed:
    """An array on its way."""

    kind: Compression
    shape: tuple[int, ...]
    data: Array
    more: Array | None = None
    """int8: scales of the rows; sparse: places of the numbers."""

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes) + (0 if self.more is None else int(self.more.nbytes))


HALF_MOST = float(np.finfo(np.float16).max)
SCALED_MOST = float(np.finfo(np.float32).max) / 2
"""127 scales of a greater number may be more than float32 holds."""
LOSSY = ("observation", "state", "value")
LOSSY_LISTS = ("final_observation", "final_state")


def pack(array: Array, kind: Compression) -> Array | Packed:
    """The array, or a smaller form of it. Errors, for a number x:

    fp16: at most |x| / 2048, and 2^-25 for |x| < 2^-14; an array with numbers beyond 65504 stays as it is.
    int8: at most m / 254 (and float32's own rounding), m the greatest |x| of its row; with m below 1.5e-36 the row
    becomes 0. An array with numbers beyond 1.7e38, or not finite, stays as it is.
    sparse: none; -0 becomes 0.
    """
    if kind is Compression.none or array.dtype != np.float32 or not array.size or not array.ndim:
        return array
    if kind is Compression.fp16:
        return Packed(kind, array.shape, array.astype(np.float16)) if _most(array) <= HALF_MOST else array
    if kind is Compression.int8:
        return _to_int8(array) if _most(array) <= SCALED_MOST else array
    places = np.flatnonzero(array).astype(np.uint32 if array.size <= 1 << 32 else np.uint64)
    packed = Packed(kind, array.shape, array.reshape(-1)[places], places)
    return packed if packed.nbytes < array.nbytes else array


def unpack(packed: Array | Packed) -> Array:
    """A float32 array of the same shape."""
    if not isinstance(packed, Packed):
        return packed
    if packed.kind is Compression.fp16:
        return packed.data.astype(np.float32)
    assert packed.more is not None
    if packed.kind is Compression.int8:
        return packed.data.astype(np.float32) * packed.more
    whole = np.zeros(int(np.prod(packed.shape)), dtype=np.float32)
    whole[packed.more] = packed.data
    return whole.reshape(packed.shape)


def compress(fragment: Fragment, kind: Compression) -> Fragment:
    """A fragment whose arrays may be `Packed`: for `decompress` alone. The one given stays as it is.

    Observations of rows that were not present hold anything, and become 0.
    """
    if kind is Compression.none:
        return fragment
    seen = replace(fragment, observation=np.where(fragment.present[..., None], fragment.observation, np.float32(0)))
    return _each(seen, lambda array: pack(array, kind))


def decompress(fragment: Fragment) -> Fragment:
    """With all arrays as they were, but for what compression lost."""
    return _each(fragment, unpack)


def _each(fragment: Fragment, change: Callable[[Any], Any]) -> Fragment:
    whole = {name: getattr(fragment, name) for name in LOSSY}
    changes: dict[str, Any] = {name: None if array is None else change(array) for name, array in whole.items()}
    changes.update({name: [change(array) for array in getattr(fragment, name)] for name in LOSSY_LISTS})
    return replace(fragment, **changes)


def _most(array: Array) -> float:
    return float(max(-array.min(), array.max()))


def _to_int8(array: Array) -> Packed:
    scale = (np.abs(array).max(axis=-1, keepdims=True) / np.float32(127)).astype(np.float32)
    # A scale that is no normal number would lose more than it should: such a row is as good as 0.
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(scale >= np.finfo(np.float32).tiny, array / scale, 0)
    return Packed(Compression.int8, array.shape, np.rint(steps).clip(-127, 127).astype(np.int8), scale)
