"""What was drawn by priority is learned from by its importance weight."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from swarm_fragments import formation, fragment_of, learner_for, settings
from test_rank import SYNC, World, spec

from hpcjet.config.swarm.learner import Algorithm, Standardise
from hpcjet.config.swarm.pool import Order, PoolConfig, WhenFull
from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.swarm import losses
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.learners.chief import Chief
from hpcjet.swarm.learners.meeting import One
from hpcjet.swarm.learners.rank import Rank
from hpcjet.swarm.pool import Index, Key, entry_of

WAYS = pytest.mark.parametrize("way", ["ppo", "ppo, autograd", "vtrace"])
NORM = 1e9


def learner_of(way: str, **more: Any) -> Any:
    algorithm = Algorithm.vtrace if way == "vtrace" else Algorithm.ppo
    config = settings(
        algorithm,
        minibatch=100_000,
        epochs=1,
        max_grad_norm=NORM,
        standardise=Standardise.none,
        huber_delta=0.5,
        **more,
    )
    learner: Any = learner_for(formation(with_state=True), config)
    if way == "ppo, autograd":
        learner._written = None
    return learner


def gradient(way: str, fragments: Sequence[Fragment], weights: Sequence[float]) -> np.ndarray:
    """By which a learner as it begins would step."""
    learner, found = learner_of(way), []

    def note() -> None:
        parameters = learner.policy.modules.parameters()
        found.append(torch.cat([each.grad.reshape(-1) for each in parameters]).double().numpy())

    learner.optimiser.step = note
    learner.policy.normaliser.update(np.array([-3.0, 3.0]))
    learner.policy.normaliser.update_moments = lambda *moments: None  # the same for whatever is given
    learner.update(fragments, weights=weights)
    (made,) = found
    return np.asarray(made)


def three(way: str) -> list[Fragment]:
    return [fragment_of(formation(seed=seed, with_state=True), learner_of(way)) for seed in range(3)]


@WAYS
def test_a_weight_of_two_is_as_twice_the_fragment(way: str) -> None:
    one, other, last = three(way)
    weighted = gradient(way, [one, other, last], [2.0, 1.0, 1.0])
    assert np.abs(weighted).max() > 1e-3
    np.testing.assert_allclose(weighted * 3 / 4, gradient(way, [one, one, other, last], []), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(weighted, gradient(way, [last, one, other], [1.0, 2.0, 1.0]), rtol=1e-4, atol=1e-6)
    assert np.abs(weighted - gradient(way, [one, other, last], [])).max() > 1e-4


@WAYS
def test_what_is_drawn_unevenly_and_weighted_in_full_is_the_even_mean(way: str) -> None:
    """With beta=1 the expectation over draws is the uniform one, times 1 / the greatest of all weights."""
    fragments, priorities, alpha = three(way), np.array([1.0, 2.0, 5.0]), 0.6
    index = index_with(fragments, priorities, alpha=alpha, beta=1.0)
    weights = weights_by_number(index)
    chance = priorities**alpha / (priorities**alpha).sum()
    greatest = (1 / (3 * chance)).max()
    np.testing.assert_allclose(weights, 1 / (3 * chance) / greatest, rtol=1e-6)
    each = np.array([gradient(way, [part], []) for part in fragments])
    drawn = sum(chance[at] * gradient(way, [part], [weights[at]]) for at, part in enumerate(fragments))
    np.testing.assert_allclose(drawn * greatest, each.mean(axis=0), rtol=1e-4, atol=1e-6)
    assert np.abs((chance[:, None] * each).sum(axis=0) - each.mean(axis=0)).max() > 1e-4, "a bias without weights"


@pytest.mark.parametrize("order", [Order.uniform, Order.in_order])
def test_otherwise_all_weights_are_one(order: Order) -> None:
    index = index_with(three("ppo"), np.array([1.0, 2.0, 5.0]), order=order)
    assert weights_by_number(index).tolist() == [1, 1, 1]


def index_with(fragments: Sequence[Fragment], priorities: np.ndarray, **pool: Any) -> Index:
    """Fragments stay, and may be drawn any number of times."""
    config = PoolConfig(**{"order": Order.prioritised, "max_times": 0, "when_full": WhenFull.evict, **pool})
    index = Index(config, StalenessConfig(StalenessMode.hybrid, fragments=3), seed=0)
    index.join("pool", "node")
    for at, fragment in enumerate(fragments):
        assert index.begin(f"seat-{at}", 0, "node")
        index.insert(Key("pool", at), entry_of(
            fragment, source=f"seat-{at}", attempt=0, node="node", policy="p", group="g", first_world=at, first_step=0,
        ))  # fmt: skip
    index.update_priorities([Key("pool", at) for at in range(len(fragments))], [float(each) for each in priorities])
    return index


def weights_by_number(index: Index) -> np.ndarray:
    sample = index.sample("p", 200) if index.shelf.config.order is not Order.in_order else index.sample("p", 3)
    assert sample is not None
    found = {chosen.key.number: chosen.weight for chosen in sample.chosen}
    return np.array([found[at] for at in range(3)])


def test_losses_are_as_the_formulas_have_them() -> None:
    rng = np.random.default_rng(0)
    log_prob, old, advantage, value, returns = (torch.tensor(rng.normal(size=8)) for _ in range(5))
    weight, mask = torch.tensor(rng.uniform(0.1, 1, 8)), torch.tensor([1, 1, 0, 1, 1, 1, 0, 1], dtype=torch.bool)
    ratio, w = (log_prob - old).exp(), torch.where(mask, weight, 0.0)
    clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    found = losses.ppo_loss(log_prob, old, advantage, mask, weight=weight)
    torch.testing.assert_close(found, -(w * clipped).sum() / 6, rtol=1e-12, atol=0)
    found = losses.policy_gradient_loss(log_prob, advantage, mask, weight=weight)
    torch.testing.assert_close(found, -(w * log_prob * advantage).sum() / 6, rtol=1e-12, atol=0)
    found = losses.value_loss(value, returns, mask, weight=weight, total=11.0)
    torch.testing.assert_close(found, (w * (value - returns) ** 2 / 2).sum() / 11, rtol=1e-12, atol=0)


def test_ranks_give_each_learner_the_weights_of_its_part(tmp_path: Path) -> None:
    staleness = replace(SYNC, mode=StalenessMode.hybrid)
    world = World(staleness, PoolConfig(order=Order.prioritised, max_times=3))
    rank = Rank(spec(tmp_path, prioritised=True), One(), world)
    rank.chief = Chief(rank.spec, rank.learners, world, 1, rank.doing)
    learner: Any = rank.learners["agents"]
    update, sample, given, drawn = learner.update, world.sample, [], []

    def noted(fragments: Any, **more: Any) -> Any:
        given.append(more["weights"])
        return update(fragments, **more)

    def kept(policy: str, n: int) -> Any:
        found = sample(policy, n)
        if found is not None:
            drawn.append([chosen.weight for chosen in found.chosen])
        return found

    learner.update, world.sample = noted, kept  # type: ignore[method-assign]
    rank.run()
    assert given == drawn and len(given) == 4
    assert min(weight for weights in given for weight in weights) < 0.999
