"""The formation: agents of a 2-D world take slots of a shape and hold them, without touching each other."""

from hpcjet.config.swarm.formation import FormationConfig, Shape, Start
from hpcjet.swarm.formation.core import FormationCore
from hpcjet.swarm.formation.vector import FormationVector

__all__ = ["FormationConfig", "FormationCore", "FormationVector", "Shape", "Start"]
