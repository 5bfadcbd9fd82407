"""Where the slots are."""

import math

import numpy as np
import numpy.typing as npt

from hpcjet.config.swarm.formation import FormationConfig, Shape


def slots(config: FormationConfig) -> npt.NDArray[np.float64]:
    """[2, agents], around the origin."""
    match config.shape:
        case Shape.circle:
            angle = np.arange(config.agents) * (2 * math.pi / config.agents)
            radius = config.agents * config.spacing / (2 * math.pi)
            return np.asarray(radius * np.stack([np.cos(angle), np.sin(angle)]))
        case Shape.square:
            side = math.ceil(math.sqrt(config.agents))
            places = np.stack(np.divmod(np.arange(config.agents), side)) * config.spacing
        case Shape.points:
            places = np.asarray(config.points, dtype=np.float64).T
    return np.asarray(places - places.mean(axis=1, keepdims=True))


def radius(places: npt.NDArray[np.float64]) -> float:
    """Distance of the farthest slot from the centre."""
    return float(np.hypot(*places).max())
