"""What numpy and torch share, so that each formula is written once."""

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""An array of numpy or a tensor of torch; both in one call do not mix."""


def namespace(array: Array) -> Any:
    """The module whose functions fit the array. Torch is never imported here: who has a tensor has imported it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, torch.Tensor) else np


def constant(array: Array) -> Array:
    """The array without its gradient; lists become arrays of numpy."""
    return array.detach() if hasattr(array, "detach") else np.asarray(array)


def full(like: Array, value: float | bool) -> Array:
    """An array of the shape of `like`, filled; of its type for a number, of booleans for a boolean."""
    xp = namespace(like)
    if not isinstance(value, bool):
        return xp.full_like(like, value)
    return xp.full_like(like, value, dtype=np.bool_ if xp is np else xp.bool)


def shifted(array: Array, last: Array) -> Array:
    """Each step's successor: [array[1], ..., array[T-1], last]."""
    xp = namespace(array)
    return xp.concatenate([array[1:], last[None]])


def recur(start: Array, factor: Array) -> Array:
    """Solve x[t] = start[t] + factor[t] * x[t+1] backwards in time, with x[T] = 0."""
    xp = namespace(start)
    out = xp.empty_like(start)
    carry = xp.zeros_like(start[0]) if len(start) else None
    for t in reversed(range(len(start))):
        carry = start[t] + factor[t] * carry
        out[t] = carry
    return out
