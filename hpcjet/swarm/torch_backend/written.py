"""The gradients of PPO without autograd: rows are gathered once, go through both networks and back in small shares.

The same bits whatever the number of threads: a minibatch is cut into shares and lanes by its length alone, each lane
adds up its own shares in order, and the lanes are added up in order.
"""

from typing import TYPE_CHECKING

import numpy as np

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.swarm.torch_backend.lanes import in_lanes
from hpcjet.swarm.torch_backend.networks import Layers, Networks, Pass, edges
from hpcjet.swarm.torch_backend.packing import Packed, Packing
from hpcjet.swarm.torch_backend.policy import TorchPolicy
from hpcjet.swarm.torch_backend.rooms import Rooms
from hpcjet.swarm.torch_backend.slopes import NOTED, Loss, Samples

if TYPE_CHECKING:
    from torch import Tensor

MOST_LANES = 16


class WrittenOut:
    """Gradients of one policy's loss."""

    def __init__(self, policy: TorchPolicy, config: LearnerConfig) -> None:
        import torch

        spec, form, modules = policy.spec, policy.config, policy.modules
        self.policy, self.config, self.packing = policy, config, Packing()
        self.networks = Networks(
            [modules["actor"], modules["critic"]], form.hidden, form.activation, spec.observation_size, spec.state_size
        )
        self._rooms = Rooms(lambda rows: _Room(self.networks, policy, config, rows), self.networks.row)
        self._sums: list[tuple[Tensor, Layers]] = []
        self._parameters = [*self.networks.parameters, policy.log_std]
        self.gradient = torch.zeros(self.networks.size + policy.log_std.numel())
        """By all parameters, as one vector, which ranks add up."""
        self._views = [*self._layers(self.gradient).parts(), self.gradient[self.networks.size :]]

    def backward(self, samples: Packed, chosen: "Tensor", total: float) -> "dict[str, Tensor]":
        """Fill `gradient` with that of these rows, their part of a minibatch of `total`; what `losses` notes."""
        import torch

        self.networks.take()
        self.gradient.zero_()
        if not len(chosen):
            return {}
        at = edges(len(chosen), self.networks.hidden, self.config.microbatch)
        lanes = np.array_split(np.arange(len(at) - 1), min(len(at) - 1, MOST_LANES))
        sums = self._sums_for(len(lanes))
        std = self.policy.log_std.detach().clone()

        def lane(number: int) -> None:
            with torch.inference_mode():
                for share in lanes[number]:
                    self._share(samples, chosen[at[share] : at[share + 1]], total, std, *sums[number])

        in_lanes(lane, range(len(lanes)))
        added = torch.stack([each for each, _ in sums]).sum(0)
        self.gradient.copy_(added[: -len(NOTED)])
        return dict(zip(NOTED, added[-len(NOTED) :] / total, strict=True))

    def give(self, *, most: float) -> "Tensor":
        """Set the gradients of the policy's parameters to `gradient`, clipped to this norm; the norm before."""
        import torch

        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        # As torch.nn.utils.clip_grad_norm_ has it.
        self.gradient.mul_((most / (norm + 1e-6)).clamp_(max=1.0))
        gradients = []
        for each in self._parameters:
            if each.grad is None:
                each.grad = torch.empty_like(each)
            gradients.append(each.grad)
        torch._foreach_copy_([*self.networks.split(gradients[:-1]), gradients[-1]], self._views)
        return norm

    def _share(
        self, samples: Packed, chosen: "Tensor", total: float, std: "Tensor", into: "Tensor", layers: Layers
    ) -> None:
        room = self._rooms.of(len(chosen))
        state = room.gather(samples, chosen)
        walk, to_std = room.walk, into[self.networks.size : -len(NOTED)]
        walk.forward(room.seen, state)
        room.loss.slope(walk.outs, std, room.samples, total, walk.slopes, to_std)
        walk.back(room.seen, state, layers)
        into[-len(NOTED) :] += room.loss.terms.sum(1)

    def _sums_for(self, lanes: int) -> "list[tuple[Tensor, Layers]]":
        """What each lane adds up, 0 at first: its gradient with what is noted, and views of it."""
        import torch

        for _ in range(len(self._sums), lanes):
            into = torch.zeros(len(self.gradient) + len(NOTED))
            self._sums.append((into, self._layers(into)))
        for into, _ in self._sums[:lanes]:
            into.zero_()
        return self._sums[:lanes]

    def _layers(self, flat: "Tensor") -> Layers:
        return self.networks.gradients(flat[: self.networks.size])


class _Room:
    """All that a share of n rows needs."""

    def __init__(self, networks: Networks, policy: TorchPolicy, config: LearnerConfig, n: int) -> None:
        import torch

        seen, actions = networks.observation + 1, policy.spec.actions.columns
        self.walk, self.loss = Pass(networks, n, back=True), Loss(policy.spec.actions, config, n)
        self._rows = torch.empty(n, seen + actions + 4)
        self.seen, self._rest = self._rows[:, :seen], self._rows[:, seen:].t()
        self._columns = torch.empty(self._rest.shape)
        log_prob, advantage, returns, value = self._columns[actions:]
        self.samples = Samples(self._columns[:actions], log_prob, advantage, returns, value, None)

    def gather(self, samples: Packed, chosen: "Tensor") -> "Tensor | None":
        """Take these rows in; answers with the global state of each, if there is one."""
        import torch

        torch.index_select(samples.rows, 0, chosen, out=self._rows)
        self._columns.copy_(self._rest)
        if samples.mask is not None:
            self.samples.mask = samples.mask.index_select(0, chosen).t()
        if samples.state is None or samples.state_of is None:
            return None
        return samples.state.index_select(0, samples.state_of.index_select(0, chosen))
