"""What a learner says of how much there is to learn from a fragment."""

from dataclasses import replace

import numpy as np
import pytest
from swarm_fragments import formation, fragment_of, learner_for, settings

from hpcjet.config.swarm.learner import Algorithm
from hpcjet.swarm.learning.batch import batch_of
from hpcjet.swarm.learning.priority import priorities_of


@pytest.mark.parametrize("trace", [0.0, 0.95])
def test_a_priority_is_the_mean_size_of_the_advantages_that_count(trace: float) -> None:
    config = settings(Algorithm.ppo, trace=trace)
    learner = learner_for(formation(), config)
    fragments = [fragment_of(formation(seed), learner) for seed in range(3)]
    fragments.append(replace(fragments[0], reward=10 * fragments[0].reward))
    found = priorities_of(fragments, learner.policy, config)
    for fragment, priority in zip(fragments, found, strict=True):
        batch = batch_of([fragment], learner.policy, config)
        assert priority == pytest.approx(float(np.abs(batch.advantage[batch.index]).mean()))
    assert len(set(found)) == 4 and found[3] > found[0]


def test_a_fragment_of_nobody_has_none() -> None:
    config = settings(Algorithm.ppo)
    learner = learner_for(formation(), config)
    made = fragment_of(formation(), learner)
    assert priorities_of([replace(made, present=np.zeros_like(made.present))], learner.policy, config) == [0.0]
