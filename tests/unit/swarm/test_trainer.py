"""Acting and learning in one process."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from swarm_bandit import BOX, CHOICE, MIXED, Bandit

from hpcjet.config.swarm.learner import Algorithm, LearnerConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.learning.ranks import Alone
from hpcjet.swarm.policy import PolicyConfig
from hpcjet.swarm.trainer import Trainer, TrainerConfig

BOTH = pytest.mark.parametrize("algorithm", list(Algorithm), ids=[each.name for each in Algorithm])


def formation(algorithm: Algorithm, seed: int = 0, *, overlap: bool = False) -> Trainer:
    vector = FormationVector(FormationConfig(agents=5, steps=9), 4, seed=seed, with_state=True, stagger=True)
    learner = LearnerConfig(algorithm=algorithm, minibatch=60, epochs=2)
    policy = PolicyConfig(hidden=[16])
    return Trainer(vector, TrainerConfig(seed=seed, steps=7, overlap=overlap, policy=policy, learner=learner))


def weights(trainer: Trainer) -> bytes:
    return pickle.dumps({name: policy.weights() for name, policy in trainer.policies.items()})


@BOTH
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
def test_runs_of_a_seed_are_bit_equal_and_so_is_a_resumed_one(algorithm: Algorithm, overlap: bool) -> None:
    one, same, other = (formation(algorithm, seed, overlap=overlap) for seed in (0, 0, 1))
    for _ in range(3):
        for trainer in (one, same, other):
            trainer.iterate()
    assert weights(one) == weights(same) != weights(other)
    resumed = formation(algorithm, overlap=overlap)
    resumed.load_state_dict(pickle.loads(pickle.dumps(same.state_dict())))
    for _ in range(3):
        unbroken = one.iterate()
        again = resumed.iterate()
    assert weights(one) == weights(resumed)
    assert unbroken.learning == again.learning
    assert unbroken.episodes == again.episodes
    assert one.agent_steps == resumed.agent_steps == 6 * 4 * 5 * 7


class Noting(Alone):
    """What `at` says whenever the others' gradients are waited for."""

    def __init__(self, at: Callable[[], int]) -> None:
        self.at, self.noted = at, list[int]()

    def start_sum(self, tensor: Any) -> Callable[[], None]:
        return lambda: self.noted.append(self.at())


def test_with_overlap_steps_are_taken_while_gradients_are_waited_for() -> None:
    vector = Bandit({"g": BOX}, 4, 4)
    ranks = Noting(lambda: acted)
    config = TrainerConfig(steps=10, overlap=True, learner=LearnerConfig(epochs=1, minibatch=32))
    trainer, acted, step = Trainer(vector, config, ranks), 0, vector.step

    def counted(actions: Any) -> Any:
        nonlocal acted
        acted += 1
        return step(actions)

    vector.step = counted  # type: ignore[method-assign]
    first = trainer.iterate()
    assert (acted, ranks.noted, first.learning, first.agent_steps) == (10, [], {}, 160)
    (before,) = trainer.fragments("g")
    observation = before.observation.copy()
    second = trainer.iterate()
    assert ranks.noted == [12, 14, 16, 18, 20] and acted == 20
    assert second.learning["g"]["samples"] == 160 and trainer.policies["g"].version == 1
    (after,) = trainer.fragments("g")
    assert after is not before and after.version == 1
    np.testing.assert_array_equal(before.observation, observation)


@BOTH
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
def test_real_numbers_are_learned(algorithm: Algorithm, overlap: bool) -> None:
    trainer = bandit(Bandit({"g": BOX}, 16, 4, padding=3), algorithm, overlap=overlap)
    first, last = trained(trainer, 20)
    assert first < -1.5, "two squared errors, with a standard deviation of 1"
    assert last > -0.8


@BOTH
def test_choices_are_learned_under_masks(algorithm: Algorithm) -> None:
    trainer = bandit(Bandit({"g": CHOICE}, 16, 4, masked=True), algorithm)
    first, last = trained(trainer, 20)
    assert first < 0.6, "chance, of two that are allowed"
    assert last > 0.85


