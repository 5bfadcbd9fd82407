"""W worlds of K agents, stepped together as arrays of N = W * K rows, world by world."""

import math

import numpy as np
import numpy.typing as npt

from hpcjet.config.swarm.formation import FormationConfig, Start
from hpcjet.swarm.formation.neighbours import Neighbours
from hpcjet.swarm.formation.shapes import radius, slots
from hpcjet.swarm.seeds import generator

Floats = npt.NDArray[np.floating]
Observations = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class FormationCore:
    """Double integrators that steer to their slots by acceleration.

    Observation of an agent, float32 [4 + 4k]: its velocity, the way to its slot (at most `reach`), and of each of the k
    nearest others in sight the relative position (in units of sight; 1, 1 for none) and the relative velocity.

    Reward of a step: reward_factor times the decrease of the distance to the slot, less the collision penalty, and the
    final reward at the end. So its sum over an episode is reward_factor * (first - last distance) plus these terms.
    """

    def __init__(
        self,
        config: FormationConfig,
        worlds: int,
        *,
        seed: int,
        first_world: int = 0,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.config, self.worlds, self.agents = config, worlds, config.agents
        self.seed, self.first_world = seed, first_world
        self.size = worlds * config.agents
        self._places = slots(config)
        self.radius = radius(self._places)
        self._neighbours = self._finder(worlds)
        # One row more than agents: the missing neighbour.
        self.position, self.velocity, self.slot = (np.zeros((2, self.size + 1), dtype=dtype) for _ in range(3))
        self.distance = np.zeros(self.size, dtype=dtype)
        self.colliding = np.zeros(self.size, dtype=bool)
        self.clock = np.zeros(worlds, dtype=np.int64)
        self.episode = np.full(worlds, -1, dtype=np.int64)

    def reset(self, which: Ints | None = None) -> None:
        """Begin the next episode in these worlds (their rows here), by default in all."""
        for world in range(self.worlds) if which is None else which:
            self.episode[world] += 1
            self.clock[world] = 0
            rows = slice(world * self.agents, (world + 1) * self.agents)
            rng = generator(self.seed, self.first_world + int(world), int(self.episode[world]))
            self.slot[:, rows], self.position[:, rows] = self._begin(rng)
            self.velocity[:, rows] = 0

    def restart(self, seed: int) -> None:
        """Go on with the first episodes of another seed at the next reset."""
        self.seed = seed
        self.episode[:] = -1

    def move(self, actions: npt.NDArray[np.floating]) -> None:
        """Accelerate by actions [N, 2], clipped to -1 to 1, for one step."""
        c = self.config
        velocity = self.velocity[:, :-1]
        velocity += np.clip(actions.T, -1, 1) * np.asarray(c.dt * c.max_acceleration, dtype=velocity.dtype)
        np.clip(velocity, -c.max_speed, c.max_speed, out=velocity)
        self.position[:, :-1] += c.dt * velocity
        self.clock += 1

    def observe(self, out: Observations, which: Ints | None = None) -> None:
        """Write the observations [N, F], or only those of some worlds, and refresh `distance` and `colliding`."""
        rows, finder = slice(0, self.size), self._neighbours
        if which is not None and len(which) < self.worlds:
            # A few worlds by themselves: what others do does not matter to them.
            rows, finder = self.rows(which), self._finder(len(which))  # type: ignore[assignment]
        position, velocity = self.position[:, rows], self.velocity[:, rows]
        to_slot = self.slot[:, rows] - position
        distance = np.sqrt(np.square(to_slot[0]) + np.square(to_slot[1]))
        found, nearest = finder.find(position)
        self.distance[rows] = distance
        self.colliding[rows] = nearest < self.config.collision_distance**2
        out[rows] = self._observation(velocity, to_slot, distance, position, found)

    def rewards(self, before: Floats) -> Floats:
        """Rewards [N] of the step that led here, `before` being the distances then."""
        c = self.config
        reward = (before - self.distance) * c.reward_factor - c.collision_penalty * self.colliding
        if c.final_reward:
            reward += c.final_reward * (np.repeat(self.ended, self.agents) & self.held)
        return reward

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """[W], worlds whose episode is over."""
        return self.clock >= self.config.steps

    @property
    def held(self) -> npt.NDArray[np.bool_]:
        """[N], agents that hold their slot."""
        return self.distance <= self.config.hold_distance

    def rows(self, which: Ints) -> Ints:
        """The rows of these worlds."""
        return (which[:, None] * self.agents + np.arange(self.agents)).reshape(-1)

    def _observation(
        self, velocity: Floats, to_slot: Floats, distance: Floats, position: Floats, found: Ints
    ) -> Observations:
        c = self.config
        size = position.shape[1]
        result = np.empty((size, c.observation_size), dtype=np.float32)
        result[:, 0:2] = velocity.T
        result[:, 2:4] = (to_slot * (c.reach / np.maximum(distance, c.reach))).T
        others = result[:, 4:].reshape(size, c.neighbours, 4)
        missing = found == size
        found = np.where(missing, 0, found)
        for axis in range(2):
            relative = (position[axis][found] - position[axis]) * (1 / c.sight)
            relative[missing] = 1
            others[:, :, axis] = relative.T
            relative = velocity[axis][found] - velocity[axis]
            relative[missing] = 0
            others[:, :, 2 + axis] = relative.T
        return result

    def _finder(self, worlds: int) -> Neighbours:
        return Neighbours(worlds, self.agents, sight=self.config.sight, k=self.config.neighbours)

    def _begin(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Slots and positions of one episode, [2, K] each."""
        c = self.config
        angle = rng.uniform(0, 2 * math.pi) if c.turn else 0.0
        cos, sin = math.cos(angle), math.sin(angle)
        places = np.array([[cos, -sin], [sin, cos]]) @ self._places
        if c.start is Start.near:
            return places, places + rng.uniform(-c.start_spread, c.start_spread, places.shape)
        length = (self.radius + c.start_spread) * np.sqrt(rng.random(self.agents))
        direction = rng.uniform(-math.pi, math.pi, self.agents)
        position = np.empty_like(places)
        position[:, np.argsort(np.arctan2(places[1], places[0]))] = np.sort(direction), length
        return places, position[1] * np.stack([np.cos(position[0]), np.sin(position[0])])
