"""Greedy episodes, played by a process of their own on the head's node."""

import logging
from dataclasses import dataclass
from typing import Any

from hpcjet.config.swarm.exp import FormationExp, SwarmConfig
from hpcjet.swarm.actors import get_actor
from hpcjet.swarm.driver.answers import no_answer
from hpcjet.swarm.form import environment_of, form_of
from hpcjet.swarm.hosts.evaluate import evaluate
from hpcjet.swarm.policy.backends import backend
from hpcjet.swarm.vector import Episode
from hpcjet.swarm.watch import Trajectory, record_trajectory
from hpcjet.swarm.weights.actors import load

_log = logging.getLogger(__name__)
WEIGHTS_S = 60.0
"""So long the weights to play with may take to come."""
WORLDS = 16
PLAYER = "player"
"""To the cache, which remembers those that it gave weights to."""


@dataclass(frozen=True)
class Played:
    """What came of it."""

    version: int
    episodes: list[Episode]
    trajectory: Trajectory | None
    """Of a formation, if it was asked for."""


def play(exp: SwarmConfig, cache: str, version: int, seed: int, film: bool) -> Played:
    """In a Ray task: some greedy episodes with these weights or newer ones. Raises WorldError, HpcjetError."""
    import ray
    import torch

    torch.set_num_threads(1)
    form, made_by = form_of(exp), backend(exp.backend)
    policies = {name: made_by.make_policy(each, exp.policy, 0) for name, each in form.policies.items()}
    asked = get_actor(cache).weights.remote(PLAYER, -1, None, version, WEIGHTS_S)
    load(policies, ray.get(asked, timeout=2 * WEIGHTS_S))
    number = exp.evaluate_episodes
    episodes = (
        evaluate(environment_of(exp), policies, form.routes, number, seed, worlds=min(number, WORLDS)) if number else []
    )
    trajectory = None
    if film and isinstance(exp, FormationExp):
        trajectory = record_trajectory(exp.environment, policies, policy_map=exp.policy_map, seed=seed)
    return Played(max(policy.version for policy in policies.values()), episodes, trajectory)


class Playing:
    """At most one at a time, beside the training."""

    def __init__(self, exp: SwarmConfig, head: str, seed: int) -> None:
        self._exp, self._seed = exp, seed
        self.at = head
        """Ray's id of the node."""
        self._call: Any = None

    @property
    def goes_on(self) -> bool:
        return self._call is not None

    def begin(self, cache: str, version: int, *, film: bool = False) -> None:
        """With the weights of this version, or newer, that the cache of this name has."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self.at, soft=False)
        task: Any = ray.remote(num_cpus=0, max_retries=1)(play)
        self._call = task.options(scheduling_strategy=here).remote(self._exp, cache, version, self._seed, film)

    def take(self, *, wait_s: float = 0.0) -> Played | None:
        """What was played; None: not yet, or it failed, which is told."""
        import ray

        if self._call is None or not ray.wait([self._call], timeout=wait_s)[0]:
            return None
        call, self._call = self._call, None
        try:
            played: Played = ray.get(call)
            return played
        except no_answer() as error:
            _log.warning("greedy episodes failed: %s", str(error).strip().rpartition("\n")[2])
            return None

    def give_up(self) -> None:
        import ray

        if self._call is not None:
            ray.cancel(self._call, force=True)
            self._call = None
