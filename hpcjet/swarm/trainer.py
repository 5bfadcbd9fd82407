"""Training without a data plane: act, note fragments, learn, and again. `trainers` has several processes of it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcjet.config.check import at_least, bad
from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.errors import WorldError
from hpcjet.swarm.acting import Actor
from hpcjet.swarm.fragment import Fragment, Recorder
from hpcjet.swarm.learning.ranks import ALONE, Ranks
from hpcjet.swarm.learning.schedule import rate_at
from hpcjet.swarm.policy.backends import backend
from hpcjet.swarm.policy.routes import policy_specs, routes
from hpcjet.swarm.vector import Episode, Resumable, Turn, WorldVector

_POLICY, _LEARNER, _ACTOR = range(3)
"""What a seed is for."""


@dataclass
class TrainerConfig:
    """One training."""

    seed: int = 0
    """All random numbers of policies and learners come from it."""
    backend: str = "torch"
    """torch, or the dotted name of a module with make_policy and make_learner."""
    steps: int = 100
    """Steps of every world between two updates."""
    agent_steps: int = 0
    """When the learning rate has come to its end (learner.rate_end); 0: it stays as it is."""
    policy_map: dict[str, str] = field(default_factory=dict)
    """From a group (or * for all others) to its policy; {row} in the name makes one for each row. Empty: one for each
    group."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)


@dataclass
class Iteration:
    """What came of acting and learning once."""

    agent_steps: int
    """How often an agent acted."""
    episodes: list[Episode]
    faults: list[WorldError]
    learning: dict[str, dict[str, float]]
    """Metrics of each policy's update."""
    acting_seconds: float
    learning_seconds: float


class Trainer:
    """The worlds are the caller's: built before, closed after.

    With several ranks each acts in worlds of its own, and all learn together: what one learned from is a share of what
    each minibatch has. `Iteration` tells of this rank's worlds, and of the learning of all.
    """

    def __init__(self, vector: WorldVector, config: TrainerConfig, ranks: Ranks = ALONE) -> None:
        self.vector, self.config = vector, config
        spec, made_by = vector.spec, backend(config.backend)
        self.routes = routes(spec, config.policy_map)
        specs = policy_specs(spec, self.routes, central_critic=config.policy.central_critic)
        self.policies = {
            name: made_by.make_policy(form, config.policy, _seed(config.seed, _POLICY, number))
            for number, (name, form) in enumerate(specs.items())
        }
        self.learners = {
            name: made_by.make_learner(policy, config.learner, _seed(config.seed, _LEARNER, number), ranks=ranks)
            for number, (name, policy) in enumerate(self.policies.items())
        }
        self.actor = Actor(spec, self.routes, self.policies, seed=_seed(config.seed, _ACTOR, ranks.rank))
        self.recorders = {
            name: Recorder(group, spec.worlds, config.steps, state_size=spec.state_size)
            for name, group in spec.groups.items()
        }
        self.agent_steps = 0
        self._turn: Turn | None = None

    def iterate(self) -> Iteration:
        """Let every world take its steps, then learn from them. Raises WorldError if worlds cannot begin."""
        began = time.perf_counter()
        episodes, faults = self._act()
        between = time.perf_counter()
        acted = sum(int(recorder.fragment.present[:-1].sum()) for recorder in self.recorders.values())
        goal = self.config.agent_steps
        rate = rate_at(self.agent_steps / goal, self.config.learner.rate_end) if goal else 1.0
        self.agent_steps += acted
        learning = {name: learner.update(self.fragments(name), rate=rate) for name, learner in self.learners.items()}
        return Iteration(acted, episodes, faults, learning, between - began, time.perf_counter() - between)

    def fragments(self, policy: str) -> list[Fragment]:
        """What this policy did since the last update."""
        return [
            whole if route.rows is None else whole.of_rows(route.rows)
            for route in self.routes
            if route.policy == policy
            for whole in (self.recorders[route.group].fragment,)
        ]

    def state_dict(self) -> dict[str, Any]:
        """All that the next iteration depends on. Worlds are in it if they can be resumed."""
        worlds = self.vector.state_dict() if isinstance(self.vector, Resumable) and self._turn is not None else None
        return {
            "learners": {name: learner.state_dict() for name, learner in self.learners.items()},
            "actor": self.actor.rng.bit_generator.state,
            "agent_steps": self.agent_steps,
            "worlds": worlds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: bit for bit if the worlds can be resumed, else with new episodes.

        Raises ConfigError for a state with other policies.
        """
        if state["learners"].keys() != self.learners.keys():
            allowed = f"the state has {', '.join(state['learners'])}, this trainer {', '.join(self.learners)}"
            raise bad("policy_map", self.config.policy_map, allowed, "set it as it was then")
        for name, learner in self.learners.items():
            learner.load_state_dict(state["learners"][name])
        self.actor.rng.bit_generator.state = state["actor"]
        self.agent_steps = state["agent_steps"]
        worlds = state["worlds"]
        can = worlds is not None and isinstance(self.vector, Resumable)
        self._turn = self.vector.load_state_dict(worlds) if can else None  # type: ignore[attr-defined]

    def _act(self) -> tuple[list[Episode], list[WorldError]]:
        episodes: list[Episode] = []
        faults: list[WorldError] = []
        if self._turn is None:
            self._turn = self.vector.reset()
            faults += self._turn.faults
        turn = self._turn
        for name, recorder in self.recorders.items():
            recorder.begin(turn.groups[name], turn.state)
            recorder.fragment.version = self._version(name)
        for _ in range(self.config.steps):
            acts = self.actor.act(turn)
            turn = self.vector.step({name: group.action for name, group in acts.items()})
            for name, recorder in self.recorders.items():
                did = acts[name]
                value = 0.0 if did.value is None else did.value
                recorder.add(
                    did.action, turn.groups[name], log_prob=did.log_prob, value=value, state=turn.state,
                    final_state=turn.final_state,
                )  # fmt: skip
            episodes += turn.episodes
            faults += turn.faults
        self._turn = turn
        return episodes, faults

    def _version(self, group: str) -> int:
        # All policies of a trainer are updated together.
        return next(self.policies[route.policy].version for route in self.routes if route.group == group)


def _seed(seed: int, use: int, number: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(use, number)).generate_state(1)[0])
