"""Policies of torch: what they draw, how likely it is, and what they refuse."""

import numpy as np
import pytest
import torch
from swarm_bandit import BOX, CHOICE, MIXED
from torch import distributions

from hpcjet.errors import ConfigError
from hpcjet.swarm.policy import PolicyConfig, PolicySpec
from hpcjet.swarm.policy.noise import draw
from hpcjet.swarm.spaces.layout import ActionLayout, Categorical
from hpcjet.swarm.torch_backend import heads, make_policy

RNG = np.random.default_rng(0)


def seen(rows: int, features: int = 3) -> np.ndarray:
    return RNG.standard_normal((rows, features)).astype(np.float32)


def test_log_probabilities_and_entropies_are_those_of_torch() -> None:
    outputs, log_std = torch.randn(50, 6), torch.tensor([-0.3])
    two, real, three = outputs[:, :2], outputs[:, 2:3], outputs[:, 3:]
    actions = torch.cat([torch.randint(2, (50, 1)), torch.randn(50, 1), torch.randint(3, (50, 1))], dim=1).float()
    mask = torch.ones(50, 5, dtype=torch.bool)
    mask[:, 3] = actions[:, 2] == 1
    parts = [
        distributions.Categorical(logits=two),
        distributions.Normal(real.squeeze(-1), log_std.exp()),
        distributions.Categorical(logits=three.masked_fill(~mask[:, 2:], -torch.inf)),
    ]
    expected = sum(part.log_prob(actions[:, at]) for at, part in enumerate(parts))
    torch.testing.assert_close(heads.log_prob(MIXED, outputs, log_std, actions, mask), expected)
    probabilities = [part.probs for part in (parts[0], parts[2])]
    entropy = sum(-torch.where(p > 0, p * p.clamp(min=1e-30).log(), 0.0).sum(-1) for p in probabilities)
    torch.testing.assert_close(heads.entropy(MIXED, outputs, log_std, mask), entropy + parts[1].entropy())


def test_choices_are_drawn_as_often_as_they_are_likely() -> None:
    layout, n = ActionLayout((Categorical(4),)), 40_000
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.0]]).expand(n, 4)
    mask = torch.tensor([[True, True, False, True]]).expand(n, 4)
    noise = torch.from_numpy(draw(layout, n, np.random.default_rng(1)))
    drawn = heads.choose(layout, logits, torch.zeros(0), noise, mask)
    expected = logits[0].masked_fill(~mask[0], -torch.inf).softmax(-1)
    often = torch.bincount(drawn.flatten(), minlength=4) / n
    assert often[2] == 0
    assert (often - expected).abs().max() < 5 * (0.25 / n) ** 0.5


def test_a_forbidden_choice_gets_no_gradient() -> None:
    logits = torch.randn(8, 3, requires_grad=True)
    mask = torch.ones(8, 3, dtype=torch.bool)
    mask[:, 1] = False
    both = heads.log_prob(CHOICE, logits, torch.zeros(0), torch.zeros(8, 1), mask)
    (both + heads.entropy(CHOICE, logits, torch.zeros(0), mask)).sum().backward()
    assert logits.grad is not None
    assert logits.grad[:, 1].abs().max() == 0
    assert logits.grad[:, 0].abs().min() > 0


