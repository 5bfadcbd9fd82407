"""What a running training consists of, for those who look at all of it."""

from dataclasses import dataclass

from hpcjet.swarm.driver.learning import Learning
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.driver.nodes import Nodes
from hpcjet.swarm.driver.plane import Plane
from hpcjet.swarm.driver.playing import Playing
from hpcjet.swarm.driver.seats import Seats


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Each is one for the whole training."""

    nodes: Nodes
    plane: Plane
    seats: Seats
    learning: Learning
    playing: Playing
    losses: Losses
