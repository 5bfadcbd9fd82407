"""PPO's clip, the decoupled form, the value loss and its normaliser, and that padding counts for nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.swarm.losses import masked_mean, policy_gradient_loss, ppo_loss, standardised, value_loss
from hpcjet.swarm.value_normaliser import ValueNormaliser, moments

ONE = torch.ones(1)
CLIPPED = {(1.0, 1.5), (-1.0, 0.5)}


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [
        (1.0, 0.5, -0.5), (1.0, 0.8, -0.8), (1.0, 1.0, -1.0), (1.0, 1.2, -1.2), (1.0, 1.5, -1.2),
        (-1.0, 0.5, 0.8), (-1.0, 0.8, 0.8), (-1.0, 1.0, 1.0), (-1.0, 1.2, 1.2), (-1.0, 1.5, 1.5),
    ],
)  # fmt: skip
def test_clip(advantage: float, ratio: float, loss: float) -> None:
    log_probs = torch.tensor([ratio], dtype=torch.float64).log().requires_grad_()
    got = ppo_loss(log_probs, torch.zeros(1), torch.tensor([advantage]), ONE)
    assert got.item() == pytest.approx(loss, abs=1e-7)
    got.backward()
    assert log_probs.grad is not None
    if (advantage, ratio) in CLIPPED:
        assert log_probs.grad.item() == 0.0
    elif ratio not in (0.8, 1.2):  # at a corner of the clip any slope between is right
        assert log_probs.grad.item() == pytest.approx(-advantage * ratio)


def test_decoupled() -> None:
    torch.manual_seed(0)
    new, behaviour, proximal, advantages = (0.3 * torch.randn(64) for _ in range(4))
    mask = torch.ones(64)
    plain = ppo_loss(new, behaviour, advantages, mask)
    assert torch.equal(ppo_loss(new, behaviour, advantages, mask, proximal_log_probs=behaviour), plain)
    got = ppo_loss(new, behaviour, advantages, mask, proximal_log_probs=proximal)
    ratio = np.exp((new - proximal).numpy())
    clipped = np.minimum(ratio * advantages.numpy(), np.clip(ratio, 0.8, 1.2) * advantages.numpy())
    assert got.item() == pytest.approx(-(np.exp((proximal - behaviour).numpy()) * clipped).mean(), abs=1e-6)
    bounded = ppo_loss(new, behaviour, advantages, mask, proximal_log_probs=proximal, max_weight=1.0)
    weight = np.minimum(np.exp((proximal - behaviour).numpy()), 1.0)
    assert bounded.item() == pytest.approx(-(weight * clipped).mean(), abs=1e-6)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30, 0.0])
def test_a_padded_agent_is_as_good_as_none(garbage: float) -> None:
    """Agent 2 of 3 is dead from step 1 on: loss and gradients are those of the arrays without these entries."""
    torch.manual_seed(1)
    mask = torch.ones(5, 3)
    mask[1:, 2] = 0
    normaliser = ValueNormaliser(beta=0.9)

    def losses(parts: list[torch.Tensor], counted: torch.Tensor) -> list[torch.Tensor]:
        new, behaviour, advantages, outputs, returns, old, proximal = parts
        weighed = standardised(advantages, counted)
        return [
            ppo_loss(new, behaviour, weighed, counted),
            ppo_loss(new, behaviour, weighed, counted, proximal_log_probs=proximal),
            policy_gradient_loss(new, weighed, counted),
            value_loss(outputs, returns, counted),
            value_loss(outputs, returns, counted, old_outputs=old, clip=0.2, normaliser=normaliser, huber_delta=0.5),
        ]

    whole = [0.3 * torch.randn(5, 3) for _ in range(7)]
    normaliser.update(whole[4], mask)
    short = [part[mask != 0].clone().requires_grad_() for part in whole]
    padded = [torch.where(mask != 0, part, garbage).requires_grad_() for part in whole]
    for one, two in zip(losses(padded, mask), losses(short, torch.ones(11)), strict=True):
        assert one.item() == pytest.approx(two.item(), rel=1e-6) and torch.isfinite(one)
        one.backward()
        two.backward()
    for part, bare in zip(padded, short, strict=True):
        if bare.grad is not None:
            assert part.grad is not None
            torch.testing.assert_close(part.grad[mask != 0], bare.grad)
            assert (part.grad[mask == 0] == 0).all()


def test_shares_of_a_batch_add_up() -> None:
    torch.manual_seed(2)
    outputs, returns, mask = torch.randn(40), torch.randn(40), (torch.rand(40) < 0.7).float()
    whole = value_loss(outputs, returns, mask)
    parts = [value_loss(outputs[s], returns[s], mask[s], total=mask.sum()) for s in (slice(0, 31), slice(31, 40))]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-6)  # type: ignore[union-attr]
    assert value_loss(outputs, returns, mask * 0).item() == 0
    assert masked_mean(outputs, mask * 0).item() == 0


@given(st.lists(st.floats(-100, 100, width=32), min_size=2, max_size=30), st.integers(0, 1000))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_advantages_are_standardised_over_what_counts(drawn: list[float], seed: int) -> None:
    values = torch.tensor(drawn, dtype=torch.float64)
    mask = torch.from_numpy(np.random.default_rng(seed).random(len(drawn)) < 0.6)
    got = standardised(values, mask)
    counted = values[mask].numpy()
    if len(counted):
        np.testing.assert_allclose(got[mask], (counted - counted.mean()) / (counted.std() + 1e-5), atol=1e-6)
    assert (got[~mask] == 0).all()


# the normaliser


@pytest.mark.parametrize("make", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("beta", "mean", "variance"), [(0.99999, 13.75005625, 189.68780937), (0.9, 14.34210526, 192.59349030)]
)
def test_normaliser(make: type, beta: float, mean: float, variance: float) -> None:
    normaliser = ValueNormaliser(beta=beta)
    normaliser.update(make([1.0, 2.0, 3.0, 4.0]))
    assert (normaliser.mean, normaliser.variance) == pytest.approx((2.5, 1.25))
    normaliser.update(make([10.0, 20.0, 30.0, 40.0]))
    assert (normaliser.mean, normaliser.variance) == pytest.approx((mean, variance), abs=1e-6)
    back = normaliser.denormalise(normaliser.normalise(make([3.0, -4.0])))
    np.testing.assert_allclose(back, [3.0, -4.0], atol=1e-5)
    assert ValueNormaliser(**normaliser.state()) == normaliser


def test_what_little_was_seen_is_not_blown_up() -> None:
    """The divisor is 1e-5 or more, while beta is nearer to 1 than that."""
    normaliser = ValueNormaliser(beta=1 - 1e-6)
    normaliser.update(np.array([1.0, 2.0, 3.0, 4.0]))
    assert (normaliser.mean, normaliser.variance) == pytest.approx((0.25, 0.75 - 0.0625), abs=1e-6)


def test_a_constant_return_is_no_division_by_zero_and_no_returns_change_nothing() -> None:
    normaliser = ValueNormaliser()
    normaliser.update(np.array([]))
    assert normaliser == ValueNormaliser()
    normaliser.update(np.full(4, 3.0))
    assert normaliser.variance == 1e-2 and normaliser.normalise(3.0) == pytest.approx(0.0, abs=1e-9)


def test_ranks_update_alike_by_the_sum_of_their_moments() -> None:
    values = np.random.default_rng(0).normal(size=30)
    mask = values > -1
    one, two = ValueNormaliser(beta=0.9), ValueNormaliser(beta=0.9)
    one.update(values, mask)
    shares = [moments(values[s], mask[s]) for s in (slice(0, 21), slice(21, 30))]
    two.update_moments(*(sum(part) for part in zip(*shares, strict=True)))
    assert (one.mean, one.variance) == pytest.approx((two.mean, two.variance))


def test_clip_and_error_of_the_value_are_in_one_scale() -> None:
    """With returns around 1,000, a head that moves by less than the clip is never clipped; one that moves more is."""
    normaliser = ValueNormaliser(beta=0.5)
    returns = torch.tensor([900.0, 1100.0])
    normaliser.update(returns)
    old = normaliser.normalise(torch.tensor([1000.0, 1000.0]))
    targets = normaliser.normalise(returns)
    near, far = old + 0.1, old + 0.5
    mask = torch.ones(2)

    def loss(outputs: torch.Tensor) -> float:
        return value_loss(outputs, returns, mask, normaliser=normaliser, old_outputs=old, clip=0.2).item()

    assert loss(near) == pytest.approx(0.5 * (near - targets).square().mean().item(), rel=1e-5)
    plain, clipped = (0.5 * (x - targets).square() for x in (far, old + 0.2))
    assert loss(far) == pytest.approx(torch.maximum(plain, clipped).mean().item(), rel=1e-5)
    assert loss(far) > 0.5 * (far - targets).square().mean().item()
