"""Many rows through the networks of a policy, in shares, on threads."""

from typing import TYPE_CHECKING

from hpcjet.swarm.torch_backend.lanes import Lanes
from hpcjet.swarm.torch_backend.networks import Networks, Pass, edges
from hpcjet.swarm.torch_backend.rooms import Rooms

if TYPE_CHECKING:
    from torch import Tensor


class Forward:
    """What networks put out, without gradients; the same bits on any number of threads."""

    def __init__(self, networks: Networks, lanes: Lanes) -> None:
        self.networks, self._lanes, self._rooms = networks, lanes, Rooms(self._room)

    def __call__(self, observation: "Tensor", state: "Tensor | None") -> "Tensor":
        """[N, F] and [N, S] to [outputs of all networks, N]."""
        import torch

        self.networks.take()
        out = torch.empty(sum(self.networks.outputs), len(observation))
        at = edges(len(observation), self.networks.hidden)

        def share(number: int) -> None:
            rows = slice(at[number], at[number + 1])
            with torch.inference_mode():
                seen, walk = self._rooms.of(rows.stop - rows.start)
                seen[:, :-1] = observation[rows]
                out[:, rows] = walk.forward(seen, None if state is None else state[rows])

        self._lanes.run(share, range(len(at) - 1))
        return out

    def _room(self, rows: int) -> "tuple[Tensor, Pass]":
        import torch

        return torch.ones(rows, self.networks.observation + 1), Pass(self.networks, rows, back=False)
