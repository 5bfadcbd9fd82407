"""How much there is to learn from a fragment, for pools that are sampled by priority."""

from collections.abc import Sequence

import numpy as np

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.learning.batch import last_values, noted_values
from hpcjet.swarm.policy.interface import Policy
from hpcjet.swarm.returns import gae


def priorities_of(fragments: Sequence[Fragment], policy: Policy, config: LearnerConfig) -> list[float]:
    """The mean of |advantage| over the steps of each fragment that count, 0 for one without such.

    With trace=0 the advantage is the TD error, which is what the paper takes; one number stands for all of a fragment,
    as fragments are what is sampled. Source: "Prioritized Experience Replay", arXiv:1511.05952, section 3.2.
    """
    return [_priority(fragment, policy, config) for fragment in fragments]


def _priority(fragment: Fragment, policy: Policy, config: LearnerConfig) -> float:
    last, final = last_values(fragment, policy)
    values = np.concatenate([noted_values(fragment, policy), last[None]])
    steps = fragment.trajectories(values, final, gamma=config.gamma)
    if not steps.valid.any():
        return 0.0
    return float(np.abs(gae(steps, gae_lambda=config.trace))[steps.valid].mean())
