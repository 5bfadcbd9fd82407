"""The networks of a policy, forwards and backwards, written out: no graph, no copies, a share of rows at a time.

Actor and critic have hidden layers of the same widths, so both go through each of these layers in one product of
matrices. Numbers stand by feature, [K, width + 1, n] for K networks: the last row is 1, and so a bias is a column of
its weights like any other. A share is small enough to stay near the processor; that, and not the arithmetic, is most of
what is gained over autograd. The results are those of autograd up to the order of sums.
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


def edges(rows: int, hidden: Sequence[int], most: int | None = None) -> list[int]:
    """Where shares of so many rows begin and end."""
    share = max(64, SHARE // (2 * sum(hidden)))
    shares = -(-rows // min(share, most or share))
    return [rows * at // shares for at in range(shares + 1)]


@dataclass
class Layers:
    """Weights, or their gradients, biases in the last column.

    Some are views of what stands the other way round in memory, where products of matrices are faster for it.
    """

    first: "Tensor"
    """[K * width, F + 1]"""
    state: "Tensor"
    """[width, S], what else the last network sees."""
    inner: "list[Tensor]"
    """[K, width, width before + 1] each."""
    last: "list[Tensor]"
    """[O, width + 1] of each network."""

    @staticmethod
    def weights(shapes: list[tuple[int, ...]], networks: int) -> "Layers":
        import torch

        first, state, *inner = (_turned(torch.zeros(math.prod(shape)), shape) for shape in shapes)
        return Layers(first, state, inner[:-networks], inner[-networks:])

    @staticmethod
    def gradients(flat: "Tensor", shapes: list[tuple[int, ...]], networks: int) -> "Layers":
        """Views of one vector."""
        import torch

        flats = torch.split(flat, [math.prod(shape) for shape in shapes])
        parts = [each.view(shape) for each, shape in zip(flats, shapes, strict=True)]
        at = slice(2, -networks)
        inner = [_turned(each, shape) for each, shape in zip(flats[at], shapes[at], strict=True)]
        return Layers(parts[0], parts[1], inner, parts[-networks:])

    def parts(self) -> "list[Tensor]":
        """Views in the order of the parameters: network by network, layer by layer, weight and bias."""
        found = []
        for which, last in enumerate(self.last):
            own = self.first.view(len(self.last), len(self.state), -1)[which]
            with_state = self.state.numel() and which == len(self.last) - 1
            found += [own[:, :-1], *([self.state] if with_state else []), own[:, -1]]
            for inner in (*(each[which] for each in self.inner), last):
                found += [inner[:, :-1], inner[:, -1]]
        return found


class Networks:
    """The weights of one or both networks of a policy, side by side; a critic stands last."""

    def __init__(
        self, modules: Sequence[Any], hidden: Sequence[int], activation: Activation, observation: int, state: int
    ) -> None:
        self.hidden, self.observation, self.state = list(hidden), observation, state
        self.tanh = activation is Activation.tanh
        self.number, self.outputs = len(modules), [len(each[-1].bias) for each in modules]
        inner = [(self.number, width, before + 1) for before, width in pairwise(hidden)]
        last = [(each, hidden[-1] + 1) for each in self.outputs]
        self.shapes = [(self.number * hidden[0], observation + 1), (hidden[0], state), *inner, *last]
        self.size = sum(math.prod(shape) for shape in self.shapes)
        """Numbers in all layers."""
        self.row = 4.0 * (2 * self.number * sum(hidden) + 2 * sum(self.outputs) + observation + state)
        """About how many bytes of room a row takes."""
        self.weights = Layers.weights(self.shapes, self.number)
        self._views = self.weights.parts()
        self.parameters = [part for each in modules for part in each.parameters()]
        self._sources = self.split([each.detach() for each in self.parameters])

    def gradients(self, flat: "Tensor") -> Layers:
        """Views of a vector of `size`."""
        return Layers.gradients(flat, self.shapes, self.number)

    def take(self) -> None:
        """Copy in what the parameters are now."""
        import torch

        torch._foreach_copy_(self._views, self._sources)

    def split(self, parameters: "list[Tensor]") -> "list[Tensor]":
        """As `Layers.parts`: a critic's first weights in two, those of the observation and those of the state."""
        if not self.state:
            return parameters
        at = len(parameters) * (self.number - 1) // self.number
        first = parameters[at]
        halves = [first[:, : self.observation], first[:, self.observation :]]
        return [*parameters[:at], *halves, *parameters[at + 1 :]]


