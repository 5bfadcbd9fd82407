"""Whether two hold the same weights."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

Weights = Mapping[str, Mapping[str, npt.NDArray[Any]]]


def digest(weights: Weights) -> str:
    """The same for the same names, types, shapes and bits, in whatever order the names stand."""
    made = blake2b(digest_size=16)
    for policy in sorted(weights):
        for name in sorted(weights[policy]):
            array = weights[policy][name]
            made.update(repr((policy, name, array.dtype.str, array.shape)).encode())
            made.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return made.hexdigest()