def test_groups_with_actions_of_several_parts_learn_side_by_side() -> None:
    trainer = bandit(Bandit({"a": MIXED, "b": BOX}, 16, 8), Algorithm.ppo)
    assert set(trainer.policies) == {"a", "b"}
    before = weights(trainer)
    noted = trainer.iterate().learning
    assert noted.keys() == {"a", "b"}
    assert weights(trainer) != before


def test_one_policy_learns_from_all_groups_that_share_it() -> None:
    trainer = bandit(Bandit({"a": BOX, "b": BOX}, 4, 3), Algorithm.ppo, {"*": "all"})
    assert trainer.iterate().learning["all"]["samples"] == 2 * 4 * 3 * 10


def test_each_row_may_have_a_policy_of_its_own() -> None:
    trainer = bandit(Bandit({"a": BOX}, 4, 3), Algorithm.ppo, {"a": "agent-{row}"})
    assert list(trainer.policies) == ["agent-0", "agent-1", "agent-2"]
    done = trainer.iterate()
    assert [part["samples"] for part in done.learning.values()] == [4 * 10] * 3
    (whole,) = (recorder.fragment for recorder in trainer.recorders.values())
    (second,) = trainer.fragments("agent-1")
    np.testing.assert_array_equal(second.observation[:, :, 0], whole.observation[:, :, 1])
    mean = trainer.policies["agent-1"].act(np.ascontiguousarray(second.observation[0, :, 0]), None).action
    assert mean.shape == (4, 2)


def test_a_map_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="policy_map=c is not allowed: groups are a, b"):
        bandit(Bandit({"a": BOX, "b": BOX}, 2, 2), Algorithm.ppo, {"c": "all"})
    with pytest.raises(ConfigError, match=r"policy_map=all is not allowed: a has PolicySpec.* b has"):
        bandit(Bandit({"a": BOX, "b": CHOICE}, 2, 2), Algorithm.ppo, {"*": "all"})
    with pytest.raises(ConfigError, match="backend=tf is not allowed: known are torch"):
        Trainer(Bandit({"a": BOX}, 2, 2), TrainerConfig(backend="tf"))


def test_the_learning_rate_comes_to_its_end_at_the_steps_that_are_named() -> None:
    learner = LearnerConfig(learning_rate=0.01, rate_end=0.1)
    one = Trainer(Bandit({"a": BOX}, 2, 2), TrainerConfig(steps=5, agent_steps=40, learner=learner))
    found = []
    for _ in range(4):
        one.iterate()
        (group,) = one.learners["a"].optimiser.param_groups  # type: ignore[attr-defined]
        found.append(group["lr"])
    assert found == pytest.approx([0.01, 0.0055, 0.001, 0.001])


def test_a_state_with_other_policies_is_refused() -> None:
    state = bandit(Bandit({"a": BOX}, 2, 2), Algorithm.ppo).state_dict()
    other = bandit(Bandit({"a": BOX}, 2, 2), Algorithm.ppo, {"a": "mine"})
    with pytest.raises(ConfigError, match="the state has a, this trainer mine"):
        other.load_state_dict(state)


def bandit(
    vector: Bandit, algorithm: Algorithm, policy_map: dict[str, str] | None = None, *, overlap: bool = False
) -> Trainer:
    # V-trace once, with shorter shares: it has no bound on how far several epochs take the policy.
    epochs, minibatch = (4, 320) if algorithm is Algorithm.ppo else (1, 80)
    learner = LearnerConfig(algorithm=algorithm, epochs=epochs, minibatch=minibatch, learning_rate=0.01)
    policy = PolicyConfig(hidden=[32])
    form = TrainerConfig(steps=10, overlap=overlap, policy_map=policy_map or {}, policy=policy, learner=learner)
    return Trainer(vector, form)


def trained(trainer: Trainer, iterations: int) -> tuple[float, float]:
    """Mean reward of an agent's step in the first and in the last iteration."""
    rewards = []
    for _ in range(iterations):
        trainer.iterate()
        (fragment,) = (recorder.fragment for recorder in trainer.recorders.values())
        rewards.append(float(fragment.reward[fragment.present[:-1]].mean()))
    return rewards[0], rewards[-1]
