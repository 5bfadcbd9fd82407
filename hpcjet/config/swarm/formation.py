"""What a formation is like."""

from dataclasses import dataclass, field
from enum import Enum

from hpcjet.config.check import at_least, bad


class Start(Enum):
    """Where agents begin.

    near: within start_spread of their slot, along each axis.
    scatter: anywhere in the disc around the shape; slots are given out by direction from the centre.
    """

    near = "near"
    scatter = "scatter"


class Shape(Enum):
    """What the slots form.

    circle: a ring. square: a filled grid. points: what `points` holds.
    """

    circle = "circle"
    square = "square"
    points = "points"


@dataclass
class FormationConfig:
    """One world; lengths and times are in units of their own."""

    agents: int = 100
    """Agents, and slots, in a world."""
    shape: Shape = Shape.circle
    """circle, square or points."""
    points: list[list[float]] = field(default_factory=list)
    """shape=points: [x, y] of each slot, one for each agent; they are moved so that their centre is the world's."""
    spacing: float = 0.25
    """Distance from slot to slot on the circle and the square."""
    start: Start = Start.near
    """near or scatter."""
    start_spread: float = 1.5
    """How far from their slots, or outside of the shape, agents begin."""
    turn: bool = True
    """Turn the shape by a random angle in each episode."""
    steps: int = 100
    """Length of an episode; it is truncated there."""
    dt: float = 0.1
    """Time of a step."""
    max_acceleration: float = 1.0
    """What an action of 1 means, along each axis."""
    max_speed: float = 1.0
    """Along each axis."""
    neighbours: int = 4
    """How many of the nearest others an agent sees."""
    sight: float = 0.5
    """How far it sees them."""
    reach: float = 2.0
    """The way to a slot farther than this is shown as if it were this far."""
    reward_factor: float = 1.0
    """Reward for each unit of length that an agent comes nearer to its slot."""
    collision_distance: float = 0.1
    """Agents closer than this collide."""
    collision_penalty: float = 0.05
    """Taken from the reward of each step in a collision."""
    hold_distance: float = 0.1
    """A slot is held by an agent this close to it."""
    final_reward: float = 0.0
    """Given to each agent that holds its slot when the episode ends."""

    def __post_init__(self) -> None:
        for name in ("agents", "steps", "neighbours"):
            at_least(f"exp.environment.{name}", getattr(self, name), 1)
        for name in ("spacing", "dt", "max_acceleration", "max_speed", "sight", "reach"):
            at_least(f"exp.environment.{name}", getattr(self, name), 1e-6)
        for name in ("start_spread", "collision_distance", "collision_penalty", "hold_distance"):
            at_least(f"exp.environment.{name}", getattr(self, name), 0)
        if self.collision_distance > self.sight:
            raise bad(
                "exp.environment.collision_distance", self.collision_distance, f"agents see {self.sight} far",
                "lower it or raise exp.environment.sight",
            )  # fmt: skip
        if self.shape is Shape.points:
            self._check_points()

    def _check_points(self) -> None:
        if len(self.points) != self.agents or any(len(point) != 2 for point in self.points):
            raise bad(
                "exp.environment.points", f"{len(self.points)} points", f"[x, y] for each of {self.agents} agents",
                "give as many points or set exp.environment.agents",
            )  # fmt: skip

    @property
    def observation_size(self) -> int:
        return 4 + 4 * self.neighbours
