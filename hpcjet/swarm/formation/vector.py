"""Formations as a vector of worlds, natively: the arrays of the core are those of the turn."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.errors import WorldError
from hpcjet.swarm.formation.core import FormationCore
from hpcjet.swarm.spaces.layout import ActionLayout, Continuous
from hpcjet.swarm.vector import Episode, Floats, GroupSpec, GroupTurn, Turn, VectorSpec

GROUP = "agent"
STATE_SIZE = 8
_CORE = ("position", "velocity", "slot", "clock", "episode")
"""What the core's next steps depend on."""
ACTIONS = ActionLayout((Continuous((-1.0, -1.0), (1.0, 1.0)),))


class FormationVector:
    """W formations; a WorldVector. A world begins its next episode in the step that ends the last one.

    `stagger` lets worlds begin at different points of their first episode, so that they do not all end together.
    """

    def __init__(
        self,
        config: FormationConfig,
        worlds: int,
        *,
        seed: int,
        first_world: int = 0,
        with_state: bool = False,
        stagger: bool = False,
    ) -> None:
        self.config = config
        self.core = FormationCore(config, worlds, seed=seed, first_world=first_world)
        self.stagger = stagger
        group = GroupSpec(rows=config.agents, observation_size=config.observation_size, actions=ACTIONS)
        self._spec = VectorSpec(worlds, {GROUP: group}, state_size=STATE_SIZE if with_state else 0)
        self._shape = (worlds, config.agents)
        self._present, self._no = np.ones(self._shape, dtype=bool), np.zeros(self._shape, dtype=bool)
        self._present.flags.writeable = self._no.flags.writeable = False
        self._returns, self._collisions = np.zeros((2, worlds))

    @property
    def spec(self) -> VectorSpec:
        return self._spec

    def reset(self) -> Turn:
        core = self.core
        core.reset()
        if self.stagger:
            core.clock[:] = np.arange(core.worlds) * core.config.steps // core.worlds
        self._returns[:] = self._collisions[:] = 0
        observation = self._empty()
        core.observe(observation)
        return self._turn(observation, np.zeros(self._shape, dtype=np.float32))

    def step(self, actions: Mapping[str, npt.NDArray[Any]]) -> Turn:
        core = self.core
        core.move(self._checked(actions[GROUP]))
        before, observation = core.distance.copy(), self._empty()
        core.observe(observation)
        reward = core.rewards(before).astype(np.float32, copy=False).reshape(self._shape)
        self._returns += reward.sum(axis=1)
        self._collisions += core.colliding.reshape(self._shape).sum(axis=1)
        ended = np.flatnonzero(core.ended)
        if not len(ended):
            return self._turn(observation, reward)
        return self._next_episodes(ended, observation, reward)

    def close(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        parts = {name: getattr(self.core, name).copy() for name in _CORE}
        return {**parts, "seed": self.core.seed, "returns": self._returns.copy(), "collisions": self._collisions.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> Turn:
        core = self.core
        for name in _CORE:
            part = getattr(core, name)
            if state[name].shape != part.shape:
                raise ValueError(f"{name} has shape {state[name].shape}, {part.shape} is wanted")
            part[:] = state[name]
        core.seed = state["seed"]
        self._returns[:], self._collisions[:] = state["returns"], state["collisions"]
        observation = self._empty()
        core.observe(observation)
        return self._turn(observation, np.zeros(self._shape, dtype=np.float32))

    def _next_episodes(self, ended: npt.NDArray[np.int64], observation: Floats, reward: Floats) -> Turn:
        core = self.core
        episodes = self._episodes(ended)
        rows = core.rows(ended)
        final = observation if len(ended) == core.worlds else observation[rows]
        final_state = self._state(observation.reshape(*self._shape, -1)) if self.spec.state_size else None
        if final is observation:
            observation = self._empty()
        core.reset(ended)
        core.observe(observation, ended)
        self._returns[ended] = self._collisions[ended] = 0
        turn = self._turn(observation, reward)
        group = turn.groups[GROUP]
        group.truncated = np.zeros(self._shape, dtype=bool)
        group.truncated[ended] = True
        group.final_rows, group.final_observation = rows, final
        turn.episodes, turn.final_state = episodes, final_state
        return turn

    def _checked(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if actions.shape != (*self._shape, 2):
            raise ValueError(f"actions have shape {actions.shape}, {(*self._shape, 2)} is wanted")
        flat = actions.reshape(-1, 2)
        finite = np.isfinite(flat)
        if not finite.all():
            world, agent = divmod(int(np.argmin(finite)) // 2, self.config.agents)
            number, step = self.core.first_world + world, int(self.core.clock[world])
            raise WorldError("the action is not finite", world=number, agent=f"agent_{agent}", step=step)
        return flat

    def _turn(self, observation: Floats, reward: Floats) -> Turn:
        shaped = observation.reshape(*self._shape, -1)
        group = GroupTurn(shaped, self._present, reward, self._no, self._no)
        return Turn({GROUP: group}, state=self._state(shaped) if self.spec.state_size else None)

    def _state(self, observation: Floats) -> Floats:
        """[W, 8]: mean way to the slot and velocity, mean and spread of the distance, share held, time left."""
        core, c = self.core, self.config
        distance = core.distance.reshape(self._shape)
        rest = [
            distance.mean(axis=1), distance.std(axis=1), core.held.reshape(self._shape).mean(axis=1),
            1 - core.clock / c.steps,
        ]  # fmt: skip
        return np.concatenate([observation[:, :, :4].mean(axis=1), np.stack(rest, axis=1)], axis=1, dtype=np.float32)

    def _episodes(self, ended: npt.NDArray[np.int64]) -> list[Episode]:
        core, k = self.core, self.config.agents
        distance = core.distance.reshape(self._shape)
        held = core.held.reshape(self._shape)
        return [
            Episode(
                world=core.first_world + int(world), number=int(core.episode[world]), steps=int(core.clock[world]),
                returns={GROUP: float(self._returns[world])}, agents={GROUP: k},
                metrics={
                    "held": float(held[world].mean()),
                    "held_within_tenth_of_radius": float((distance[world] <= 0.1 * core.radius).mean()),
                    "distance": float(distance[world].mean()),
                    "collisions": float(self._collisions[world] / k),
                },
            )
            for world in ended
        ]  # fmt: skip

    def _empty(self) -> Floats:
        return np.empty((self.core.size, self.config.observation_size), dtype=np.float32)
