"""Returns over several steps: lambda, n-step, and to the end of the trajectory."""

from hpcjet.swarm.returns.backend import Array, full, namespace, recur, shifted
from hpcjet.swarm.returns.trajectories import Trajectories


def lambda_returns(steps: Trajectories, *, lambda_: float) -> Array:
    """G[t] = r[t] + gamma[t] * ((1 - lambda) V[t+1] + lambda G[t+1]), [T, ...]; V itself where a step is not valid.

    At a cut, and after the last step, G[t+1] is V of the true next observation.
    Source: Sutton and Barto, "Reinforcement Learning", 2nd edition, section 12.1.
    """
    where = namespace(steps.rewards).where
    onward = where(_last(steps) | steps.stop, 0.0, full(steps.values, lambda_))
    start = steps.rewards + steps.discounts * (1 - onward) * steps.next_values
    start, factor = where(steps.valid, start, steps.values), where(steps.valid, steps.discounts * onward, 0.0)
    returns = recur(where(steps.absent, 0.0, start), where(steps.absent, 1.0, factor))
    return where(steps.absent, 0.0, returns)


def discounted_returns(steps: Trajectories) -> Array:
    """Rewards to the end of the trajectory, and V of what follows where it is cut; the case lambda = 1."""
    return lambda_returns(steps, lambda_=1.0)


def n_step_returns(steps: Trajectories, *, n: int) -> Array:
    """Rewards of `n` steps and V after them, [T, ...]; fewer steps where a trajectory is cut; V itself if not valid."""
    if n < 1:
        raise ValueError(f"n={n}: at least one step")
    where = namespace(steps.rewards).where
    stop, after = _last(steps) | steps.stop, steps.next_values
    for _ in range(n):
        returns = where(steps.valid, steps.rewards + steps.discounts * after, steps.values)
        # A gap hands on the return of the agent's next action.
        returns = recur(where(steps.absent, 0.0, returns), where(steps.absent, full(returns, 1.0), 0.0))
        after = where(stop, steps.next_values, shifted(returns, full(steps.values[0], 0.0)))
    return where(steps.absent, 0.0, returns)


def _last(steps: Trajectories) -> Array:
    """The last step at which each row acted: what follows is known by its value only."""
    later = recur(full(steps.values, 1.0) * ~steps.absent, full(steps.values, 1.0))
    return ~steps.absent & (later == 1)
