"""What the policy of a run does without chance in its actions, for a person to look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcjet.atomic import atomic_write
from hpcjet.config.check import bad
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir
from hpcjet.shown.page import template
from hpcjet.shown.visible import visible
from hpcjet.swarm.checkpoints import Damaged, load_policies, versions
from hpcjet.swarm.environment import spec_of
from hpcjet.swarm.form import environment_of
from hpcjet.swarm.hosts.evaluate import EVALUATION, evaluate
from hpcjet.swarm.policy.interface import Policy
from hpcjet.swarm.policy.routes import routes
from hpcjet.swarm.vector import Episode
from hpcjet.swarm.watch.chart import short
from hpcjet.swarm.watch.files import SwarmFiles
from hpcjet.swarm.watch.film import film, stills
from hpcjet.swarm.watch.reel import Reel, film_world
from hpcjet.swarm.watch.report import HERE, player_script
from hpcjet.swarm.watch.terminal import episode_lines
from hpcjet.swarm.watch.trajectory import Trajectory, record_trajectory
from hpcjet.swarm.watch.views import Figure

EPISODES = 4
"""Of environments that are none of ours."""
MOST_STEPS = 10_000


@dataclass(frozen=True)
class Played:
    """A trajectory for a formation, else episodes and perhaps a film of another one."""

    version: int
    seed: int
    trajectory: Trajectory | None = None
    episodes: Sequence[Episode] = ()
    reel: Reel | None = None

    @property
    def returns(self) -> float | None:
        """Mean over the agents of the episodes."""
        if self.trajectory:
            return self.trajectory.returns
        agents = sum(sum(each.agents.values()) for each in self.episodes)
        return sum(sum(each.returns.values()) for each in self.episodes) / agents if agents else None


def policies_of(run: RunDir, checkpoint: int | None) -> dict[str, Policy]:
    """Of this checkpoint, or of the newest. Raises ConfigError if there is none, or it cannot be read."""
    folder = SwarmFiles.of(run).checkpoints
    if checkpoint is not None and checkpoint not in (there := versions(folder)):
        allowed = f"there are {', '.join(map(str, there[-10:]))}" if there else "there are none yet"
        raise bad("--checkpoint", checkpoint, allowed, "choose one of them, or leave it out for the newest")
    try:
        return load_policies(folder if checkpoint is None else folder / f"{checkpoint:08d}")
    except Damaged as error:
        raise ConfigError(f"checkpoint {checkpoint} of {run} is damaged ({error}); choose another") from None


def play(
    exp: SwarmConfig, policies: dict[str, Policy], *, agents: int = 0, seed: int = 0, pictures: bool = True
) -> Played:
    """One episode of a formation, some of another environment. Raises ConfigError, WorldError."""
    environment = environment_of(exp)
    version = max(policy.version for policy in policies.values())
    if isinstance(environment, FormationConfig):
        trajectory = record_trajectory(environment, policies, policy_map=exp.policy_map, agents=agents, seed=seed)
        return Played(version, seed, trajectory)
    if agents:
        raise bad("--agents", agents, "only a formation takes another number of agents", "leave it out")
    ways = routes(spec_of(environment, with_state=False), exp.policy_map)
    episodes = evaluate(environment, policies, ways, EPISODES, seed, worlds=EPISODES, max_steps=MOST_STEPS)
    derived = int(np.random.SeedSequence(seed, spawn_key=(EVALUATION,)).generate_state(1)[0])
    reel = film_world(environment, policies, exp.policy_map, derived) if pictures else None
    return Played(version, seed, episodes=episodes, reel=reel)


def write_page(path: Path, played: Played, *, run: RunDir, subtitle: str) -> None:
    """A page that needs nothing else. Raises ConfigError if it cannot be written."""
    script, script_hash = player_script()
    names, lines = episode_lines(played.episodes)
    page = template(HERE, "play.html.j2").render(
        title=visible(f"{run.path.parent.name}/{run.path.name}"),
        subtitle=visible(subtitle),
        run=visible(str(run.path)),
        version=played.version,
        figures=_figures(played),
        film=film(played.trajectory) if played.trajectory else None,
        stills=stills(played.trajectory) if played.trajectory else [],
        reel=played.reel,
        names=[visible(name.replace("_", " ")) for name in names],
        lines=lines,
        script=script,
        script_hash=script_hash,
    )
    try:
        atomic_write(path, page.encode("utf-8", "replace"))
    except OSError as error:
        raise ConfigError(f"--out {path} cannot be written: {error.strerror}; choose another file") from None


def _figures(played: Played) -> list[Figure]:
    found = [Figure(f"{played.version:,}", "updates before it")]
    if played.trajectory:
        held = float(played.trajectory.held[-1].mean())
        found.insert(0, Figure(f"{100 * held:.0f} %", "of the slots held at the end", good=True))
        found.append(Figure(f"{played.trajectory.agents:,}", "agents"))
    if played.returns is not None:
        found.append(Figure(short(played.returns), "return of an agent"))
    return [*found, Figure(str(played.seed), "seed")]
