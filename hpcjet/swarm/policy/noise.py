"""The chance in actions, drawn outside of policies: so they are pure functions, and alike in every backend."""

import numpy as np

from hpcjet.swarm.spaces.layout import ActionLayout, Continuous
from hpcjet.swarm.vector import Floats

SMALLEST = np.float32(1e-12)


def draw(layout: ActionLayout, rows: int, rng: np.random.Generator) -> Floats:
    """[rows, outputs]: standard normal for real numbers, Gumbel for choices (the greatest logit + Gumbel is drawn).

    Source: "A* Sampling", arXiv:1411.0030, section 2, for the Gumbel-max trick.
    """
    noise = np.empty((rows, layout.outputs), dtype=np.float32)
    if all(isinstance(part, Continuous) for part in layout.parts):
        return rng.standard_normal(out=noise, dtype=np.float32)
    at = 0
    for part in layout.parts:
        shape, columns = (rows, part.outputs), slice(at, at + part.outputs)
        if isinstance(part, Continuous):
            noise[:, columns] = rng.standard_normal(shape, dtype=np.float32)
        else:
            uniform = np.maximum(rng.random(shape, dtype=np.float32), SMALLEST)
            noise[:, columns] = -np.log(np.maximum(-np.log(uniform), SMALLEST))
        at += part.outputs
    return noise
