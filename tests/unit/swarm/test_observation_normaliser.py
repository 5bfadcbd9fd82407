"""Inputs of networks by running statistics of what was seen."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarm_bandit import BOX, Bandit

from hpcjet.config.swarm.learner import Algorithm, LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.observation_normaliser import ObservationNormaliser
from hpcjet.swarm.trainer import Trainer, TrainerConfig

BOTH = pytest.mark.parametrize("algorithm", list(Algorithm), ids=[each.name for each in Algorithm])


class FarOff(Bandit):
    """What is seen lies around 300, and moves by thousandths: a network as it begins sees no difference."""

    def _group(self, group: Any, reward: Any) -> Any:
        turn = super()._group(group, reward)
        turn.observation = turn.observation * np.float32(0.001) + np.float32(300)
        return turn

    def _reward(self, name: str, action: Any) -> Any:
        turn = self.turns[name]
        shown, turn.observation = turn.observation, (turn.observation - 300) * 1000
        try:
            return super()._reward(name, action)
        finally:
            turn.observation = shown


def trainer(vector: Any, algorithm: Algorithm, *, norm: bool, **policy: Any) -> Trainer:
    epochs, minibatch = (4, 320) if algorithm is Algorithm.ppo else (1, 80)
    learner = LearnerConfig(algorithm=algorithm, epochs=epochs, minibatch=minibatch, learning_rate=0.01)
    return Trainer(
        vector,
        TrainerConfig(steps=10, policy=PolicyConfig(hidden=[32], observation_norm=norm, **policy), learner=learner),
    )


def last_reward(one: Trainer) -> float:
    for _ in range(15):
        one.iterate()
    (recorder,) = one.recorders.values()
    return float(recorder.fragment.reward[recorder.fragment.present[:-1]].mean())


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(0, 2**31))
def test_shares_add_up_to_all_rows(sizes: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).normal(5, 3, (sum(sizes), 4)).astype(np.float32)
    one = ObservationNormaliser.of(4)
    for share in np.split(rows, np.cumsum(sizes)[:-1]):
        one.update_moments(one.moments(share))
    assert one.count == len(rows)
    if len(rows):
        np.testing.assert_allclose(one.mean, rows.astype(float).mean(axis=0))
        np.testing.assert_allclose(one.variance, np.maximum(rows.astype(float).var(axis=0), 1e-8), rtol=1e-6, atol=1e-8)
        normal = (rows - one.mean) / np.sqrt(one.variance)
        np.testing.assert_allclose(one.normalise(rows), np.clip(normal, -10, 10), atol=2e-3)


def test_it_changes_nothing_before_the_first_rows_and_clips_what_is_far_off() -> None:
    one = ObservationNormaliser.of(1)
    rows = np.array([[1e6], [3]], np.float32)
    assert np.array_equal(one.normalise(rows), rows)
    one.update_moments(one.moments(np.array([[-1], [1]], np.float32)))
    assert one.normalise(rows).tolist() == [[10], [3]] and one.normalise(-rows).tolist() == [[-10], [-3]]
    assert one.normalise(rows).dtype == np.float32


@BOTH
def test_what_lies_far_off_is_learned_only_with_it(algorithm: Algorithm) -> None:
    without, with_it = (
        last_reward(trainer(FarOff({"g": BOX}, 16, 4, padding=2), algorithm, norm=norm)) for norm in (False, True)
    )
    assert with_it > without + 0.4


@BOTH
def test_statistics_are_of_those_who_acted_and_of_their_states(algorithm: Algorithm) -> None:
    vector = Bandit({"g": BOX}, 16, 4, padding=3)  # rows in which nobody stands hold NaN
    one = trainer(vector, algorithm, norm=True)
    seen = []
    for _ in range(2):
        one.iterate()
        fragment = one.recorders["g"].fragment
        seen.append(fragment.observation[:-1][fragment.present[:-1]].copy())
    (policy,) = one.policies.values()
    rows = np.concatenate(seen)
    assert policy.weights()["observation_normaliser.count"] == len(rows) == 2 * 10 * 16 * 4
    np.testing.assert_allclose(policy.weights()["observation_normaliser.total"], rows.astype(float).sum(axis=0))


@BOTH
def test_the_first_step_is_taken_with_the_probabilities_of_acting(algorithm: Algorithm) -> None:
    learner = LearnerConfig(algorithm=algorithm, epochs=1, minibatch=100_000)
    policy = PolicyConfig(hidden=[8], observation_norm=True)
    one = Trainer(Bandit({"g": BOX}, 16, 4), TrainerConfig(steps=10, policy=policy, learner=learner))
    for _ in range(3):
        assert abs(one.iterate().learning["g"]["kl"]) < 1e-6


@BOTH
def test_it_goes_with_the_weights_and_a_resume_is_bit_equal(algorithm: Algorithm) -> None:
    def formation() -> Trainer:
        vector = FormationVector(FormationConfig(agents=5, steps=9), 4, seed=0, with_state=True, stagger=True)
        return trainer(vector, algorithm, norm=True)

    one, other = formation(), formation()
    for _ in range(2):
        one.iterate()
    weights = one.policies["agent"].weights()
    assert weights["state_normaliser.total"].shape == (8,) and weights["state_normaliser.count"] > 0
    other.load_state_dict(pickle.loads(pickle.dumps(one.state_dict())))
    for _ in range(2):
        assert one.iterate().learning == other.iterate().learning
    ours, theirs = (each.policies["agent"].weights() for each in (one, other))
    assert {name: part.tobytes() for name, part in ours.items()} == {n: part.tobytes() for n, part in theirs.items()}
    assert not np.array_equal(ours["observation_normaliser.total"], weights["observation_normaliser.total"])
    plain = trainer(Bandit({"g": BOX}, 2, 2), algorithm, norm=False).policies["g"]
    with pytest.raises(ConfigError, match=r"observation_normaliser\.count has shape"):
        trainer(Bandit({"g": BOX}, 2, 2), algorithm, norm=True).policies["g"].load_weights(plain.weights(), 1)


@BOTH
def test_chance_in_actions_stays_above_its_least(algorithm: Algorithm) -> None:
    one = trainer(Bandit({"g": BOX}, 16, 4), algorithm, norm=False, log_std=-0.5, log_std_least=-0.6)
    for _ in range(20):
        one.iterate()
    std = one.policies["g"].weights()["log_std.0"]
    assert (std >= np.float32(-0.6)).all() and (std == np.float32(-0.6)).any()
    with pytest.raises(ConfigError, match="log_std=-7 is not allowed: log_std_least is -5"):
        PolicyConfig(log_std=-7)
