"""Greedy episodes, outside of training."""

from collections.abc import Mapping, Sequence

import numpy as np

from hpcjet.config.check import at_least
from hpcjet.config.swarm.environment import EnvironmentConfig
from hpcjet.errors import WorldError
from hpcjet.swarm.acting import Actor
from hpcjet.swarm.environment import make_vector
from hpcjet.swarm.policy.interface import Policy
from hpcjet.swarm.policy.routes import Route
from hpcjet.swarm.vector import Episode, WorldVector

EVALUATION = 3
"""What the seed is for: trainers and hosts use other numbers."""


def evaluate(
    env: EnvironmentConfig,
    policies: Mapping[str, Policy],
    routes: Sequence[Route],
    episodes: int,
    seed: int,
    *,
    worlds: int = 16,
    max_steps: int = 100_000,
) -> list[Episode]:
    """So many greedy episodes, in at most `worlds` worlds at a time.

    Each world plays a number of episodes that is fixed beforehand, so that short ones do not count more than long ones.
    Seeds are others than those of training. Raises WorldError for a world that does not come to an end of its episodes
    in `max_steps` steps for each, and what `make_vector` raises.
    """
    at_least("episodes", episodes, 1)
    width = min(episodes, worlds)
    quota = [episodes // width + (world < episodes % width) for world in range(width)]
    derived = int(np.random.SeedSequence(seed, spawn_key=(EVALUATION,)).generate_state(1)[0])
    vector = make_vector(env, width, seed=derived, first_world=0, with_state=False)
    try:
        return _play(vector, Actor(vector.spec, routes, policies, seed=derived, with_values=False), quota, max_steps)
    finally:
        vector.close()


def _play(vector: WorldVector, actor: Actor, quota: list[int], max_steps: int) -> list[Episode]:
    turn, found, left = vector.reset(), [], list(quota)
    faults = list(turn.faults)
    for _ in range(max_steps * max(quota)):
        acts = actor.act(turn, greedy=True)
        turn = vector.step({name: group.action for name, group in acts.items()})
        faults += turn.faults
        for episode in turn.episodes:
            if left[episode.world]:
                left[episode.world] -= 1
                found.append(episode)
        if not any(left):
            return found
    world = next(number for number, more in enumerate(left) if more)
    why = f"; it failed: {faults[-1]}" if faults else ""
    raise WorldError(f"{left[world]} episodes did not end in so many steps for each{why}", world=world, step=max_steps)
