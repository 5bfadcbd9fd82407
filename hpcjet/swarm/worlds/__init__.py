"""Environments of others as vectors of worlds.

`Worlds` steps environments one by one: PettingZoo's parallel and turn-based ones and Gymnasium's, each through a small
adapter. `GymnasiumVector` takes a vector environment of Gymnasium as it is.
"""

from hpcjet.swarm.worlds.aec import AecWorld
from hpcjet.swarm.worlds.gymnasium_vector import GymnasiumVector
from hpcjet.swarm.worlds.parallel import ParallelWorld
from hpcjet.swarm.worlds.single import SingleWorld
from hpcjet.swarm.worlds.worlds import Worlds

__all__ = ["AecWorld", "GymnasiumVector", "ParallelWorld", "SingleWorld", "Worlds"]
