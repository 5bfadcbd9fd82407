"""Generalised advantage estimation."""

from hpcjet.swarm.returns.backend import Array, namespace, recur
from hpcjet.swarm.returns.trajectories import Trajectories


def gae(steps: Trajectories, *, gae_lambda: float) -> Array:
    """Advantage of each step, [T, ...], in units of reward; 0 where a step is not valid.

    Termination takes away the bootstrap (`discounts`), any end cuts the trace (`cut`).
    Source: "High-Dimensional Continuous Control Using Generalized Advantage Estimation", arXiv:1506.02438, eq. 16.
    """
    where = namespace(steps.rewards).where
    delta = steps.rewards + steps.discounts * steps.next_values - steps.values
    factor = where(steps.stop, 0.0, gae_lambda * steps.discounts)
    advantages = recur(where(steps.valid, delta, 0.0), where(steps.absent, 1.0, factor))
    return where(steps.valid, advantages, 0.0)
