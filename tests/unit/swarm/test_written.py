"""Gradients written out are those of autograd, and the same bits each time."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.config.swarm.policy import Activation, PolicyConfig
from hpcjet.swarm.policy.interface import PolicySpec
from hpcjet.swarm.spaces.layout import ActionLayout, Categorical, Continuous
from hpcjet.swarm.torch_backend.policy import TorchPolicy
from hpcjet.swarm.torch_backend.ppo import PPOLearner
from hpcjet.swarm.torch_backend.rooms import MOST, Rooms
from hpcjet.swarm.torch_backend.written import WrittenOut

BOX = ActionLayout((Continuous((-1.0, -1.0), (1.0, 1.0)),))
CHOICE = ActionLayout((Categorical(5),))
BOTH = ActionLayout((Categorical(3), Continuous((-1.0,), (1.0,)), Categorical(4), Continuous((0.0, 0.0), (1.0, 1.0))))
PLAIN: dict[str, Any] = {}
ALL_ON = {"value_clip": 0.3, "huber_delta": 0.5, "entropy_coefficient": 0.02, "microbatch": 37}
WEIGHTED: dict[str, Any] = {**ALL_ON}
SEEN, PLACES, CHOSEN = 6, 500, 300


@pytest.fixture
def double() -> Iterator[None]:
    """So that only a wrong formula, and not rounding, makes a difference."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


CASES = [
    pytest.param(layout, mask, state, hidden, activation, config, id=f"{name}-{mask}-{state}-{len(hidden)}-{kind}")
    for (name, layout, mask), state, hidden, activation, (kind, config) in product(
        [("box", BOX, False), ("choice", CHOICE, False), ("choice", CHOICE, True), ("both", BOTH, True)],
        [0, 3],
        [[16], [12, 9, 7]],
        list(Activation),
        [("plain", PLAIN), ("all", ALL_ON), ("weighted", WEIGHTED)],
    )
]


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(("layout", "mask", "state", "hidden", "activation", "config"), CASES)
def test_as_autograd(
    layout: ActionLayout, mask: bool, state: int, hidden: list[int], activation: Activation, config: dict[str, Any]
) -> None:
    policy = policy_with(layout, mask, state, PolicyConfig(hidden=hidden, activation=activation))
    learner = PPOLearner(policy, LearnerConfig(**config), seed=1)
    parts = samples_for(policy, weighted=config is WEIGHTED)
    chosen = torch.from_numpy(np.random.default_rng(1).permutation(PLACES)[:CHOSEN])
    total = 2.5 * CHOSEN

    taken = {name: part.index_select(0, chosen) for name, part in parts.items() if name != "state"}
    if state:
        taken["state"] = parts["state"].index_select(0, taken.pop("state_of"))
    loss, noted = learner.losses(taken, torch.tensor(total))
    loss.backward()  # type: ignore[no-untyped-call]
    wanted = {name: each.grad for name, each in policy.modules.named_parameters() if each.grad is not None}
    assert len(wanted) >= 2 * (len(hidden) + 1) * 2 and all(bool((each != 0).any()) for each in wanted.values())
    policy.modules.zero_grad()

    written = WrittenOut(policy, learner.config)
    found = written.backward(written.packing.of(parts, torch.arange(PLACES)), chosen, total)
    norm = written.give(most=1e9)
    for name, each in policy.modules.named_parameters():
        if name in wanted:
            torch.testing.assert_close(each.grad, wanted[name], rtol=1e-9, atol=1e-12)
    for name, part in noted.items():
        torch.testing.assert_close(found[name], part, rtol=1e-9, atol=1e-12)
    whole = torch.cat([each.reshape(-1) for each in wanted.values()])
    torch.testing.assert_close(norm, whole.norm(), rtol=1e-9, atol=1e-12)


def test_weights_are_of_one_batch_alone() -> None:
    policy = policy_with(CHOICE, False, 0, PolicyConfig(hidden=[16]))
    written, every = WrittenOut(policy, LearnerConfig(entropy_coefficient=0.1)), torch.arange(PLACES)
    made = []
    for weighted in (False, True, False):
        written.backward(written.packing.of(samples_for(policy, weighted=weighted), every), every, 10.0)
        made.append(written.gradient.clone())
    assert torch.equal(made[0], made[2]) and not torch.allclose(made[0], made[1], rtol=0.1)