@pytest.mark.parametrize("layout", [BOX, CHOICE, MIXED], ids=["box", "choice", "mixed"])
def test_acting_tells_the_probability_that_learning_finds(layout: ActionLayout) -> None:
    policy = make_policy(PolicySpec(3, layout), PolicyConfig(log_std=-0.5), seed=1)
    observation = seen(64)
    acts = policy.act(observation, draw(layout, 64, np.random.default_rng(0)))
    assert acts.action.shape == (64, layout.columns)
    assert acts.action.dtype == layout.dtype
    found, _ = policy.evaluate(torch.from_numpy(observation), torch.from_numpy(acts.action), None)
    np.testing.assert_allclose(acts.log_prob, found.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(acts.value, policy.values(observation))
    greedy = policy.act(observation, None)
    assert (greedy.log_prob >= acts.log_prob - 1e-6).all()


def test_rows_of_absent_agents_change_nothing() -> None:
    policy = make_policy(PolicySpec(3, MIXED), PolicyConfig(), seed=1)
    observation, noise = seen(16), draw(MIXED, 16, RNG)
    plain = policy.act(observation, noise)
    observation[::2] = np.nan
    for with_nan, without in zip(policy.act(observation, noise), plain, strict=True):
        np.testing.assert_array_equal(with_nan[1::2], without[1::2])


def test_the_same_seed_gives_the_same_orthogonal_weights() -> None:
    spec = PolicySpec(64, BOX)
    one, same, other = (make_policy(spec, PolicyConfig(), seed).weights() for seed in (3, 3, 4))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    first = one["actor.0.weight"]
    assert not np.array_equal(first, other["actor.0.weight"])
    np.testing.assert_allclose(first @ first.T, 2 * np.eye(64), atol=1e-5)


def test_a_central_critic_sees_the_state_and_the_actor_does_not() -> None:
    policy = make_policy(PolicySpec(3, BOX, state_size=2), PolicyConfig(), seed=0)
    observation, here, there = seen(4), seen(4, 2), seen(4, 2)
    a, b = (policy.act(observation, None, state=state) for state in (here, there))
    np.testing.assert_array_equal(a.action, b.action)
    assert not np.array_equal(a.value, b.value)


def test_wrong_shapes_are_named() -> None:
    policy = make_policy(PolicySpec(3, CHOICE, has_mask=True, state_size=2), PolicyConfig(), seed=0)
    with pytest.raises(ValueError, match=r"observation has shape \(5, 4\), \(5, 3\) is wanted"):
        policy.values(seen(5, 4), seen(5, 2))
    with pytest.raises(ValueError, match="observation is float64, float32 is wanted"):
        policy.values(seen(5).astype(np.float64), seen(5, 2))
    with pytest.raises(ValueError, match=r"state has shape None, \(5, 2\) is wanted"):
        policy.values(seen(5))
    with pytest.raises(ValueError, match=r"mask has shape None, \(5, 3\) is wanted"):
        policy.act(seen(5), None, state=seen(5, 2))
    with pytest.raises(ValueError, match=r"noise has shape \(5, 2\), \(5, 3\) is wanted"):
        policy.act(seen(5), seen(5, 2), state=seen(5, 2))


def test_weights_of_another_form_are_refused_by_name() -> None:
    small, large = (make_policy(PolicySpec(3, BOX), PolicyConfig(hidden=[width]), seed=0) for width in (8, 16))
    with pytest.raises(ConfigError, match=r"actor\.0\.bias has shape \(16,\), this policy has \(8,\)"):
        small.load_weights(large.weights(), 1)
    assert small.version == 0
    plain = make_policy(PolicySpec(3, BOX), PolicyConfig(hidden=[8], value_norm=False), seed=0)
    with pytest.raises(ConfigError, match=r"value_normaliser\.beta"):
        plain.load_weights(small.weights(), 1)


@pytest.mark.parametrize("layout", [BOX, CHOICE, MIXED], ids=["box", "choice", "mixed"])
def test_parameters_and_gradients_stay_parts_of_one_vector(layout: ActionLayout) -> None:
    one, other = (make_policy(PolicySpec(3, layout), PolicyConfig(hidden=[5]), seed) for seed in (1, 2))
    one.load_weights(other.weights(), 7)
    one.flat.take_gradients()
    for each in one.modules.parameters():
        if each.numel():
            each.grad.fill_(1.0)
    parameters = dict(one.modules.named_parameters())
    for name, part in one.flat.views(one.flat.whole.detach()).items():
        assert part.data_ptr() == parameters[name].data_ptr() and part.data_ptr() % 64 == one.flat.whole.data_ptr() % 64
        torch.testing.assert_close(part, other.modules.get_parameter(name).detach())
    assert one.flat.gradient.sum() == sum(each.numel() for each in parameters.values())
