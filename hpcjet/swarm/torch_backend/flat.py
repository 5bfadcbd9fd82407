"""All parameters of a policy in one vector: an optimiser then makes one call for each step, not one for each."""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

ALIGNED = 16
"""Each parameter begins at a multiple of so many numbers, 64 bytes; those between are 0 and stay so."""


class Flat:
    """The parameters of `modules` are views of `whole` from now on, and once `take_gradients` was called so are their
    gradients of its. Who has looked at the memory of a parameter before looks at another one.
    """

    def __init__(self, modules: Any) -> None:
        import torch
        from torch import nn

        parameters = dict(modules.named_parameters())
        self._shapes = {name: tuple(each.shape) for name, each in parameters.items()}
        first = next(iter(parameters.values()))
        size = sum(map(_room, self._shapes.values()))
        self.whole = nn.Parameter(torch.zeros(size, dtype=first.dtype, device=first.device))
        for name, view in self.views(self.whole.detach()).items():
            parameters[name].data = view.copy_(parameters[name].detach())
        self._parameters = parameters

    @property
    def names(self) -> list[str]:
        return list(self._shapes)

    @property
    def gradient(self) -> "Tensor":
        assert self.whole.grad is not None, "take_gradients"
        return self.whole.grad

    def take_gradients(self) -> None:
        """Have the parameters' gradients at one place, 0 at first."""
        import torch

        if self.whole.grad is None:
            self.whole.grad = torch.zeros_like(self.whole)
        for name, view in self.views(self.whole.grad).items():
            if view.numel():
                self._parameters[name].grad = view

    def views(self, vector: "Tensor") -> "dict[str, Tensor]":
        """The part of each parameter in a vector like `whole`, in its shape."""
        found, at = {}, 0
        for name, shape in self._shapes.items():
            found[name] = vector[at : at + math.prod(shape)].view(shape)
            at += _room(shape)
        return found


def _room(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // ALIGNED) * ALIGNED
