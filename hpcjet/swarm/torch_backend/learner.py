"""What learners of torch have in common: the step of the optimiser, and their state."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.swarm.torch_backend.policy import TorchPolicy
from hpcjet.swarm.vector import Ints

if TYPE_CHECKING:
    from torch import Tensor


class TorchLearner:
    """One rank, one policy. The order of samples comes from the learner's own random numbers."""

    def __init__(self, policy: TorchPolicy, config: LearnerConfig, seed: int) -> None:
        import torch

        self.policy, self.config = policy, config
        self.rng = np.random.default_rng(seed)
        self.parameters = list(policy.modules.parameters())
        self.optimiser = torch.optim.Adam(self.parameters, lr=config.learning_rate, eps=config.adam_epsilon, fused=True)
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": self.policy.version,
            "weights": self.policy.weights(),
            "optimiser": _copied(self.optimiser.state_dict()),
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_weights(state["weights"], state["version"])
        self.optimiser.load_state_dict(_copied(state["optimiser"]))
        self.rng.bit_generator.state = state["rng"]

    def minibatches(self, index: Ints, most: int) -> Iterator[Ints]:
        """`index` in a new order, in shares as even as can be of at most that many."""
        order = self.rng.permutation(index)
        yield from np.array_split(order, -(-len(order) // most))

    def step(self) -> None:
        """Clip what gradients have added up to, and step."""
        from torch import nn

        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.note(gradient_norm=norm)
        self._steps += 1

    def note(self, **parts: "Tensor") -> None:
        """Add to the metrics of this update."""
        for name, part in parts.items():
            part = part.detach()
            self._sums[name] = self._sums[name] + part if name in self._sums else part

    def metrics(self) -> dict[str, float]:
        """Means over the steps since the last call."""
        means = {name: float(total) / max(self._steps, 1) for name, total in self._sums.items()}
        self._sums, self._steps = {}, 0
        return means


def _copied(state: Any) -> Any:
    import copy

    return copy.deepcopy(state)
