"""One learner: the same for a seed, also after a resume; nothing of what does not count."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from swarm_bandit import BOX, CHOICE, Bandit
from swarm_fragments import equal, formation, fragment_of, learner_for, settings

from hpcjet.config.swarm.learner import Algorithm, LearnerConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm import losses
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.learning.batch import batch_of, noted_values
from hpcjet.swarm.torch_backend.ppo import PPOLearner
from hpcjet.swarm.value_normaliser import ValueNormaliser

BOTH = pytest.mark.parametrize("algorithm", list(Algorithm), ids=[each.name for each in Algorithm])


@BOTH
@pytest.mark.parametrize("state", [False, True], ids=["plain", "central"])
def test_resumed_is_bit_equal_to_unbroken(algorithm: Algorithm, state: bool) -> None:
    whole, first, second = (learner_for(formation(with_state=state), settings(algorithm)) for _ in range(3))
    fragment = fragment_of(formation(with_state=state), whole)
    for _ in range(4):
        whole.update([fragment])
    for _ in range(2):
        first.update([fragment])
    before = learner_for(formation(with_state=state), settings(algorithm)).state_dict()
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    for _ in range(2):
        second.update([fragment])
    assert whole.policy.version == second.policy.version == 4
    assert equal(whole.state_dict()["weights"], second.state_dict()["weights"])
    assert equal(whole.state_dict()["optimiser"], second.state_dict()["optimiser"])
    assert not equal(before["weights"], whole.state_dict()["weights"])


@BOTH
def test_padded_agents_change_nothing(algorithm: Algorithm) -> None:
    few = Bandit({"g": BOX}, 4, 3)
    learner, padded_learner = (learner_for(few, settings(algorithm, minibatch=24)) for _ in range(2))
    fragment = fragment_of(few, learner)
    padded = padded_with_garbage(fragment, 2)
    for _ in range(3):
        noted = learner.update([fragment])
        assert noted == padded_learner.update([padded])
    assert noted["samples"] == 4 * 3 * 12
    assert equal(learner.state_dict()["weights"], padded_learner.state_dict()["weights"])


def padded_with_garbage(fragment: Fragment, rows: int) -> Fragment:
    def padded(array: np.ndarray, value: float) -> np.ndarray:
        wide = np.full((*array.shape[:2], array.shape[2] + rows, *array.shape[3:]), value, dtype=array.dtype)
        wide[:, :, : array.shape[2]] = array
        return wide

    assert fragment.log_prob is not None and fragment.value is not None
    return replace(
        fragment, observation=padded(fragment.observation, np.nan), present=padded(fragment.present, False),
        action=padded(fragment.action, np.nan), reward=padded(fragment.reward, 0),
        log_prob=padded(fragment.log_prob, np.nan),
        terminated=padded(fragment.terminated, False), truncated=padded(fragment.truncated, False),
        value=padded(fragment.value, np.nan),
    )  # fmt: skip


def test_microbatches_add_up_to_the_minibatch() -> None:
    whole, shares = (learner_for(formation(), settings(Algorithm.ppo, microbatch=share)) for share in (None, 11))
    fragment = fragment_of(formation(), whole)
    one, other = whole.update([fragment]), shares.update([fragment])
    assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    for name, part in whole.policy.weights().items():
        np.testing.assert_allclose(part, shares.policy.weights()[name], rtol=1e-3, atol=1e-5)


def test_updates_by_formulas_are_those_by_autograd() -> None:
    written, graph = (learner_for(formation(with_state=True), settings(Algorithm.ppo)) for _ in range(2))
    assert isinstance(graph, PPOLearner) and graph._written is not None
    graph._written = None
    fragment = fragment_of(formation(with_state=True), written)
    assert written.update([fragment]) == pytest.approx(graph.update([fragment]), rel=1e-3, abs=1e-5)
    for name, part in written.policy.weights().items():
        np.testing.assert_allclose(part, graph.policy.weights()[name], rtol=1e-3, atol=1e-5)


@BOTH
def test_fragments_side_by_side_are_as_one(algorithm: Algorithm) -> None:
    config = settings(algorithm, minibatch=10_000)
    together, apart = (learner_for(formation(with_state=True), config) for _ in range(2))
    fragment = fragment_of(formation(with_state=True), together)
    parts = [fragment.of_rows(slice(0, 2)), fragment.of_rows(slice(2, 5))]
    assert sum(len(part.finals()[0]) for part in parts) == len(fragment.finals()[0]) > 0
    one, other = together.update([fragment]), apart.update(parts)
    assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


def test_ppo_normalises_its_targets_by_statistics_that_hold_them_already() -> None:
    """And old values by those of acting: that is what the network put out then."""
    learner: Any = learner_for(formation(), settings(Algorithm.ppo))
    learner.update([fragment_of(formation(seed=1), learner)])
    fragment, before = fragment_of(formation(seed=2), learner), learner.policy.normaliser.state()
    batch = batch_of([fragment], learner.policy, learner.config)
    old, new = ValueNormaliser(**before), ValueNormaliser(**before)
    new.update(batch.returns[batch.index])
    parts = learner._tensors(batch, np.zeros(len(batch.returns), dtype=np.int64), None)
    np.testing.assert_allclose(parts["returns"], new.normalise(batch.returns), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(parts["value"], old.normalise(batch.value), rtol=1e-5, atol=1e-6)
    assert learner.policy.normaliser == new != old


def test_vtrace_normalises_its_targets_by_statistics_that_hold_them_already(monkeypatch: pytest.MonkeyPatch) -> None:
    learner: Any = learner_for(formation(), settings(Algorithm.vtrace, minibatch=10_000, epochs=1))
    learner.update([fragment_of(formation(seed=1), learner)])
    fragment, expected = fragment_of(formation(seed=2), learner), ValueNormaliser(**learner.policy.normaliser.state())
    loss, seen = losses.value_loss, []

    def noted(outputs: Any, targets: Any, counted: Any, *, normaliser: Any, **more: Any) -> Any:
        seen.append((targets[counted].numpy(), normaliser.state()))
        return loss(outputs, targets, counted, normaliser=normaliser, **more)

    monkeypatch.setattr(losses, "value_loss", noted)
    learner.update([fragment])
    ((targets, state),) = seen
    assert state != expected.state()
    expected.update(targets)
    assert state == pytest.approx(expected.state())


def test_a_central_critic_knows_the_state_at_the_end_of_an_episode() -> None:
    learner = learner_for(formation(with_state=True), settings(Algorithm.ppo))
    fragment = fragment_of(formation(with_state=True), learner)
    states = fragment.final_states()
    assert states is not None
    assert states.shape == (2 * 15, 8)
    assert (states[:, -1] == 0).all(), "no time is left"
    assert len(batch_of([fragment], learner.policy, learner.config).index) == 12 * 15  # type: ignore[attr-defined]


def test_values_of_an_older_version_are_made_anew() -> None:
    learner = learner_for(formation(), settings(Algorithm.ppo))
    fragment = fragment_of(formation(), learner)
    assert noted_values(fragment, learner.policy) is fragment.value
    fresh = noted_values(replace(fragment, version=-1), learner.policy)
    np.testing.assert_allclose(fresh, fragment.value, rtol=1e-5, atol=1e-6)
    learner.update([fragment])
    assert not np.allclose(noted_values(fragment, learner.policy), fragment.value)


def test_nothing_to_learn_from_leaves_the_weights() -> None:
    for algorithm in Algorithm:
        learner = learner_for(formation(), settings(algorithm))
        fragment = fragment_of(formation(), learner)
        fragment.present[:] = False
        before = learner.policy.weights()
        assert learner.update([fragment])["samples"] == 0
        assert equal(before, learner.policy.weights())


@BOTH
def test_fragments_of_another_policy_are_refused_with_shapes(algorithm: Algorithm) -> None:
    learner = learner_for(formation(), settings(algorithm))
    other = Bandit({"g": CHOICE}, 2, 3)
    fragment = fragment_of(other, learner_for(other, settings(algorithm)))
    with pytest.raises(ValueError, match=r"observation of the fragment has shape \(13, 2, 3, 3\), \(\.\.\., 20\)"):
        learner.update([fragment])
    state = learner_for(other, settings(algorithm)).state_dict()
    with pytest.raises(ConfigError, match=r"weights: actor\.0\.weight has shape \(8, 3\), this policy has \(8, 20\)"):
        learner.load_state_dict(state)


def test_settings_out_of_range_are_named() -> None:
    for key, value in {"epochs": 0, "microbatch": 0, "clip": 0.0, "gamma": 1.5, "learning_rate": float("nan")}.items():
        with pytest.raises(ConfigError, match=f"{key}={value} is not allowed"):
            LearnerConfig(**{key: value})  # type: ignore[arg-type]
