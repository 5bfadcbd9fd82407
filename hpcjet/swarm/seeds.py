"""Seeds of worlds and episodes: derived from the run's, never shared by two of them."""

import numpy as np

WORLD_BITS = 16
EPISODE_BITS = 15
SEED_BITS = WORLD_BITS + EPISODE_BITS
"""Environments take seeds of 31 bits without trouble."""


def generator(seed: int, world: int, episode: int) -> np.random.Generator:
    """Random numbers of one episode of one world (numbered over the whole run): the same on whatever node it runs."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(world, episode)))


def environment_seed(seed: int, world: int, episode: int) -> int:
    """A seed below 2**31 for one episode of an environment.

    Two worlds of a run never share one, and no world has one twice within 32,768 episodes; different runs differ.
    Raises ValueError for a world of 65,536 or more.
    """
    if not 0 <= world < 1 << WORLD_BITS:
        raise ValueError(f"world {world}: worlds of a run are numbered below {1 << WORLD_BITS}")
    key = np.random.SeedSequence(seed).generate_state(4)
    mixed = (episode % (1 << EPISODE_BITS)) << WORLD_BITS | world
    # Each line is one-to-one on numbers of SEED_BITS bits, so that different inputs stay different.
    for word in key:
        mixed ^= int(word) & ((1 << SEED_BITS) - 1)
        mixed = mixed * (2 * int(word) + 1) & ((1 << SEED_BITS) - 1)
        mixed ^= mixed >> 15
    return mixed


POLICY, LEARNER = range(2)
"""What a seed is for."""


def part_seed(seed: int, use: int, number: int) -> int:
    """Of the weights, or the order of samples, of one policy of a run."""
    return int(np.random.SeedSequence(seed, spawn_key=(use, number)).generate_state(1)[0])
