"""The two networks of a policy, forwards and backwards, written out: no graph, no copies, a share of rows at a time.

Actor and critic have hidden layers of the same widths, so both go through each of these layers in one product of
matrices. Numbers stand by feature, [2, width + 1, n]: the last row is 1, and so a bias is a column of its weights like
any other. A share is small enough for all of it to stay in a processor's own cache; that, and not the arithmetic, is
most of what is gained over autograd. The results are those of autograd up to the order of sums.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hpcjet.config.swarm.policy import Activation

if TYPE_CHECKING:
    from torch import Tensor

SHARE = 512_000
"""Numbers in the hidden layers of a share, 2 MB: with less, the calls cost more than the cache gains."""


def share_rows(hidden: Sequence[int]) -> int:
    """How many rows to take at a time."""
    return max(64, SHARE // (2 * sum(hidden)))


@dataclass
class Layers:
    """Weights, or their gradients, biases in the last column."""

    first: "Tensor"
    """[2 * width, F + 1]"""
    state: "Tensor"
    """[width, S], what else the critic sees."""
    inner: "list[Tensor]"
    """[2, width, width before + 1] each."""
    actor: "Tensor"
    """[O, width + 1]"""
    critic: "Tensor"
    """[1, width + 1]"""

    @staticmethod
    def shapes(observation: int, state: int, hidden: Sequence[int], outputs: int) -> list[tuple[int, ...]]:
        inner = [(2, width, before + 1) for before, width in pairwise(hidden)]
        ends = [(outputs, hidden[-1] + 1), (1, hidden[-1] + 1)]
        return [(2 * hidden[0], observation + 1), (hidden[0], state), *inner, *ends]

    @staticmethod
    def of(flat: "Tensor", shapes: list[tuple[int, ...]]) -> "Layers":
        """Views of one vector."""
        parts, at = [], 0
        for shape in shapes:
            size = math.prod(shape)
            parts.append(flat[at : at + size].view(shape))
            at += size
        first, state, *inner, actor, critic = parts
        return Layers(first, state, inner, actor, critic)

    def parts(self) -> "list[Tensor]":
        """Views in the order of the parameters of actor and critic: weight and bias, layer by layer."""
        width = len(self.state)
        pairs: list[list[Tensor]] = [[], []]
        for which, (own, more) in enumerate(((self.first[:width], None), (self.first[width:], self.state))):
            weights = [own[:, :-1]] if more is None or not more.numel() else [own[:, :-1], more]
            pairs[which] += [*weights, own[:, -1]]
            for inner in self.inner:
                pairs[which] += [inner[which][:, :-1], inner[which][:, -1]]
        for which, last in enumerate((self.actor, self.critic)):
            pairs[which] += [last[:, :-1], last[:, -1]]
        return pairs[0] + pairs[1]


class Networks:
    """The weights of a policy's networks, side by side."""

    def __init__(
        self, modules: Any, hidden: Sequence[int], activation: Activation, observation: int, state: int
    ) -> None:
        import torch

        self.parameters = [*modules["actor"].parameters(), *modules["critic"].parameters()]
        self.hidden, self.observation, self.state = list(hidden), observation, state
        self.outputs = len(modules["actor"][-1].bias)
        self.tanh = activation is Activation.tanh
        self.shapes = Layers.shapes(observation, state, hidden, self.outputs)
        self.size = sum(math.prod(shape) for shape in self.shapes)
        """Numbers in all layers."""
        self.weights = Layers.of(torch.zeros(self.size), self.shapes)
        self._views = self.weights.parts()
        self._sources = self.split_parameters([each.detach() for each in self.parameters])

    def take(self) -> None:
        """Copy in what the parameters are now."""
        import torch

        torch._foreach_copy_(self._views, self._sources)

    def split(self, flat: "Tensor") -> "list[Tensor]":
        """Views of a vector of `size`, as `split_parameters` has those of the parameters."""
        return Layers.of(flat, self.shapes).parts()

    def split_parameters(self, parameters: "list[Tensor]") -> "list[Tensor]":
        """The critic's first weights in two, those of the observation and those of the state."""
        if not self.state:
            return parameters
        at = len(parameters) // 2
        first = parameters[at]
        halves = [first[:, : self.observation], first[:, self.observation :]]
        return [*parameters[:at], *halves, *parameters[at + 1 :]]


class Pass:
    """Room for a share of `n` rows to go through `networks` and back. One thread at a time."""

    def __init__(self, networks: Networks, n: int) -> None:
        import torch

        self.networks, self.n = networks, n
        hidden, outputs = networks.hidden, networks.outputs
        room = [torch.ones(2, width + 1, n) for width in hidden]
        self.kept, self.active = room, [each[:, :-1] for each in room]
        self.before = [torch.empty(2, width, n) for width in hidden]
        self.out = torch.empty(outputs + 1, n)
        self.mean, self.value = self.out[:outputs], self.out[outputs:]
        self.slope = torch.empty(outputs + 1, n)
        """To be filled before `back`: the gradient by `out`."""
        self.slope_mean, self.slope_value = self.slope[:outputs], self.slope[outputs:]
        w = networks.weights
        self._inner_back = [each[:, :, :-1].transpose(1, 2) for each in w.inner]
        self._last_back = w.actor[:, :-1].t(), w.critic[:, :-1].t()

    def forward(self, seen: "Tensor", state: "Tensor | None") -> None:
        """Fill `out` from rows [n, F + 1], the last column 1, and [n, S]."""
        import torch

        w, before, active, kept = self.networks.weights, self.before, self.active, self.kept
        activate: Any = torch.tanh if self.networks.tanh else _relu
        torch.mm(w.first, seen.t(), out=before[0].view(-1, self.n))
        if state is not None:
            before[0][1].addmm_(w.state, state.t())
        activate(before[0], out=active[0])
        for at, inner in enumerate(w.inner):
            torch.bmm(inner, kept[at], out=before[at + 1])
            activate(before[at + 1], out=active[at + 1])
        torch.mm(w.actor, kept[-1][0], out=self.mean)
        torch.mm(w.critic, kept[-1][1], out=self.value)

    def back(self, seen: "Tensor", state: "Tensor | None", gradients: Layers) -> None:
        """Add to the gradients what follows from `slope`. What `forward` kept is used up."""
        import torch

        kept, down = self.kept, self.before
        gradients.actor.addmm_(self.slope_mean, kept[-1][0].t())
        gradients.critic.addmm_(self.slope_value, kept[-1][1].t())
        for which, slope in enumerate((self.slope_mean, self.slope_value)):
            torch.mm(self._last_back[which], slope, out=down[-1][which])
        for at in reversed(range(len(kept))):
            self._through(at)
            if at:
                gradients.inner[at - 1].baddbmm_(down[at], kept[at - 1].transpose(1, 2))
                torch.bmm(self._inner_back[at - 1], down[at], out=down[at - 1])
        gradients.first.addmm_(down[0].view(-1, self.n), seen)
        if state is not None:
            gradients.state.addmm_(down[0][1], state)

    def _through(self, at: int) -> None:
        """From the slope by what layer `at` puts out to that by what goes into its activation, in place."""
        import torch

        slope, active = self.before[at], self.active[at]
        if self.networks.tanh:
            torch.ops.aten.tanh_backward.grad_input(slope, active, grad_input=slope)
        else:
            torch.ops.aten.threshold_backward.grad_input(slope, active, 0, grad_input=slope)


def _relu(before: "Tensor", *, out: "Tensor") -> None:
    import torch

    torch.clamp(before, min=0, out=out)
