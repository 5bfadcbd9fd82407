"""What one group did in T steps of a vector of worlds, time-major: what is learned from."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.swarm.returns import Trajectories, trajectories
from hpcjet.swarm.vector import Bools, Floats, GroupSpec, GroupTurn, Ints


@dataclass
class Fragment:
    """T steps of W * R rows; `present[t]`, `observation[t]` and `action[t]` stand before the step, the rest after."""

    observation: Floats
    """[T + 1, W, R, F]; the last one is what stands after the last step."""
    present: Bools
    """[T + 1, W, R]"""
    action: npt.NDArray[Any]
    """[T, W, R, A]"""
    reward: Floats
    """[T, W, R]"""
    terminated: Bools
    truncated: Bools
    action_mask: Bools | None = None
    """[T, W, R, M]"""
    final_index: list[Ints] = field(default_factory=list)
    """For each step with ends, their places in the flattened [T, W, R]."""
    final_observation: list[Floats] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return len(self.reward)

    def finals(self) -> tuple[Ints, Floats]:
        """Places [n] in the flattened [T, W, R] and last observations [n, F] of the lives that ended."""
        if not self.final_index:
            return np.empty(0, dtype=np.int64), np.empty((0, self.observation.shape[-1]), dtype=np.float32)
        return np.concatenate(self.final_index), np.concatenate(self.final_observation)

    def trajectories(self, values: Floats, final_values: Floats, *, gamma: float) -> Trajectories:
        """Join with the values of `observation`, [T + 1, W, R], and of the observations of `finals`, [n]."""
        dense = np.zeros(self.reward.shape, dtype=values.dtype)
        known = np.zeros(self.reward.shape, dtype=bool)
        index, _ = self.finals()
        dense.reshape(-1)[index] = final_values
        known.reshape(-1)[index] = True
        return trajectories(
            self.reward, values[:-1], values[-1], gamma=gamma,
            terminated=self.terminated, truncated=self.truncated, final_values=dense, final_known=known,
            present=self.present[:-1], last_present=self.present[-1],
        )  # fmt: skip


class Recorder:
    """Fills a Fragment, step by step: `begin` with a turn, then `add` actions and the turn that came of them."""

    def __init__(self, group: GroupSpec, worlds: int, steps: int) -> None:
        shape = (steps, worlds, group.rows)
        more = (steps + 1, worlds, group.rows)
        mask = np.ones((*shape, group.actions.choices), dtype=bool) if group.has_mask else None
        self.fragment = Fragment(
            observation=np.empty((*more, group.observation_size), dtype=np.float32),
            present=np.zeros(more, dtype=bool),
            action=np.zeros((*shape, group.actions.columns), dtype=group.actions.dtype),
            reward=np.zeros(shape, dtype=np.float32),
            terminated=np.zeros(shape, dtype=bool),
            truncated=np.zeros(shape, dtype=bool),
            action_mask=mask,
        )
        self._at = 0

    @property
    def full(self) -> bool:
        return self._at == self.fragment.steps

    def begin(self, turn: GroupTurn) -> None:
        """Start over, from what stands before the first step."""
        self._at = 0
        self.fragment.final_index, self.fragment.final_observation = [], []
        self._stand(turn)

    def add(self, action: npt.NDArray[Any], turn: GroupTurn) -> None:
        """A step: actions [W, R, A], and the turn after it."""
        f, t = self.fragment, self._at
        f.action[t] = action
        f.reward[t], f.terminated[t], f.truncated[t] = turn.reward, turn.terminated, turn.truncated
        if len(turn.final_rows):
            f.final_index.append(turn.final_rows + t * turn.reward.size)
            f.final_observation.append(turn.final_observation)
        self._at += 1
        self._stand(turn)

    def _stand(self, turn: GroupTurn) -> None:
        f, t = self.fragment, self._at
        f.observation[t], f.present[t] = turn.observation, turn.present
        if f.action_mask is not None and turn.action_mask is not None and t < f.steps:
            f.action_mask[t] = turn.action_mask
