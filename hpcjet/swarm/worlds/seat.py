"""One world in a vector: its environment, its agents' rows, its episode."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcjet.errors import WorldError
from hpcjet.swarm.seeds import environment_seed
from hpcjet.swarm.spaces.actions import flat_mask
from hpcjet.swarm.spaces.refusal import Misfit
from hpcjet.swarm.vector import Episode, Floats
from hpcjet.swarm.worlds.board import Board
from hpcjet.swarm.worlds.guard import Guard
from hpcjet.swarm.worlds.kinds import Kind, Kinds
from hpcjet.swarm.worlds.rows import Place, Rows
from hpcjet.swarm.worlds.state import StateEncoder
from hpcjet.swarm.worlds.world import BrokenContract, Events, World

TRIES = 3
"""Resets in a row that may leave nobody alive: a world may be done before it begins."""
MOST_IDLE = 1000
"""Steps in a row in which nobody acts, though agents live."""


class Seat:
    """Index `index` in the vector, world `number` of the run."""

    def __init__(
        self, index: int, number: int, make: Callable[[], World], kinds: Kinds, *, seed: int, limit_s: float
    ) -> None:
        self.index, self.number, self._make, self._kinds = index, number, make, kinds
        self._seed, self._guard = seed, Guard(number, limit_s)
        self.sizes: Mapping[str, int] = {}
        self.states: StateEncoder | None = None
        self.episode, self.steps, self.faults = -1, 0, 0
        self.closed = False
        self._idle = 0
        self._returns: dict[str, float] = {}
        self._took_part: dict[str, int] = {}
        self.acting: dict[str, Place] = {}
        """Agents that act in this step."""
        self._alike: list[tuple[str, Kind, list[str]]] = []
        """The same, by group and kind."""
        self._possible: frozenset[str] = frozenset()
        self._rows = Rows(None, kinds.group_of, {})
        with self._guard(None, "start"):
            self.world = make()

    @property
    def since(self) -> tuple[str, float] | None:
        """What the environment is doing, and since when (monotonic seconds)."""
        return self._guard.since

    def first_agents(self) -> list[str]:
        """All agents that are possible, or those of a first episode where that is not known. Raises WorldError."""
        with self._guard(None, "first reset"):
            possible = self.world.possible_agents()
            if possible is not None:
                return list(possible)
            return list(self.world.reset(environment_seed(self._seed, self.number, 0)).observed)

    def meet(self, agents: Sequence[str]) -> None:
        """Learn their spaces. Raises ConfigError, WorldError."""
        for agent in agents:
            with self._guard(None, "look at spaces"):
                self._kinds.meet(self.index, self.world, agent)

    def meet_state(self) -> None:
        """Show the global state from now on, if there is one. Raises ConfigError, WorldError."""
        with self._guard(None, "look at the state's space"):
            space = self.world.state_space()
        self.states = None if space is None else StateEncoder(space, path=f"world {self.number}")

    def choose(self, rows: Mapping[str, Any], board: Board) -> dict[str, Any]:
        """Actions by agent. Raises WorldError for one that is outside of its space: that is the policy's fault."""
        chosen: dict[str, Any] = {}
        for group, kind, agents in self._alike:
            mine = rows[group][self.index, [self.acting[agent][1] for agent in agents]]
            try:
                chosen.update(zip(agents, kind.decoder.decode_each(mine), strict=True))
            except Misfit:
                self._name_culprit(agents, mine, kind)
                raise
            if kind.decoder.layout.choices:
                self._check_masks(agents, mine, kind, board)
        return chosen

    def _name_culprit(self, agents: Sequence[str], rows: Any, kind: Kind) -> None:
        for agent, row in zip(agents, rows, strict=True):
            try:
                kind.decoder.decode(row)
            except Misfit as misfit:
                raise WorldError(str(misfit), world=self.number, agent=agent, step=self.steps) from None

    def _check_masks(self, agents: Sequence[str], rows: Any, kind: Kind, board: Board) -> None:
        for agent, row in zip(agents, rows, strict=True):
            mask = board.mask(self.index, self.acting[agent])
            if mask is not None:
                try:
                    kind.decoder.check_allowed(row, mask)
                except Misfit as misfit:
                    raise WorldError(str(misfit), world=self.number, agent=agent, step=self.steps) from None

    def advance(self, chosen: Mapping[str, Any], board: Board) -> bool:
        """Step, and write what came of it; whether the episode is over. Raises WorldError; the step is lost then."""
        lives = dict(self._rows.of)
        try:
            with self._guard(self.steps, f"step {self.steps}"):
                events = self.world.step(chosen)
            with self._guard(self.steps, None):
                self._settle(events, board)
                self.steps += 1
            state = self._state(self.steps - 1)
            with self._guard(self.steps - 1, None):
                if board.final_state is not None:
                    board.final_state[self.index] = state
                if not events.over:
                    self._seat(events, board, state)
        except WorldError:
            board.lose(self.index, lives.values())
            raise
        return events.over

    def begin(self, board: Board) -> None:
        """Begin the next episode. Raises WorldError."""
        for _ in range(TRIES):
            self.episode += 1
            self.steps, self._idle, self._returns, self._took_part = 0, 0, {}, {}
            with self._guard(None, "reset"):
                events = self.world.reset(environment_seed(self._seed, self.number, self.episode))
            if events.over:
                continue
            state = self._state(None)
            with self._guard(None, None):
                self._new_rows()
                self._seat(events, board, state)
            return
        raise WorldError(f"no agent was there after it, {TRIES} times in a row", world=self.number)

    def renew(self) -> None:
        """Another environment in place of one that failed. Raises WorldError."""
        self._nobody()
        self._leave_environment()
        with self._guard(None, "start"):
            self.world = self._make()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._nobody()
            self._leave_environment()

    def _new_rows(self) -> None:
        for agent in self._rows.of:
            self._forget(agent)
        possible = self.world.possible_agents()
        self._possible = frozenset(possible or ())
        self._rows = Rows(possible, self._kinds.group_of, self.sizes)

    def _forget(self, agent: str) -> None:
        """Keep nothing of an agent that will not come back."""
        if agent not in self._possible:
            self._kinds.forget(self.index, agent)

    def _leave_environment(self) -> None:
        try:
            with self._guard(None, "close"):
                self.world.close()
        except WorldError:
            pass  # it is given up anyway

    def _settle(self, events: Events, board: Board) -> None:
        """Rewards and ends of those that lived before the step."""
        places = self._rows.of
        for agent, reward in events.rewards.items():
            if agent in places:
                if not math.isfinite(reward):
                    raise BrokenContract(f"the reward is {reward}", agent)
                board.reward(self.index, places[agent], reward)
                group = places[agent][0]
                self._returns[group] = self._returns.get(group, 0.0) + reward
        ended = events.terminated | events.truncated
        # Who is neither seen nor has ended when all is over paused to the end.
        for agent in [agent for agent in places if agent in ended or events.over]:
            final = self._final(agent, events.finals[agent]) if agent in events.finals else None
            place = self._rows.leave(agent)
            board.end(self.index, place, terminated=agent in events.terminated, final=final)
            self._forget(agent)

    def _state(self, step: int | None) -> Floats | None:
        """The global state as it is now, [S]."""
        if self.states is None:
            return None
        with self._guard(step, "state"):
            state = self.world.state()
        with self._guard(step, None):
            return self.states.row(state)

    def _seat(self, events: Events, board: Board, state: Floats | None) -> None:
        """Those that act next, in their rows, and the global state that they act in."""
        self._nobody()
        self._idle = 0 if events.observed else self._idle + 1
        if self._idle > MOST_IDLE:
            raise BrokenContract(f"its agents live, but none of them was to act in {MOST_IDLE} steps")
        if board.state is not None:
            board.state[self.index] = state
        alike: dict[tuple[str, int], tuple[str, Kind, list[str]]] = {}
        for agent in events.observed:
            joins = agent not in self._rows.of
            place = self.acting[agent] = self._rows.take(agent)
            kind = self._kind(agent) if joins else self._kinds.known(self.index, agent)
            alike.setdefault((place[0], id(kind)), (place[0], kind, []))[2].append(agent)
            if joins:
                self._took_part[place[0]] = self._took_part.get(place[0], 0) + 1
        self._alike = list(alike.values())
        for group, kind, agents in self._alike:
            encoded = self._encoded(kind, agents, [events.observed[agent] for agent in agents])
            board.stand(self.index, group, [self.acting[agent][1] for agent in agents], encoded)
            for agent in agents:
                if agent in events.masks:
                    board.mask_row(self.index, self.acting[agent], self._mask(kind, agent, events.masks[agent]))

    def _nobody(self) -> None:
        self.acting, self._alike = {}, []

    def _final(self, agent: str, observation: Any) -> Any:
        return self._encoded(self._kinds.known(self.index, agent), [agent], [observation])[0]

    def episode_over(self) -> Episode:
        return Episode(self.number, self.episode, self.steps, returns=self._returns, agents=self._took_part)

    def _kind(self, agent: str) -> Kind:
        return self._kinds.meet(self.index, self.world, agent)

    def _encoded(self, kind: Kind, agents: Sequence[str], observations: list[Any]) -> Any:
        """Rows [n, F], checked."""
        rows = np.empty((len(agents), kind.encoder.size), dtype=np.float32)
        try:
            kind.encoder.write_each(observations, rows)
        except Misfit:
            # Again, one by one, to name the one whose it is.
            for self._guard.agent, observation, row in zip(agents, observations, rows, strict=True):
                kind.encoder.write(observation, row)
            raise
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            self._guard.agent = agents[int(np.argmin(finite))]
            raise Misfit("the observation is not finite")
        return rows

    def _mask(self, kind: Kind, agent: str, mask: Any) -> Any:
        self._guard.agent = agent
        flat = flat_mask(mask, kind.decoder.layout.choices)
        self._guard.agent = None
        return flat
