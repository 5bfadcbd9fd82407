"""Acting and learning in several processes."""

import pickle
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from swarm_threads import OfThread, Threads

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.learning.ranks import ALONE, Ranks
from hpcjet.swarm.trainer import Trainer, TrainerConfig
from hpcjet.swarm.trainers import Trainers, TrainersError

WORLDS = 4
WHOLE = LearnerConfig(minibatch=10_000, epochs=3)
"""All samples in one minibatch: then several ranks are to do what one does."""
PARTS = LearnerConfig(minibatch=60, epochs=2)


def worlds(rank: int, size: int) -> FormationVector:
    each = WORLDS // size
    return FormationVector(FormationConfig(agents=5, steps=9), each, seed=3, first_world=rank * each, stagger=True)


def failing(rank: int, size: int) -> FormationVector:
    if rank == 1:
        raise ValueError("these worlds cannot be made")
    return worlds(rank, size)


def config(learner: LearnerConfig, *, overlap: bool = False) -> TrainerConfig:
    policy = PolicyConfig(hidden=[16], observation_norm=True)
    return TrainerConfig(seed=7, steps=7, overlap=overlap, policy=policy, learner=learner)


@pytest.fixture(scope="module")
def learned() -> Any:
    """States of two processes after two iterations and after four, and of two that went on from those after two."""
    with Trainers(worlds, config(PARTS), 2) as first:
        for _ in range(2):
            first.iterate()
        middle = first.state_dicts()
        done = [first.iterate() for _ in range(2)][-1]
        end = first.state_dicts()
    with Trainers(worlds, config(PARTS), 2) as second:
        with pytest.raises(ConfigError, match="states=of 1 ranks is not allowed: there are 2"):
            second.load_state_dicts(middle[:1])
        second.load_state_dicts(pickle.loads(pickle.dumps(middle)))
        for _ in range(2):
            second.iterate()
        resumed = second.state_dicts()
    return done, end, resumed


def test_ranks_act_for_themselves_and_learn_the_same(learned: Any) -> None:
    done, (first, second), _ = learned
    assert equal(first["learners"], second["learners"])
    assert not equal(first["worlds"], second["worlds"]) and first["actor"] != second["actor"]
    assert first["agent_steps"] == 4 * 7 * 5 * WORLDS // 2
    assert done[0].done.learning == done[1].done.learning and done[0].cpu_seconds > 0
    assert done[0].done.learning["agent"]["samples"] == 7 * 5 * WORLDS


def test_a_resumed_one_is_bit_equal(learned: Any) -> None:
    _, end, resumed = learned
    assert equal(end, resumed)


def test_so_are_processes_and_threads(learned: Any) -> None:
    """And so a run with the same seed: nothing hangs on how ranks are run."""
    _, end, _ = learned

    def rank(ranks: OfThread) -> Any:
        trainer = Trainer(worlds(ranks.rank, ranks.size), config(PARTS), ranks)
        for _ in range(4):
            trainer.iterate()
        return trainer.state_dict()

    assert equal(end, Threads(2).all(rank))


def test_with_overlap_too_ranks_learn_the_same_however_they_are_run() -> None:
    with Trainers(worlds, config(PARTS, overlap=True), 2) as trainers:
        for _ in range(3):
            trainers.iterate()
        states = trainers.state_dicts()
    assert equal(states[0]["learners"], states[1]["learners"]) and states[0]["learners"]["agent"]["version"] == 2

    def rank(ranks: OfThread) -> Any:
        trainer = Trainer(worlds(ranks.rank, ranks.size), config(PARTS, overlap=True), ranks)
        for _ in range(3):
            trainer.iterate()
        state = trainer.state_dict()
        return {**state, "ahead": fragments_of(state)}

    assert equal([{**state, "ahead": fragments_of(state)} for state in states], Threads(2).all(rank))


def fragments_of(state: Any) -> Any:
    return {name: asdict(fragment) for name, fragment in state["ahead"].items()}


def test_updates_are_those_of_one_rank_with_all_of_the_data() -> None:
    one = Trainer(worlds(0, 1), config(WHOLE), ALONE)

    def rank(ranks: Ranks) -> Any:
        trainer = Trainer(worlds(ranks.rank, ranks.size), config(WHOLE), ranks)
        acted = []
        for _ in range(3):
            trainer.iterate()
            acted.append(pickle.loads(pickle.dumps(trainer.fragments("agent"))))
        return acted, trainer.policies["agent"].weights()

    first, second = Threads(2).all(rank)
    for mine, theirs in zip(first[0], second[0], strict=True):
        one.learners["agent"].update([*mine, *theirs])
    whole = one.policies["agent"].weights()
    before = Trainer(worlds(0, 1), config(WHOLE)).policies["agent"].weights()
    for name, part in whole.items():
        np.testing.assert_allclose(first[1][name], part, atol=1e-6, rtol=1e-6, err_msg=name)
    assert np.abs(whole["actor.0.weight"] - before["actor.0.weight"]).max() > 1e-4


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(part, other[name]) for name, part in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(np.array_equal(one, other))


def test_a_rank_that_fails_ends_all() -> None:
    with pytest.raises(TrainersError, match=r"rank 1: Traceback[\s\S]*these worlds cannot be made"):
        Trainers(failing, config(PARTS), 2)
    with pytest.raises(ConfigError, match="size=0 is not allowed"):
        Trainers(worlds, config(PARTS), 0)
