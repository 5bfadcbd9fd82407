"""Seeds are disjoint over worlds and episodes, and differ from run to run."""

import numpy as np
import pytest

from hpcjet.swarm.seeds import SEED_BITS, environment_seed, generator


def test_seeds_are_disjoint() -> None:
    drawn = [environment_seed(3, world, episode) for world in range(60) for episode in range(60)]
    drawn += [environment_seed(3, world, episode) for world in (65_534, 65_535) for episode in (32_766, 32_767)]
    assert len(set(drawn)) == len(drawn) and all(0 <= seed < 1 << SEED_BITS for seed in drawn)
    assert drawn[0] != environment_seed(4, 0, 0) and drawn[0] == environment_seed(3, 0, 0)
    # Spread over the range: neighbours are no neighbours.
    assert 0.4 < np.mean(np.array(drawn) < 1 << (SEED_BITS - 1)) < 0.6
    with pytest.raises(ValueError, match="65536"):
        environment_seed(0, 65_536, 0)


def test_generators_are_independent() -> None:
    drawn = {tuple(generator(1, world, episode).integers(0, 2**32, 4)) for world in range(9) for episode in range(9)}
    assert len(drawn) == 81 and generator(1, 2, 3).random() == generator(1, 2, 3).random()
