"""What learners of torch have in common: the step of the optimiser, and their state."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcjet.config.swarm.learner import LearnerConfig, Standardise
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.learning.ranks import ALONE, Ranks, shares
from hpcjet.swarm.torch_backend.policy import TorchPolicy
from hpcjet.swarm.value_normaliser import moments
from hpcjet.swarm.vector import Floats, Ints

if TYPE_CHECKING:
    from torch import Tensor


SUMMED = ("policy_loss", "value_loss", "entropy", "kl")
"""Metrics that ranks add up."""


class TorchLearner:
    """One policy. The order of samples comes from seed, version and rank: nothing of it is to be remembered."""

    def __init__(self, policy: TorchPolicy, config: LearnerConfig, seed: int, ranks: Ranks = ALONE) -> None:
        import torch

        self.policy, self.config, self.seed, self.ranks = policy, config, seed, ranks
        self.rng = np.random.default_rng(seed)
        policy.flat.take_gradients()
        self.optimiser = torch.optim.Adam(
            [policy.flat.whole], lr=config.learning_rate, eps=config.adam_epsilon, fused=True
        )
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": self.policy.version,
            "weights": self.policy.weights(),
            "optimiser": self._moments(),
            "seed": self.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_weights(state["weights"], state["version"])
        self._load_moments(state["optimiser"])
        self.seed = state["seed"]

    def begin(self, rate: float) -> None:
        """To be called at the begin of an update. `rate`: by what the learning rate is multiplied."""
        key = (self.policy.version, self.ranks.rank)
        self.rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.learning_rate * rate

    def minibatches(self, index: Ints, counts: Sequence[int], most: int) -> Iterator[tuple[Ints, int]]:
        """`index` in a new order, in shares as even as can be, with how many all ranks have in them: at most that many.

        `counts`: how long the index of each rank is. All ranks get the same number of shares, and some may be empty.
        """
        parts = shares(counts, -(-sum(counts) // most))
        ends = np.cumsum(parts[self.ranks.rank])[:-1]
        totals = [sum(part) for part in zip(*parts, strict=True)]
        yield from zip(np.split(self.rng.permutation(index), ends), totals, strict=True)

    def step(self) -> None:
        """Add up what ranks have of the gradient, clip it, and step."""
        from torch import nn

        flat = self.policy.flat
        # A rank that had no samples has zeros.
        self.ranks.sum_(flat.gradient)
        self.finish(nn.utils.clip_grad_norm_([flat.whole], self.config.max_grad_norm))
        flat.gradient.zero_()

    def finish(self, norm: "Tensor") -> None:
        """Step by the gradients as they are; `norm` is what they had before they were clipped."""
        self.optimiser.step()
        self.policy.keep_bounds()
        self.note(gradient_norm=norm)
        self._steps += 1

    def moments(self, values: Any, mask: Any = None) -> tuple[float, float, float]:
        """Number, sum and sum of squares of the entries that count, on all ranks."""
        import torch

        held = torch.tensor(moments(values, mask), dtype=torch.float64)
        self.ranks.sum_(held)
        count, total, squares = held.tolist()
        return count, total, squares

    def take_in(self, **seen: Floats | None) -> None:
        """Rows [n, ...] of observations and global states that were learned from, for the normalisers of inputs."""
        import torch

        for name, normaliser in self.policy.seen.items():
            rows = seen[name]
            held = torch.from_numpy(normaliser.moments(normaliser.no_rows if rows is None else rows))
            self.ranks.sum_(held)
            normaliser.update_moments(held.numpy())

    def standardised(self, advantages: "Tensor", mask: "Tensor", node: Ints) -> "Tensor":
        """Over the entries that count, as the settings say; `node`, shaped alike, says where each was made."""
        from hpcjet.swarm.losses import standardised

        which = self.config.standardise
        if which is Standardise.none:
            return advantages
        if which is Standardise.batch:
            return standardised(advantages, mask, ranks=self.ranks)
        number = self.ranks.most(int(node.max(initial=0)) + 1)
        return standardised(advantages, mask, groups=self.policy.tensor(node), number=number, ranks=self.ranks)

    def note(self, **parts: "Tensor") -> None:
        """Add to the metrics of this update."""
        for name, part in parts.items():
            part = part.detach()
            self._sums[name] = self._sums[name] + part if name in self._sums else part

    def metrics(self) -> dict[str, float]:
        """Means over the steps since the last call, with the parts of all ranks."""
        import torch

        steps, sums = self._steps, self._sums
        self._sums, self._steps = {}, 0
        if not steps:
            return {}
        held = torch.tensor([float(sums.get(name, 0.0)) for name in SUMMED], dtype=torch.float64)
        self.ranks.sum_(held)
        means = {name: total / steps for name, total in zip(SUMMED, held.tolist(), strict=True)}
        return {**means, **{name: float(total) / steps for name, total in sums.items() if name not in SUMMED}}

    def _moments(self) -> dict[str, Any]:
        """What the optimiser remembers, {parameter/name: array}; nothing before its first step."""
        flat = self.policy.flat
        found: dict[str, Any] = {}
        for key, part in self.optimiser.state[flat.whole].items():
            # How often it stepped is one number for all.
            each = flat.views(part) if part.dim() else dict.fromkeys(flat.names, part)
            found |= {f"{name}/{key}": view.cpu().numpy().copy() for name, view in each.items()}
        return found

    def _load_moments(self, held: Mapping[str, Any]) -> None:
        """The shapes are those of the weights, which are looked at before."""
        import torch

        flat = self.policy.flat
        self.optimiser.state.clear()
        state = self.optimiser.state[flat.whole] if held else {}
        for path, part in held.items():
            name, _, key = path.rpartition("/")
            given = torch.from_numpy(np.array(part)).to(self.policy.device)
            if key == "step":
                state[key] = given
            else:
                flat.views(state.setdefault(key, torch.zeros_like(flat.whole.detach())))[name].copy_(given)


def node_of_places(fragments: Sequence[Fragment], nodes: Sequence[int]) -> Ints:
    """Where each of the T * W * R places of each fragment was made; 0 where nothing is said."""
    number = nodes or [0] * len(fragments)
    return np.repeat(np.asarray(number, dtype=np.int64), [fragment.reward.size for fragment in fragments])


def weights_of(weights: Sequence[float], sizes: Sequence[int]) -> Floats | None:
    """The importance weight of each of so many places of each fragment; None if all are 1."""
    if all(weight == 1 for weight in weights):
        return None
    return np.repeat(np.asarray(weights, dtype=np.float32), sizes)
