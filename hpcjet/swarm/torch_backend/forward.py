"""Many rows through the networks of a policy, in shares."""

from itertools import pairwise
from typing import TYPE_CHECKING

from hpcjet.swarm.torch_backend.networks import Networks, Pass, edges
from hpcjet.swarm.torch_backend.rooms import Rooms

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = 16
"""Rows are filled up to a multiple of this, with what was there before: a product of matrices adds up the last few rows
in another order, so what one agent does would hang on how many others there are."""


class Forward:
    """What networks put out, without gradients."""

    def __init__(self, networks: Networks) -> None:
        self.networks, self._rooms = networks, Rooms(self._room, networks.row)

    def __call__(self, observation: "Tensor", state: "Tensor | None") -> "Tensor":
        """[N, F] and [N, S] to [outputs of all networks, N]."""
        import torch

        self.networks.take()
        out = torch.empty(sum(self.networks.outputs), len(observation))
        with torch.inference_mode():
            for begin, end in pairwise(edges(len(observation), self.networks.hidden)):
                rows, n = slice(begin, end), end - begin
                seen, more, walk = self._rooms.of(-(-n // WHOLE) * WHOLE)
                seen[:n, :-1] = observation[rows]
                if state is not None:
                    more[:n] = state[rows]
                out[:, rows] = walk.forward(seen, None if state is None else more)[:, :n]
        return out

    def _room(self, rows: int) -> "tuple[Tensor, Tensor, Pass]":
        import torch

        networks = self.networks
        return (
            torch.ones(rows, networks.observation + 1),
            torch.ones(rows, networks.state),
            Pass(networks, rows, back=False),
        )
