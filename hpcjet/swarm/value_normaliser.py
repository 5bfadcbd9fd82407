"""Running mean and variance of returns, by which a value head is normalised."""

from dataclasses import dataclass
from typing import Any

from hpcjet.swarm.returns.backend import Array, constant, namespace

SMALLEST_DEBIAS = 1e-5
SMALLEST_VARIANCE = 1e-2


@dataclass
class ValueNormaliser:
    """Debiased moving averages of returns; the head puts out (V - mean) / std.

    Order in an update: `update` with the batch's returns, then `normalise` the targets. Advantages are made of
    denormalised outputs. Each minibatch that updates it counts, so epochs and minibatches change it.
    Source: the code of "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games", arXiv:2103.01955.
    """

    beta: float = 0.99999
    mean_average: float = 0.0
    square_average: float = 0.0
    debias: float = 0.0

    def update(self, returns: Array, mask: Array | None = None) -> None:
        """Take in one batch, of any shape: the entries that the mask counts. Nothing happens if none does."""
        count, total, squares = moments(returns, mask)
        self.update_moments(count, total, squares)

    def update_moments(self, count: float, total: float, squares: float) -> None:
        """Take in one batch by its number of entries, their sum and the sum of their squares (added up over ranks)."""
        if count > 0:
            self.mean_average = self.beta * self.mean_average + (1 - self.beta) * total / count
            self.square_average = self.beta * self.square_average + (1 - self.beta) * squares / count
            self.debias = self.beta * self.debias + (1 - self.beta)

    @property
    def mean(self) -> float:
        return self.mean_average / max(self.debias, SMALLEST_DEBIAS)

    @property
    def variance(self) -> float:
        return max(self.square_average / max(self.debias, SMALLEST_DEBIAS) - self.mean**2, SMALLEST_VARIANCE)

    def normalise(self, returns: Array) -> Array:
        return (returns - self.mean) / self.variance**0.5

    def denormalise(self, outputs: Array) -> Array:
        return outputs * self.variance**0.5 + self.mean

    def state(self) -> dict[str, Any]:
        """For a checkpoint: `ValueNormaliser(**state)` is this one."""
        return dict(vars(self))


def moments(values: Array, mask: Array | None = None) -> tuple[float, float, float]:
    """Number, sum and sum of squares of the counted entries, in double precision."""
    values = constant(values)
    if mask is not None:
        values = values[constant(mask) != 0]
    doubled = values.astype("float64") if not hasattr(values, "double") else values.double()
    size = 1
    for extent in doubled.shape:
        size *= int(extent)
    return float(size), float(doubled.sum()), float(namespace(doubled).square(doubled).sum())
