"""Environments that are stepped one by one, as a vector of worlds."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from hpcjet.config.check import bad
from hpcjet.errors import WorldError
from hpcjet.swarm.vector import Turn, VectorSpec
from hpcjet.swarm.worlds.board import Board
from hpcjet.swarm.worlds.kinds import GroupOf, Kinds
from hpcjet.swarm.worlds.rows import count
from hpcjet.swarm.worlds.seat import Seat
from hpcjet.swarm.worlds.world import World


def one_group(agent: str) -> str:
    """All agents share a policy."""
    return "agent"


class Worlds:
    """W environments, each made by one of `make`; a WorldVector.

    A world begins its next episode in the step that ends the last one. One that fails is made anew, and its agents'
    last actions are lost; after `max_faults` of them it is left out, and when none is left WorldError is raised. `rows`
    is how many agents of a group a world may have at a time; by default those that its environment says are possible.
    `with_state` shows the global state of environments that have one (PettingZoo's `state` and `state_space`).

    Raises ConfigError for spaces that are not supported, WorldError if an environment cannot be made or has no agents.
    """

    def __init__(
        self,
        make: Sequence[Callable[[], World]],
        *,
        seed: int,
        first_world: int = 0,
        group_of: GroupOf = one_group,
        rows: Mapping[str, int] | None = None,
        limit_s: float = 60.0,
        max_faults: int = 3,
        with_state: bool = False,
    ) -> None:
        if not make:
            raise bad("worlds", 0, "at least one world", "give one function for each environment")
        self._kinds, self._max_faults = Kinds(group_of), max_faults
        self.on_fault: Callable[[WorldError], None] = lambda fault: None
        """Told of each at once, and not with the turn only."""
        self._seats = [
            Seat(index, first_world + index, each, self._kinds, seed=seed, limit_s=limit_s)
            for index, each in enumerate(make)
        ]
        sizes = self._meet_all(rows or {})
        for seat in self._seats:
            seat.sizes = sizes
        state_size = self._meet_states() if with_state else 0
        self._spec = VectorSpec(len(make), self._kinds.specs(sizes), state_size)
        self._board = Board(self._spec)

    @property
    def spec(self) -> VectorSpec:
        return self._spec

    @property
    def at_work(self) -> tuple[int, str, float] | None:
        """World, call and seconds so far of the environment that is at work, for a watcher in another thread."""
        for seat in self._seats:
            if since := seat.since:
                return seat.number, since[0], time.monotonic() - since[1]
        return None

    def reset(self) -> Turn:
        self._board = board = Board(self._spec)
        for seat in self._seats:
            if not seat.closed:
                self._begin(seat, board)
        return board.turn()

    def step(self, actions: Mapping[str, npt.NDArray[Any]]) -> Turn:
        chosen = [seat.choose(actions, self._board) for seat in self._seats]
        self._board = board = Board(self._spec)
        for seat, choice in zip(self._seats, chosen, strict=True):
            if seat.closed:
                continue
            try:
                # Where everybody pauses there is nothing to choose, and time goes on.
                over = seat.advance(choice, board)
            except WorldError as error:
                self._failed(seat, error, board)
                continue
            if over:
                board.episodes.append(seat.episode_over())
                self._begin(seat, board)
        return board.turn()

    def close(self) -> None:
        for seat in self._seats:
            seat.close()

    def _begin(self, seat: Seat, board: Board) -> None:
        try:
            seat.begin(board)
        except WorldError as error:
            board.empty(seat.index)
            self._failed(seat, error, board)

    def _failed(self, seat: Seat, error: WorldError, board: Board) -> None:
        """Make the world anew, or leave it out. Raises WorldError if it was the last one."""
        while True:
            board.faults.append(error)
            self.on_fault(error)
            seat.faults += 1
            if seat.faults > self._max_faults:
                seat.close()
                if all(each.closed for each in self._seats):
                    raise error
                return
            try:
                seat.renew()
                seat.begin(board)
                return
            except WorldError as again:
                board.empty(seat.index)
                error = again

    def _meet_states(self) -> int:
        """Meet the global states; their size, 0 for none."""
        for seat in self._seats:
            seat.meet_state()
        sizes = {0 if seat.states is None else seat.states.size: seat.number for seat in self._seats}
        if len(sizes) > 1:
            allowed = "the global states of all worlds have one size"
            raise bad("state", [f"{size} floats in world {n}" for size, n in sizes.items()], allowed, "make them alike")
        return next(iter(sizes))

    def _meet_all(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Meet the agents that are known beforehand; rows for each group."""
        sizes: dict[str, int] = {}
        for seat in self._seats:
            agents = seat.first_agents()
            if not agents:
                raise WorldError("it has no agents", world=seat.number)
            for group, number in count(agents, self._kinds.group_of).items():
                sizes[group] = max(sizes.get(group, 0), number)
            seat.meet(agents)
        for group, number in rows.items():
            if number < sizes.get(group, 0):
                raise bad(f"rows.{group}", number, f"a world has {sizes[group]} agents of it", "raise it")
        return {**sizes, **rows}
