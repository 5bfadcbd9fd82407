"""A vector of worlds in which each life is one step, and what is right can be seen: to learn it takes seconds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcjet.swarm.spaces.layout import ActionLayout, Categorical, Continuous
from hpcjet.swarm.vector import GroupSpec, GroupTurn, Turn, VectorSpec

FEATURES = 3


class Bandit:
    """Real numbers are to be those seen, choices the place of the greatest number seen, or the greatest allowed one.

    `padding` rows are added in which nobody ever stands; they hold NaN.
    """

    def __init__(
        self, layouts: Mapping[str, ActionLayout], worlds: int, rows: int, *, padding: int = 0, masked: bool = False
    ) -> None:
        self.rows, self.masked, self.rng = rows, masked, np.random.default_rng(0)
        self.spec = VectorSpec(
            worlds, {name: GroupSpec(rows + padding, FEATURES, layout, masked) for name, layout in layouts.items()}
        )
        self.turns: dict[str, GroupTurn] = {}

    def reset(self) -> Turn:
        return self._turn(dict.fromkeys(self.spec.groups, 0.0))

    def step(self, actions: Mapping[str, Any]) -> Turn:
        return self._turn({name: self._reward(name, action) for name, action in actions.items()})

    def close(self) -> None:
        pass

    def _turn(self, rewards: Mapping[str, Any]) -> Turn:
        self.turns = {name: self._group(group, rewards[name]) for name, group in self.spec.groups.items()}
        return Turn(self.turns)

    def _group(self, group: GroupSpec, reward: Any) -> GroupTurn:
        shape = (self.spec.worlds, group.rows)
        present = np.zeros(shape, dtype=bool)
        present[:, : self.rows] = True
        observation = np.full((*shape, FEATURES), np.nan, dtype=np.float32)
        observation[:, : self.rows] = self.rng.uniform(-1, 1, (shape[0], self.rows, FEATURES))
        earned = np.zeros(shape, dtype=np.float32)
        earned += reward
        mask = None
        if self.masked:
            mask = np.ones((*shape, group.actions.choices), dtype=bool)
            forbidden = self.rng.integers(group.actions.choices, size=(shape[0], self.rows, 1))
            np.put_along_axis(mask[:, : self.rows], forbidden, False, axis=-1)
        return GroupTurn(observation, present, earned, present, np.zeros(shape, dtype=bool), action_mask=mask)

    def _reward(self, name: str, action: Any) -> Any:
        turn, parts = self.turns[name], self.spec.groups[name].actions
        seen = np.nan_to_num(turn.observation)
        total = np.zeros(turn.present.shape, dtype=np.float32)
        for part, columns in zip(parts.parts, parts.slices, strict=True):
            did = action[..., columns]
            if isinstance(part, Continuous):
                total -= np.square(did - seen[..., : part.columns]).sum(-1)
                continue
            assert isinstance(part, Categorical)
            allowed = np.ones((*total.shape, part.n), dtype=bool) if turn.action_mask is None else turn.action_mask
            assert np.take_along_axis(allowed, did.astype(int), -1)[turn.present].all(), "a forbidden choice"
            best = np.where(allowed, seen[..., : part.n], -np.inf).argmax(-1)
            total += did[..., 0] == best
        return np.where(turn.present, total, 0)


BOX = ActionLayout((Continuous((-1.0, -1.0), (1.0, 1.0)),))
CHOICE = ActionLayout((Categorical(FEATURES),))
MIXED = ActionLayout((Categorical(2), Continuous((-1.0,), (1.0,)), Categorical(FEATURES)))