def test_clipped_as_torch_clips() -> None:
    policy = policy_with(BOX, False, 0, PolicyConfig(hidden=[16]))
    written, every = WrittenOut(policy, LearnerConfig()), torch.arange(PLACES)
    parts = written.packing.of(samples_for(policy), every)
    written.backward(parts, every, 10.0)
    written.give(most=1e9)
    torch.nn.utils.clip_grad_norm_(policy.modules.parameters(), 0.5)
    wanted = [each.grad.clone() for each in policy.modules.parameters()]
    written.backward(parts, every, 10.0)
    assert written.give(most=0.5) > 0.5
    for each, part in zip(policy.modules.parameters(), wanted, strict=True):
        torch.testing.assert_close(each.grad, part)


def test_same_bits_each_time() -> None:
    """Whatever the rooms hold from before."""
    policy = policy_with(BOTH, False, 3, PolicyConfig(hidden=[16, 16]))
    made = []
    for _ in range(2):
        written = WrittenOut(policy, LearnerConfig(microbatch=8))
        for _ in range(3):
            samples = written.packing.of(samples_for(policy), torch.arange(PLACES))
            written.backward(samples, torch.arange(PLACES), float(PLACES))
            made.append(written.gradient.numpy().tobytes())
            written.backward(samples, torch.arange(PLACES - 30), 1.0)
    assert len(set(made)) == 1


def test_a_rank_without_samples_adds_nothing() -> None:
    policy = policy_with(BOX, False, 0, PolicyConfig(hidden=[16]))
    written = WrittenOut(policy, LearnerConfig())
    samples = written.packing.of(samples_for(policy), torch.arange(PLACES))
    written.backward(samples, torch.arange(PLACES), 10.0)
    assert written.backward(samples, torch.arange(0), 10.0) == {} and not written.gradient.any()


def policy_with(layout: ActionLayout, mask: bool, state: int, config: PolicyConfig) -> TorchPolicy:
    """Weights larger than at the begin, so that all of the network bends."""
    policy = TorchPolicy(PolicySpec(SEEN, layout, mask, state), config, seed=3)
    torch.manual_seed(4)
    for each in policy.modules.parameters():
        each.data.add_(0.3 * torch.randn_like(each))
    return policy


def samples_for(policy: TorchPolicy, *, weighted: bool = False) -> dict[str, torch.Tensor]:
    """Of a policy that is not far from this one."""
    layout, rng = policy.spec.actions, np.random.default_rng(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape)).to(torch.get_default_dtype())

    columns = [
        rng.normal(size=(PLACES, part.columns))
        if isinstance(part, Continuous)
        else rng.integers(0, part.n, (PLACES, 1))
        for part in layout.parts
    ]
    whole = np.concatenate(columns, axis=1)
    integers = layout.dtype == np.int64
    action = torch.from_numpy(whole).to(torch.int64 if integers else torch.get_default_dtype())
    parts = {"observation": drawn(PLACES, SEEN), "action": action}
    parts |= {name: drawn(PLACES) for name in ("advantage", "returns", "value")}
    allowed = None
    if policy.spec.has_mask:
        picks = [
            column[:, 0] for column, part in zip(columns, layout.parts, strict=True) if isinstance(part, Categorical)
        ]
        sizes = [part.n for part in layout.parts if isinstance(part, Categorical)]
        allowed = torch.from_numpy(rng.random((PLACES, layout.choices)) < 0.6)
        for start, picked in zip(np.cumsum([0, *sizes]), picks, strict=False):
            allowed[torch.arange(PLACES), torch.from_numpy(start + picked)] = True
        parts["action_mask"] = allowed
    if policy.spec.state_size:
        parts["state"] = drawn(20, policy.spec.state_size)
        parts["state_of"] = torch.from_numpy(rng.integers(0, 20, PLACES))
    if weighted:
        parts["weight"] = torch.from_numpy(rng.uniform(0.05, 1, PLACES)).to(torch.get_default_dtype())
    with torch.no_grad():
        parts["log_prob"] = policy.evaluate(parts["observation"], action, allowed)[0] + 0.3 * drawn(PLACES)
    return parts


def test_rooms_are_kept_up_to_a_number_of_bytes() -> None:
    made: list[int] = []
    first, second = (Rooms(lambda rows: made.append(rows) or [rows], row=MOST / 10) for _ in range(2))  # type: ignore[func-returns-value]
    room = first.of(4)
    assert second.of(4) is not room and first.of(4) is room
    assert made == [4, 4]
    assert first.of(3)[0] == 3, "11 tenths: the oldest has to go"
    assert first.of(4) is room and made == [4, 4, 3]
    second.of(4)
    assert made == [4, 4, 3, 4]
    assert second.of(50) is second.of(50), "one may be too large"
