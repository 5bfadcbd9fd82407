"""One world in a vector: its environment, its agents' rows, its episode."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpcjet.errors import ConfigError, WorldError
from hpcjet.swarm.seeds import environment_seed
from hpcjet.swarm.spaces.actions import flat_mask
from hpcjet.swarm.spaces.refusal import Misfit
from hpcjet.swarm.vector import Episode
from hpcjet.swarm.worlds.board import Board
from hpcjet.swarm.worlds.deadline import TimeLimit, deadline
from hpcjet.swarm.worlds.kinds import Kind, Kinds
from hpcjet.swarm.worlds.rows import Place, Rows
from hpcjet.swarm.worlds.world import BrokenContract, Events, World

TRIES = 3
"""Resets in a row that may leave nobody alive: a world may be done before it begins."""


class Seat:
    """Index `index` in the vector, world `number` of the run."""

    def __init__(
        self, index: int, number: int, make: Callable[[], World], kinds: Kinds, *, seed: int, limit_s: float
    ) -> None:
        self.index, self.number, self._make, self._kinds = index, number, make, kinds
        self._seed, self._limit_s = seed, limit_s
        self.sizes: Mapping[str, int] = {}
        self.episode, self.steps, self.faults = -1, 0, 0
        self.closed = False
        self.since: tuple[str, float] | None = None
        """What the environment is doing, and since when (monotonic seconds)."""
        self._returns: dict[str, float] = {}
        self._took_part: dict[str, int] = {}
        self.acting: dict[str, tuple[Place, Kind]] = {}
        """Agents that act in this step."""
        self._agent: str | None = None
        self._possible: frozenset[str] = frozenset()
        self._rows = Rows(None, kinds.group_of, {})
        with self._guarded(None, "start"):
            self.world = make()

    def first_agents(self) -> list[str]:
        """All agents that are possible, or those of a first episode where that is not known. Raises WorldError."""
        with self._guarded(None, "first reset"):
            possible = self.world.possible_agents()
            if possible is not None:
                return list(possible)
            return list(self.world.reset(environment_seed(self._seed, self.number, 0)).observed)

    def meet(self, agents: Sequence[str]) -> None:
        """Learn their spaces. Raises ConfigError, WorldError."""
        for agent in agents:
            with self._guarded(None, "look at spaces"):
                self._kinds.meet(self.index, self.world, agent)

    def choose(self, rows: Mapping[str, Any], board: Board) -> dict[str, Any]:
        """Actions by agent. Raises WorldError for one that is outside of its space: that is the policy's fault."""
        chosen = {}
        for agent, (place, kind) in self.acting.items():
            row = rows[place[0]][self.index, place[1]]
            try:
                chosen[agent] = kind.decoder.decode(row)
                mask = board.mask(self.index, place)
                if mask is not None:
                    kind.decoder.check_allowed(row, mask)
            except Misfit as misfit:
                raise WorldError(str(misfit), world=self.number, agent=agent, step=self.steps) from None
        return chosen

    def advance(self, chosen: Mapping[str, Any], board: Board) -> bool:
        """Step, and write what came of it; whether the episode is over. Raises WorldError; the step is lost then."""
        lives = dict(self._rows.of)
        try:
            with self._guarded(self.steps, f"step {self.steps}"):
                events = self.world.step(chosen)
            with self._guarded(self.steps, None):
                self._settle(events, board)
                self.steps += 1
                if not events.over:
                    self._seat(events, board)
        except WorldError:
            board.lose(self.index, lives.values())
            raise
        return events.over

    def begin(self, board: Board) -> None:
        """Begin the next episode. Raises WorldError."""
        for _ in range(TRIES):
            self.episode += 1
            self.steps, self._returns, self._took_part = 0, {}, {}
            with self._guarded(None, "reset"):
                events = self.world.reset(environment_seed(self._seed, self.number, self.episode))
            if events.over:
                continue
            with self._guarded(None, None):
                self._new_rows()
                self._seat(events, board)
            return
        raise WorldError(f"no agent was there after it, {TRIES} times in a row", world=self.number)

    def renew(self) -> None:
        """Another environment in place of one that failed. Raises WorldError."""
        self.acting = {}
        self._leave_environment()
        with self._guarded(None, "start"):
            self.world = self._make()

    def close(self) -> None:
        if not self.closed:
            self.closed, self.acting = True, {}
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
            with self._guarded(None, "close"):
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
            final = self._encoded(agent, events.finals[agent]) if agent in events.finals else None
            place = self._rows.leave(agent)
            board.end(self.index, place, terminated=agent in events.terminated, final=final)
            self._forget(agent)

    def _seat(self, events: Events, board: Board) -> None:
        """Those that act next, in their rows."""
        self.acting = {}
        for agent, observation in events.observed.items():
            joins = agent not in self._rows.of
            place = self._rows.take(agent)
            kind = self._kind(agent) if joins else self._kinds.known(self.index, agent)
            row = board.row(self.index, place)
            self._write(kind, agent, observation, row)
            mask = events.masks.get(agent)
            if mask is not None:
                mask = self._mask(kind, agent, mask)
            board.present(self.index, place, mask)
            self.acting[agent] = place, kind
            if joins:
                self._took_part[place[0]] = self._took_part.get(place[0], 0) + 1

    def episode_over(self) -> Episode:
        return Episode(self.number, self.episode, self.steps, returns=self._returns, agents=self._took_part)

    def _kind(self, agent: str) -> Kind:
        return self._kinds.meet(self.index, self.world, agent)

    def _encoded(self, agent: str, observation: Any) -> Any:
        kind = self._kinds.known(self.index, agent)
        row = np.empty(kind.encoder.size, dtype=np.float32)
        self._write(kind, agent, observation, row)
        return row

    def _write(self, kind: Kind, agent: str, observation: Any, row: Any) -> None:
        self._agent = agent
        kind.encoder.write(observation, row)
        if not np.isfinite(row).all():
            raise Misfit("the observation is not finite")
        self._agent = None

    def _mask(self, kind: Kind, agent: str, mask: Any) -> Any:
        self._agent = agent
        flat = flat_mask(mask, kind.decoder.layout.choices)
        self._agent = None
        return flat

    @contextmanager
    def _guarded(self, step: int | None, call: str | None) -> Iterator[None]:
        """Makes a WorldError of what happens inside; with `call`, that is the environment's time, which is limited."""
        self._agent = None
        try:
            if call is None:
                yield
                return
            self.since = call, time.monotonic()
            with deadline(self._limit_s):
                yield
        except (WorldError, ConfigError):
            raise
        except TimeLimit:
            message = f"{call} took longer than {self._limit_s:g} s"
            raise WorldError(message, world=self.number, step=step) from None
        except BrokenContract as broken:
            raise WorldError(str(broken), world=self.number, agent=broken.agent, step=step) from None
        except Misfit as misfit:
            raise WorldError(str(misfit), world=self.number, agent=self._agent, step=step) from None
        except Exception as error:  # whatever an environment may raise
            message = f"it raised {type(error).__name__}: {error}"
            raise WorldError(message, world=self.number, step=step) from error
        finally:
            self.since = None
