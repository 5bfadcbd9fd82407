"""Seeds of a seat: from the run's seed and the number of its first world, so that no two seats share any."""

import numpy as np

ACTING = 2
"""What a seed is for; the same as in a trainer, whose only seat begins with world 0."""
WORDS = 32


def acting_seed(seed: int, first_world: int, life: int) -> int:
    """Of the random numbers by which a seat acts."""
    word = int(np.random.SeedSequence(seed, spawn_key=(ACTING, 0)).generate_state(1)[0])
    # Not hashed together: different seats and lives give different numbers for certain.
    return word | first_world << WORDS | life << 2 * WORDS


def worlds_seed(seed: int, life: int) -> int:
    """Of worlds that began anew so often; the run's own for the first life."""
    return seed if life == 0 else seed | life << 2 * WORDS
