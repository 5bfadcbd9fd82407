"""The gradients of PPO without autograd: rows are gathered once, go through both networks and back in small shares.

The same numbers whatever the number of threads: a minibatch is cut into lanes and shares by its length alone, each lane
adds up its own shares in order, and the lanes are added up in order.
"""

from dataclasses import dataclass
from threading import local
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.swarm.torch_backend.lanes import Lanes
from hpcjet.swarm.torch_backend.networks import Layers, Networks, Pass, share_rows
from hpcjet.swarm.torch_backend.policy import TorchPolicy
from hpcjet.swarm.torch_backend.slopes import NOTED, Loss, Samples

if TYPE_CHECKING:
    from torch import Tensor

MOST_LANES = 16
EVEN = 4
"""Shares come in multiples of this, so that 2 or 4 threads have equal work."""
MOST_ROOMS = 4
"""Sizes of shares that a thread keeps room for."""


@dataclass
class Packed:
    """n samples side by side: a row is gathered in one go."""

    rows: "Tensor"
    """[n, C]: observation, 1, action, log-probability, advantage, return, value."""
    mask: "Tensor | None"
    """[n, M]"""
    state: "Tensor | None"
    """[K, S]"""
    state_of: "Tensor | None"
    """[n], places in `state`."""


def packed(parts: "dict[str, Tensor]", index: "Tensor") -> Packed:
    """Those samples of a batch."""
    import torch

    observation, action = parts["observation"], parts["action"]
    width, columns = observation.shape[1], action.shape[1]
    rows = torch.empty(len(index), width + columns + 5)
    all_of_them = len(index) == len(observation)

    def put(at: slice | int, part: "Tensor") -> None:
        rows[:, at] = part if all_of_them else part.index_select(0, index)

    put(slice(0, width), observation)
    rows[:, width] = 1.0
    put(slice(width + 1, width + 1 + columns), action)
    for place, name in enumerate(("log_prob", "advantage", "returns", "value"), width + 1 + columns):
        put(place, parts[name])
    mask, state_of = parts.get("action_mask"), parts.get("state_of")
    return Packed(
        rows,
        None if mask is None else mask.index_select(0, index),
        parts.get("state"),
        None if state_of is None else state_of.index_select(0, index),
    )


class _Room:
    """All that a share of n rows needs, once for each thread."""

    def __init__(self, networks: Networks, policy: TorchPolicy, config: LearnerConfig, n: int, columns: int) -> None:
        import torch

        self.walk, self.loss = Pass(networks, n), Loss(policy.spec.actions, config, n)
        self.rows = torch.empty(n, columns)
        self.seen, self._rest = self.rows[:, : networks.observation + 1], self.rows[:, networks.observation + 1 :].t()
        self.rest = torch.empty(self._rest.shape)
        actions = policy.spec.actions.columns
        log_prob, advantage, returns, value = self.rest[actions:]
        self.samples = Samples(self.rest[:actions], log_prob, advantage, returns, value, None)

    def gather(self, samples: Packed, chosen: "Tensor") -> "Tensor | None":
        """Take these rows in; answers with the global state of each, if there is one."""
        import torch

        torch.index_select(samples.rows, 0, chosen, out=self.rows)
        self.rest.copy_(self._rest)
        if samples.mask is not None:
            self.samples.mask = samples.mask.index_select(0, chosen).t()
        if samples.state is None or samples.state_of is None:
            return None
        return samples.state.index_select(0, samples.state_of.index_select(0, chosen))


class WrittenOut:
    """Gradients of one policy's loss."""

    def __init__(self, policy: TorchPolicy, config: LearnerConfig) -> None:
        import torch

        spec, form = policy.spec, policy.config
        self.policy, self.config = policy, config
        self.networks = Networks(policy.modules, form.hidden, form.activation, spec.observation_size, spec.state_size)
        self.share = min(share_rows(form.hidden), config.microbatch or config.minibatch)
        self._lanes, self._own = Lanes(), local()
        self._sums: list[Tensor] = []
        self._layers: list[Layers] = []
        self._parameters = [*self.networks.parameters, policy.log_std]
        self.gradient = torch.zeros(self.networks.size + policy.log_std.numel())
        """By all parameters, as one vector, which ranks add up."""
        self._views = [*self.networks.split(self.gradient), self.gradient[self.networks.size :]]

    def backward(self, samples: Packed, chosen: "Tensor", total: float) -> "dict[str, Tensor]":
        """Fill `gradient` with that of these rows, their part of a minibatch of `total`; what `losses` notes."""
        import torch

        self.networks.take()
        self.gradient.zero_()
        if not len(chosen):
            return {}
        edges = _edges(len(chosen), self.share)
        lanes = np.array_split(np.arange(len(edges) - 1), min(len(edges) - 1, MOST_LANES))
        self._make(len(lanes))
        for each in self._sums[: len(lanes)]:
            each.zero_()
        std = self.policy.log_std.detach().clone()

        def lane(number: int) -> None:
            with torch.inference_mode():
                for share in lanes[number]:
                    self._share(samples, chosen[edges[share] : edges[share + 1]], total, std, number)

        self._lanes.run(lane, range(len(lanes)))
        added = torch.stack(self._sums[: len(lanes)]).sum(0)
        self.gradient.copy_(added[: -len(NOTED)])
        return dict(zip(NOTED, added[-len(NOTED) :] / total, strict=True))

    def give(self, *, most: float) -> "Tensor":
        """Set the gradients of the policy's parameters to `gradient`, clipped to this norm; the norm before."""
        import torch

        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        # As torch.nn.utils.clip_grad_norm_ has it.
        self.gradient.mul_((most / (norm + 1e-6)).clamp_(max=1.0))
        for each in self._parameters:
            if each.grad is None:
                each.grad = torch.empty_like(each)
        gradients = [each.grad for each in self._parameters]
        torch._foreach_copy_([*self.networks.split_parameters(gradients[:-1]), gradients[-1]], self._views)
        return norm

    def _make(self, lanes: int) -> None:
        """Room for what each lane adds up."""
        import torch

        for _ in range(len(self._sums), lanes):
            into = torch.zeros(len(self.gradient) + len(NOTED))
            self._sums.append(into)
            self._layers.append(Layers.of(into, self.networks.shapes))

    def _share(self, samples: Packed, chosen: "Tensor", total: float, std: "Tensor", lane: int) -> None:
        room, into = self._room(len(chosen), samples.rows.shape[1]), self._sums[lane]
        state = room.gather(samples, chosen)
        walk = room.walk
        walk.forward(room.seen, state)
        room.loss.slope(
            walk.mean, walk.value[0], std, room.samples, total,
            walk.slope_mean, walk.slope_value[0], into[self.networks.size : -len(NOTED)],
        )  # fmt: skip
        walk.back(room.seen, state, self._layers[lane])
        into[-len(NOTED) :] += room.loss.terms.sum(1)

    def _room(self, n: int, columns: int) -> _Room:
        rooms: dict[Any, _Room] = self._own.__dict__
        if n not in rooms:
            if len(rooms) >= MOST_ROOMS:
                rooms.clear()
            rooms[n] = _Room(self.networks, self.policy, self.config, n, columns)
        return rooms[n]


def _edges(rows: int, most: int) -> list[int]:
    """Where shares of at most so many rows begin and end."""
    shares = -(-rows // most)
    if shares > 1:
        shares = min(rows, -(-shares // EVEN) * EVEN)
    return [rows * at // shares for at in range(shares + 1)]
