"""The worlds of a seat, and how they are acted in: fragments come out. Nothing of the data plane."""

import time
from collections.abc import Callable
from dataclasses import replace

from hpcjet.config.check import bad
from hpcjet.swarm.acting import Actor
from hpcjet.swarm.environment import make_vector
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.hosts.seeds import acting_seed, worlds_seed
from hpcjet.swarm.hosts.spec import HostSpec, HostState
from hpcjet.swarm.hosts.tally import Tally
from hpcjet.swarm.policy.backends import backend
from hpcjet.swarm.policy.routes import Route, policy_specs, routes
from hpcjet.swarm.recording import record, recorders_of
from hpcjet.swarm.vector import Resumable, Turn, VectorSpec
from hpcjet.swarm.worlds import Worlds


class Seat:
    """Makes worlds and policies at once, and begins the worlds with the first fragment, or where `state` left them.

    A seat that was started again without a state of its worlds gives them other seeds than before, so that they do not
    play the same episodes again. Raises what `make_vector` raises, and ConfigError for a policy map or a state that
    does not fit.
    """

    def __init__(self, spec: HostSpec, attempt: int, state: HostState | None = None) -> None:
        self.spec, self.tally = spec, Tally()
        resumed = state is not None and state.worlds is not None
        self.life = attempt if state is None else state.life if resumed else max(state.life + 1, attempt)
        self.vector = make_vector(
            spec.env, spec.worlds, seed=worlds_seed(spec.seed, self.life), first_world=spec.first_world,
            with_state=spec.policy.central_critic, stagger=spec.stagger,
        )  # fmt: skip
        if isinstance(self.vector, Worlds):
            self.vector.on_fault = self.tally.fault
        form: VectorSpec = self.vector.spec
        self.routes: list[Route] = routes(form, spec.policy_map)
        forms = policy_specs(form, self.routes, central_critic=spec.policy.central_critic)
        made_by = backend(spec.backend)
        # Their weights come from the learner before they act.
        self.policies = {name: made_by.make_policy(each, spec.policy, 0) for name, each in forms.items()}
        seed = acting_seed(spec.seed, spec.first_world, self.life)
        self.seeds = seed, worlds_seed(spec.seed, self.life)
        self.actor = Actor(form, self.routes, self.policies, seed=seed, with_values=spec.with_values)
        self.recorders = recorders_of(form, spec.steps)
        self.since: tuple[str, float] | None = None
        """What the vector is doing, and since when (monotonic seconds)."""
        self._turn: Turn | None = None
        if state is not None:
            self._resume(state)

    def begin(self) -> None:
        """Begin the worlds, unless they have begun. Raises WorldError."""
        if self._turn is None:
            self.since = "reset", time.monotonic()
            self._turn = self.vector.reset()
            self.since = None
            self.tally.begun(range(self.spec.first_world, self.spec.first_world + self.spec.worlds))
            self.tally.note(self._turn)

    def state(self, version: int, first_step: int) -> HostState:
        """What stands before a fragment; copied."""
        worlds = self.vector.state_dict() if isinstance(self.vector, Resumable) else None
        return HostState(version, first_step, self.life, self.actor.rng.bit_generator.state, worlds)

    def fragments(self, version: int, stopped: Callable[[], bool] = lambda: False) -> list[tuple[Route, Fragment]]:
        """T steps, as a fragment for each route; none if it was stopped on the way. Raises WorldError.

        The arrays hold until the next call.
        """
        self.begin()
        assert self._turn is not None
        turn, tally, clock = self._turn, self.tally, time.perf_counter
        for name, recorder in self.recorders.items():
            recorder.begin(turn.groups[name], turn.state)
            recorder.fragment.version = version
        for _ in range(self.spec.steps):
            if stopped():
                return []
            began = clock()
            acts = self.actor.act(turn)
            acted = clock()
            self.since = f"step {tally.steps}", time.monotonic()
            turn = self._turn = self.vector.step({name: group.action for name, group in acts.items()})
            self.since = None
            stepped = clock()
            record(self.recorders, acts, turn)
            tally.note(turn, acted - began, stepped - acted, clock() - stepped)
        return [(route, self._part(route)) for route in self.routes]

    def close(self) -> None:
        self.vector.close()

    def _part(self, route: Route) -> Fragment:
        whole = self.recorders[route.group].fragment
        if not self.spec.with_values:
            whole = replace(whole, value=None)  # else learners would take zeros for values
        return whole if route.rows is None else whole.of_rows(route.rows)

    def _resume(self, state: HostState) -> None:
        try:
            self.actor.rng.bit_generator.state = state.rng
            if state.worlds is not None and isinstance(self.vector, Resumable):
                self._turn = self.vector.load_state_dict(state.worlds)
        except (KeyError, TypeError, ValueError) as error:
            allowed = f"the state is of other worlds ({error})"
            raise bad("worlds", f"{self.spec.worlds} of {self.spec.seat}", allowed, "set them as they were") from error
