"""V-trace: targets and advantages for samples of an older policy."""

from dataclasses import dataclass

from hpcjet.swarm.returns.backend import Array, constant, full, namespace, recur, shifted
from hpcjet.swarm.returns.trajectories import Trajectories


@dataclass(frozen=True)
class VTrace:
    """Both [T, ...]."""

    targets: Array
    """What the value function is to learn; V itself where a step is not valid."""
    advantages: Array
    """What weighs the policy's gradient; 0 where a step is not valid."""


def vtrace(
    steps: Trajectories,
    log_ratios: Array,
    *,
    lambda_: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """Off-policy targets; `log_ratios` [T, ...] is log pi(a|x) - log mu(a|x), mu being the policy that acted.

    The bootstrap of an advantage is the target of the agent's own next step, and V of its true next observation where
    the trajectory is cut: the target that stands next in the batch may be of another trajectory.
    Source: "IMPALA", arXiv:1802.01561, section 4.1, with lambda as in its remark 2.
    """
    where = namespace(steps.rewards).where
    ratios = namespace(steps.rewards).exp(where(steps.valid, constant(log_ratios), 0.0))
    delta = steps.rewards + steps.discounts * steps.next_values - steps.values
    factor = where(steps.stop, 0.0, steps.discounts * lambda_ * ratios.clip(max=clip_c))
    ahead = recur(where(steps.valid, ratios.clip(max=clip_rho) * delta, 0.0), where(steps.absent, 1.0, factor))
    onward = where(steps.stop, 0.0, shifted(ahead, full(steps.values[0], 0.0)))
    advantages = ratios.clip(max=clip_pg_rho) * (delta + steps.discounts * onward)
    targets = where(steps.absent, 0.0, steps.values + ahead)
    return VTrace(targets=targets, advantages=where(steps.valid, advantages, 0.0))
