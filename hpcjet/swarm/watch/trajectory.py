"""A formation as its policy moves it, without chance in the actions."""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpcjet.atomic import atomic_write
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm.acting import Actor
from hpcjet.swarm.formation.vector import FormationVector
from hpcjet.swarm.hosts.evaluate import EVALUATION
from hpcjet.swarm.policy.interface import Policy
from hpcjet.swarm.policy.routes import routes

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Trajectory:
    """One episode of one world of K agents; T steps are T + 1 moments."""

    position: Floats
    """[T + 1, K, 2]"""
    held: npt.NDArray[np.bool_]
    """[T + 1, K], agents that hold their slot."""
    slots: Floats
    """[K, 2]"""
    returns: float
    """Mean over the agents of the sum of their rewards."""
    dt: float
    """Time between two moments, in the world's units."""
    version: int
    """Of the policy: how often it was updated."""
    seed: int

    @property
    def steps(self) -> int:
        return len(self.position) - 1

    @property
    def agents(self) -> int:
        return int(self.position.shape[1])

    def save(self, path: Path) -> None:
        """As npz, in one step. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        data = io.BytesIO()
        facts = np.array([self.returns, self.dt, self.version, self.seed], dtype=np.float64)
        np.savez_compressed(data, position=self.position, held=self.held, slots=self.slots, facts=facts)
        atomic_write(path, data.getvalue())


def load_trajectory(path: Path) -> Trajectory | None:
    """None if there is none, or none that can be read."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            returns, dt, version, seed = (float(each) for each in data["facts"])
            found = Trajectory(
                data["position"], data["held"], data["slots"], returns=returns, dt=dt, version=int(version),
                seed=int(seed),
            )  # fmt: skip
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    whole = found.position.ndim == 3 and found.held.shape == found.position.shape[:2] and found.agents
    return found if whole and found.slots.shape == found.position.shape[1:] else None


def record_trajectory(
    config: FormationConfig,
    policies: Mapping[str, Policy],
    *,
    policy_map: Mapping[str, str] | None = None,
    agents: int = 0,
    seed: int = 0,
) -> Trajectory:
    """One greedy episode, with seeds that no training has.

    `agents`: other than the policy was trained with; 0 for as many. Raises ConfigError if the policies do not fit.
    """
    if agents:
        config = replace(config, agents=agents)
    # A world that ends begins anew in the same step: one step more, and its last moment can be seen.
    derived = int(np.random.SeedSequence(seed, spawn_key=(EVALUATION,)).generate_state(1)[0])
    vector = FormationVector(replace(config, steps=config.steps + 1), 1, seed=derived)
    ways = routes(vector.spec, dict(policy_map or {}))
    missing = {way.policy for way in ways} - policies.keys()
    if missing:
        raise ConfigError(f"the checkpoint has no policy {', '.join(sorted(missing))}: it has {', '.join(policies)}")
    actor = Actor(vector.spec, ways, policies, seed=derived, with_values=False)
    turn, core = vector.reset(), vector.core
    moments, held, returns = [core.position[:, :-1].copy()], [core.held], 0.0
    for _ in range(config.steps):
        turn = vector.step({name: acts.action for name, acts in actor.act(turn, greedy=True).items()})
        moments.append(core.position[:, :-1].copy())
        held.append(core.held)
        returns += sum(float(group.reward.sum()) for group in turn.groups.values())
    return Trajectory(
        position=np.stack(moments).transpose(0, 2, 1).astype(np.float32),
        held=np.stack(held),
        slots=core.slot[:, :-1].T.astype(np.float32),
        returns=returns / config.agents,
        dt=config.dt,
        version=max(policies[way.policy].version for way in ways),
        seed=seed,
    )
