"""What one group did in T steps of a vector of worlds, time-major: what is learned from."""

from dataclasses import dataclass, field, replace
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
    log_prob: Floats | None = None
    """[T, W, R], of the actions when they were drawn."""
    value: Floats | None = None
    """[T, W, R], of the observations then, in units of reward."""
    version: int = 0
    """Of the policy that acted."""
    state: Floats | None = None
    """[T + 1, W, S], what a central critic sees."""
    final_state: list[Floats] = field(default_factory=list)
    """[n, S], with `final_observation`."""

    @property
    def steps(self) -> int:
        return len(self.reward)

    def finals(self) -> tuple[Ints, Floats]:
        """Places [n] in the flattened [T, W, R] and last observations [n, F] of the lives that ended."""
        if not self.final_index:
            return np.empty(0, dtype=np.int64), np.empty((0, self.observation.shape[-1]), dtype=np.float32)
        return np.concatenate(self.final_index), np.concatenate(self.final_observation)

    def final_states(self) -> Floats | None:
        """[n, S], global states of `finals`."""
        if self.state is None:
            return None
        return np.concatenate(self.final_state) if self.final_state else self.state[0, :0]

    def of_rows(self, rows: slice) -> "Fragment":
        """The part of these rows of every world; arrays are views."""
        number, width = self.reward.shape[2], len(range(self.reward.shape[2])[rows])
        part = replace(
            self,
            **_rows(self, rows),
            final_index=[], final_observation=[], final_state=[],
        )  # fmt: skip
        for at, index in enumerate(self.final_index):
            place = (index % number - rows.indices(number)[0]) // rows.indices(number)[2]
            mine = np.isin(index % number, np.arange(number)[rows])
            part.final_index.append((index // number * width + place)[mine])
            part.final_observation.append(self.final_observation[at][mine])
            if self.final_state:
                part.final_state.append(self.final_state[at][mine])
        return part

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


_BY_ROW = ("observation", "present", "action", "reward", "terminated", "truncated", "action_mask", "log_prob", "value")


def _rows(fragment: Fragment, rows: slice) -> dict[str, Any]:
    parts = {name: getattr(fragment, name) for name in _BY_ROW}
    return {name: part if part is None else part[:, :, rows] for name, part in parts.items()}


class Recorder:
    """Fills a Fragment, step by step: `begin` with a turn, then `add` actions and the turn that came of them."""

    def __init__(self, group: GroupSpec, worlds: int, steps: int, *, state_size: int = 0) -> None:
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
            log_prob=np.zeros(shape, dtype=np.float32),
            value=np.zeros(shape, dtype=np.float32),
            state=np.empty((steps + 1, worlds, state_size), dtype=np.float32) if state_size else None,
        )
        self._at = 0

    @property
    def full(self) -> bool:
        return self._at == self.fragment.steps

    def begin(self, turn: GroupTurn, state: Floats | None = None) -> None:
        """Start over, from what stands before the first step, and the global state [W, S] if there is one."""
        self._at = 0
        f = self.fragment
        f.final_index, f.final_observation, f.final_state = [], [], []
        self._stand(turn, state)

    def add(
        self,
        action: npt.NDArray[Any],
        turn: GroupTurn,
        *,
        log_prob: Floats | float = 0.0,
        value: Floats | float = 0.0,
        state: Floats | None = None,
        final_state: Floats | None = None,
    ) -> None:
        """A step: actions [W, R, A], their log-probabilities and values [W, R], and the turn after it.

        With a global state, lives that ended where `final_state` [W, S] is missing have no last observation: a central
        critic could not tell its value.
        """
        f, t = self.fragment, self._at
        f.action[t] = action
        f.log_prob[t], f.value[t] = log_prob, value  # type: ignore[index]
        f.reward[t], f.terminated[t], f.truncated[t] = turn.reward, turn.terminated, turn.truncated
        if len(turn.final_rows) and (f.state is None or final_state is not None):
            f.final_index.append(turn.final_rows + t * turn.reward.size)
            f.final_observation.append(turn.final_observation)
            if final_state is not None:
                f.final_state.append(final_state[turn.final_rows // f.reward.shape[2]])
        self._at += 1
        self._stand(turn, state)

    def _stand(self, turn: GroupTurn, state: Floats | None) -> None:
        f, t = self.fragment, self._at
        f.observation[t], f.present[t] = turn.observation, turn.present
        if f.state is not None:
            f.state[t] = state
        if f.action_mask is not None and turn.action_mask is not None and t < f.steps:
            f.action_mask[t] = turn.action_mask
