"""Training without a data plane: act, note fragments, learn, and again. `trainers` has several processes of it."""

import copy
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
from hpcjet.swarm.rollout import Rollout
from hpcjet.swarm.vector import Episode, Resumable, WorldVector

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
    overlap: bool = False
    """Act while ranks wait for each other's gradients. What is learned from is then acted during the update before, by
    weights that are at most an update old, and its values are taken as noted; the same seed gives the same bits."""
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
    """Metrics of each policy's update; with `overlap` there is none in the first."""
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
        self.rollout = Rollout(vector, self.actor, config.steps)
        self.agent_steps = 0
        self._ahead: int | None = None
        """Agent-steps of the fragments that are to be learned from next, if there are any."""

    @property
    def recorders(self) -> dict[str, Recorder]:
        """Of each group, with what it did last."""
        return self.rollout.recorders

    def iterate(self) -> Iteration:
        """Let every world take its steps, then learn from them. Raises WorldError if worlds cannot begin.

        With `overlap` it learns from the steps of the call before and takes new ones meanwhile; the first only acts.
        """
        began, rollout = time.perf_counter(), self.rollout
        learning: dict[str, dict[str, float]] = {}
        if self.config.overlap:
            ahead, made = self._ahead, {name: self.fragments(name) for name in self.learners}
            # They are learned from after this update, and acted by weights from before and from within it.
            rollout.begin(lambda group: self._version(group) + (ahead is not None), keep=True)
            if ahead is not None:
                learning = self._learn(made, self.agent_steps - ahead)
            rollout.advance()
            self._ahead = rollout.agent_steps
        else:
            rollout.begin(self._version)
            rollout.advance()
            learning = self._learn({name: self.fragments(name) for name in self.learners}, self.agent_steps)
        acted, seconds = rollout.agent_steps, time.perf_counter() - began
        self.agent_steps += acted
        return Iteration(acted, rollout.episodes, rollout.faults, learning, rollout.seconds, seconds - rollout.seconds)

    def fragments(self, policy: str) -> list[Fragment]:
        """What this policy did last: what was learned from, or, with `overlap`, what the next update learns from."""
        return [
            whole if route.rows is None else whole.of_rows(route.rows)
            for route in self.routes
            if route.policy == policy
            for whole in (self.rollout.fragments[route.group],)
        ]

    def state_dict(self) -> dict[str, Any]:
        """All that the next iteration depends on. Worlds are in it if they can be resumed."""
        begun = isinstance(self.vector, Resumable) and self.rollout.turn is not None
        return {
            "learners": {name: learner.state_dict() for name, learner in self.learners.items()},
            "actor": self.actor.rng.bit_generator.state,
            "agent_steps": self.agent_steps,
            "worlds": self.vector.state_dict() if begun else None,  # type: ignore[attr-defined]
            "ahead": None if self._ahead is None else copy.deepcopy(self.rollout.fragments),
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
        self.rollout.turn = self.vector.load_state_dict(worlds) if can else None  # type: ignore[attr-defined]
        self._ahead = None
        if self.config.overlap and state["ahead"] is not None:
            self.rollout.take(copy.deepcopy(state["ahead"]))
            self._ahead = self.rollout.agent_steps

    def _learn(self, made: Mapping[str, list[Fragment]], steps: int) -> dict[str, dict[str, float]]:
        """From what each policy did after so many agent-steps."""
        goal, found = self.config.agent_steps, {}
        rate = rate_at(steps / goal, self.config.learner.rate_end) if goal else 1.0
        for number, (name, learner) in enumerate(self.learners.items()):
            found[name] = learner.update(made[name], rate=rate, **self._meanwhile(number))
        return found

    def _meanwhile(self, number: int) -> dict[str, Any]:
        """What is done while learner `number` waits for other ranks."""
        if not self.config.overlap:
            return {}
        return {"meanwhile": lambda share: self.rollout.advance((number + share) / len(self.learners))}

    def _version(self, group: str) -> int:
        # All policies of a trainer are updated together.
        return next(self.policies[route.policy].version for route in self.routes if route.group == group)


def _seed(seed: int, use: int, number: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(use, number)).generate_state(1)[0])
