"""Steps of all worlds by the policies as they are, noted as fragments, as many at a time as is asked for."""

import time
from collections.abc import Callable

from hpcjet.errors import WorldError
from hpcjet.swarm.acting import Actor
from hpcjet.swarm.fragment import Fragment, Recorder
from hpcjet.swarm.recording import record, recorders_of
from hpcjet.swarm.vector import Episode, Turn, WorldVector


class Rollout:
    """The worlds are the caller's. `turn` is what stands after the last step; None before the first."""

    def __init__(self, vector: WorldVector, actor: Actor, steps: int) -> None:
        self.vector, self.actor, self.steps = vector, actor, steps
        self.recorders, self._spare = recorders_of(self.vector.spec, self.steps), dict[str, Recorder]()
        self.turn: Turn | None = None
        self._done = steps
        self._forget()

    @property
    def fragments(self) -> dict[str, Fragment]:
        """Of each group, filled up to where it was advanced."""
        return {name: recorder.fragment for name, recorder in self.recorders.items()}

    @property
    def agent_steps(self) -> int:
        """How often an agent acted in `fragments`."""
        return sum(int(each.present[:-1].sum()) for each in self.fragments.values())

    def begin(self, version: Callable[[str], int], *, keep: bool = False) -> None:
        """New fragments, of this version for each group; with `keep` those before stay as they are until the next call.

        Raises WorldError if worlds cannot begin.
        """
        self._forget()
        if keep:
            self.recorders, self._spare = self._spare or recorders_of(self.vector.spec, self.steps), self.recorders
        if self.turn is None:
            self.turn = self.vector.reset()
            self.faults += self.turn.faults
        for name, recorder in self.recorders.items():
            recorder.begin(self.turn.groups[name], self.turn.state)
            recorder.fragment.version = version(name)
        self._done = 0

    def take(self, fragments: dict[str, Fragment]) -> None:
        """Have these as what was done last."""
        for name, fragment in fragments.items():
            self.recorders[name].fragment = fragment

    def advance(self, share: float = 1.0) -> None:
        """Go on until this share of the steps is done."""
        began = time.perf_counter()
        while self._done < int(share * self.steps):
            self._step()
            self._done += 1
        self.seconds += time.perf_counter() - began

    def _step(self) -> None:
        assert self.turn is not None, "begun"
        acts = self.actor.act(self.turn)
        self.turn = turn = self.vector.step({name: group.action for name, group in acts.items()})
        record(self.recorders, acts, turn)
        self.episodes += turn.episodes
        self.faults += turn.faults

    def _forget(self) -> None:
        """What was told of the steps since the last `begin`."""
        self.episodes: list[Episode] = []
        self.faults: list[WorldError] = []
        self.seconds = 0.0
