"""The gradients of PPO without autograd: rows are gathered once, go through both networks and back in small shares."""

from itertools import pairwise
from typing import TYPE_CHECKING

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.swarm.torch_backend.networks import Networks, Pass, edges
from hpcjet.swarm.torch_backend.packing import Packed, Packing
from hpcjet.swarm.torch_backend.policy import TorchPolicy
from hpcjet.swarm.torch_backend.rooms import Rooms
from hpcjet.swarm.torch_backend.slopes import NOTED, Loss, Samples

if TYPE_CHECKING:
    from torch import Tensor


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
        self._parameters = [*self.networks.parameters, policy.log_std]
        self._sums = torch.zeros(self.networks.size + policy.log_std.numel() + len(NOTED))
        self._noted = self._sums[-len(NOTED) :]
        self.gradient = self._sums[: -len(NOTED)]
        """By all parameters, as one vector, which ranks add up."""
        by_networks, self._to_std = torch.split(self.gradient, [self.networks.size, policy.log_std.numel()])
        self._layers = self.networks.gradients(by_networks)
        self._views = [*self._layers.parts(), self._to_std]

    def backward(self, samples: Packed, chosen: "Tensor", total: float) -> "dict[str, Tensor]":
        """Fill `gradient` with that of these rows, their part of a minibatch of `total`; what `losses` notes."""
        import torch

        self.networks.take()
        self._sums.zero_()
        if not len(chosen):
            return {}
        std = self.policy.log_std.detach().clone()
        with torch.inference_mode():
            for begin, end in pairwise(edges(len(chosen), self.networks.hidden, self.config.microbatch)):
                self._share(samples, chosen[begin:end], total, std)
        return dict(zip(NOTED, self._noted / total, strict=True))

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

    def _share(self, samples: Packed, chosen: "Tensor", total: float, std: "Tensor") -> None:
        room = self._rooms.of(len(chosen))
        state = room.gather(samples, chosen)
        room.walk.forward(room.seen, state)
        room.loss.slope(room.walk.outs, std, room.samples, total, room.walk.slopes, self._to_std)
        room.walk.back(room.seen, state, self._layers)
        self._noted.add_(room.loss.terms.sum(1))


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
        self.samples.weight = None if samples.weight is None else samples.weight.index_select(0, chosen)
        if samples.state is None or samples.state_of is None:
            return None
        return samples.state.index_select(0, samples.state_of.index_select(0, chosen))
