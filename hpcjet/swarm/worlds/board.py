"""The arrays of one turn, while worlds write into them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcjet.errors import WorldError
from hpcjet.swarm.vector import Episode, GroupTurn, Turn, VectorSpec
from hpcjet.swarm.worlds.rows import Place


class Board:
    """Arrays of all groups; a place is a group and a row."""

    def __init__(self, spec: VectorSpec) -> None:
        self._spec = spec
        self.episodes: list[Episode] = []
        self.faults: list[WorldError] = []
        self.groups = {name: self._empty(name) for name in spec.groups}
        self._finals: dict[str, list[tuple[int, Any]]] = {name: [] for name in spec.groups}
        self.state, self.final_state = (
            np.zeros((spec.worlds, spec.state_size), dtype=np.float32) if spec.state_size else None for _ in range(2)
        )

    def stand(self, world: int, group: str, rows: Sequence[int], observations: Any) -> None:
        """Who acts next, and sees what."""
        turn = self.groups[group]
        turn.present[world, rows] = True
        turn.observation[world, rows] = observations

    def mask_row(self, world: int, place: Place, mask: Any) -> None:
        turn = self.groups[place[0]]
        if turn.action_mask is not None and turn.mask_given is not None:
            turn.action_mask[world, place[1]] = mask
            turn.mask_given[world, place[1]] = True

    def mask(self, world: int, place: Place) -> Any:
        """The allowed choices of a row, or None."""
        turn = self.groups[place[0]]
        given = turn.mask_given is not None and turn.mask_given[world, place[1]]
        return turn.action_mask[world, place[1]] if given and turn.action_mask is not None else None

    def reward(self, world: int, place: Place, reward: float) -> None:
        self.groups[place[0]].reward[world, place[1]] += reward

    def end(self, world: int, place: Place, *, terminated: bool, final: Any = None) -> None:
        """A life ended; `final` is its last observation, encoded."""
        group, row = place
        turn = self.groups[group]
        (turn.terminated if terminated else turn.truncated)[world, row] = True
        if final is not None:
            self._finals[group].append((world * self._spec.groups[group].rows + row, final))

    def lose(self, world: int, places: Iterable[Place]) -> None:
        """Forget what this step brought to a world: these lives are cut short, and nobody is there."""
        for name, turn in self.groups.items():
            turn.reward[world] = 0
            turn.terminated[world] = turn.truncated[world] = False
            rows = range(world * self._spec.groups[name].rows, (world + 1) * self._spec.groups[name].rows)
            self._finals[name] = [final for final in self._finals[name] if final[0] not in rows]
        self.empty(world)
        for place in places:
            self.end(world, place, terminated=False)

    def empty(self, world: int) -> None:
        """Nobody acts in a world."""
        for turn in self.groups.values():
            turn.present[world] = False
            if turn.mask_given is not None:
                turn.mask_given[world] = False

    def turn(self) -> Turn:
        for name, group in self.groups.items():
            finals = self._finals[name]
            if finals:
                group.final_rows = np.array([row for row, _ in finals], dtype=np.int64)
                group.final_observation = np.stack([observation for _, observation in finals])
            if group.action_mask is not None and group.mask_given is not None:
                group.action_mask[~group.mask_given] = True
        return Turn(
            self.groups, episodes=self.episodes, faults=self.faults, state=self.state, final_state=self.final_state
        )

    def _empty(self, name: str) -> GroupTurn:
        group = self._spec.groups[name]
        shape = (self._spec.worlds, group.rows)
        masks: Mapping[str, Any] = {}
        if group.has_mask:
            choices = np.ones((*shape, group.actions.choices), dtype=bool)
            masks = {"action_mask": choices, "mask_given": np.zeros(shape, dtype=bool)}
        return GroupTurn(
            observation=np.zeros((*shape, group.observation_size), dtype=np.float32),
            present=np.zeros(shape, dtype=bool),
            reward=np.zeros(shape, dtype=np.float32),
            terminated=np.zeros(shape, dtype=bool),
            truncated=np.zeros(shape, dtype=bool),
            final_observation=np.empty((0, group.observation_size), dtype=np.float32),
            **masks,
        )