class Pass:
    """Room for a share of `n` rows to go through `networks` and back. One thread at a time."""

    def __init__(self, networks: Networks, n: int, *, back: bool) -> None:
        import torch

        self.networks, self.n = networks, n
        self.kept = [torch.ones(networks.number, width + 1, n) for width in networks.hidden]
        """Of the layers, after their activation."""
        self._active = [each[:, :-1] for each in self.kept]
        self._before = [torch.empty(networks.number, width, n) for width in networks.hidden]
        self.out = torch.empty(sum(networks.outputs), n)
        self.outs = torch.split(self.out, networks.outputs)
        if back:
            self.slope = torch.empty_like(self.out)
            """To be filled before `back`: the gradient by `out`."""
            self.slopes = torch.split(self.slope, networks.outputs)
            w = networks.weights
            self._inner_back = [each[:, :, :-1].transpose(1, 2) for each in w.inner]
            self._last_back = [each[:, :-1].t() for each in w.last]

    def forward(self, seen: "Tensor", state: "Tensor | None") -> "Tensor":
        """Fill `out` from rows [n, F + 1], the last column 1, and [n, S]."""
        import torch

        w, before, active, kept = self.networks.weights, self._before, self._active, self.kept
        activate: Any = torch.tanh if self.networks.tanh else _relu
        torch.mm(w.first, seen.t(), out=before[0].view(-1, self.n))
        if state is not None:
            before[0][-1].addmm_(w.state, state.t())
        activate(before[0], out=active[0])
        for at, inner in enumerate(w.inner):
            torch.bmm(inner, kept[at], out=before[at + 1])
            activate(before[at + 1], out=active[at + 1])
        for which, last in enumerate(w.last):
            torch.mm(last, kept[-1][which], out=self.outs[which])
        return self.out

    def back(self, seen: "Tensor", state: "Tensor | None", gradients: Layers) -> None:
        """Add to the gradients what follows from `slope`. What `forward` kept is used up."""
        import torch

        kept, down = self.kept, self._before
        for which, slope in enumerate(self.slopes):
            gradients.last[which].addmm_(slope, kept[-1][which].t())
            torch.mm(self._last_back[which], slope, out=down[-1][which])
        for at in reversed(range(len(kept))):
            self._through(at)
            if at:
                gradients.inner[at - 1].transpose(1, 2).baddbmm_(kept[at - 1], down[at].transpose(1, 2))
                torch.bmm(self._inner_back[at - 1], down[at], out=down[at - 1])
        gradients.first.addmm_(down[0].view(-1, self.n), seen)
        if state is not None:
            gradients.state.addmm_(down[0][-1], state)

    def _through(self, at: int) -> None:
        """From the slope by what layer `at` puts out to that by what goes into its activation, in place."""
        import torch

        slope, active = self._before[at], self._active[at]
        if self.networks.tanh:
            torch.ops.aten.tanh_backward.grad_input(slope, active, grad_input=slope)
        else:
            torch.ops.aten.threshold_backward.grad_input(slope, active, 0, grad_input=slope)


def _turned(flat: "Tensor", shape: tuple[int, ...]) -> "Tensor":
    """Of this shape, with its columns one after the other in memory."""
    return flat.view(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)


def _relu(before: "Tensor", *, out: "Tensor") -> None:
    import torch

    torch.clamp(before, min=0, out=out)
