"""An episode of Gymnasium's or PettingZoo's environments as these draw it themselves."""

import base64
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.config.swarm.environment import GymnasiumConfig, PettingZooConfig
from hpcjet.errors import HpcjetError
from hpcjet.shown.visible import visible
from hpcjet.swarm.acting import Actor
from hpcjet.swarm.environment import group_of, world_maker
from hpcjet.swarm.policy.interface import Policy
from hpcjet.swarm.policy.routes import routes
from hpcjet.swarm.watch.png import png
from hpcjet.swarm.worlds import Worlds
from hpcjet.swarm.worlds.world import Events, World

_log = logging.getLogger(__name__)
MODES = ("rgb_array", "ansi")
"""Of their render modes, those that can be shown; the first that there is."""
MOST_FRAMES = 250
MOST_STEPS = 5_000
MOST_BYTES = 12_000_000
SECONDS = 12.0
"""So long a film takes at most."""
STILLS = 5


@dataclass(frozen=True)
class Reel:
    """Frames of one episode: PNG in base64, or texts."""

    images: list[str]
    texts: list[str]
    steps: list[int]
    """Of each frame."""

    @property
    def rate(self) -> float:
        """Frames a second."""
        return max(8.0, len(self.steps) / SECONDS)

    @property
    def frames_json(self) -> str:
        return json.dumps(self.images or self.texts)

    @property
    def stills(self) -> list[tuple[int, str]]:
        frames = self.images or self.texts
        return [(self.steps[at], frames[at]) for at in _every(len(frames), STILLS)]


class Filmed:
    """A world that is drawn after each reset and step; what goes wrong with that is no fault of the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.takes: list[list[Any]] = []
        """Frames of each episode."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def reset(self, seed: int) -> Events:
        events = self._world.reset(seed)
        self.takes.append([])
        self._draw()
        return events

    def step(self, actions: Mapping[str, Any]) -> Events:
        events = self._world.step(actions)
        self._draw()
        return events

    def _draw(self) -> None:
        env: Any = self._world
        try:
            self.takes[-1].append(env.env.render())
        except Exception as error:  # whatever an environment may raise
            _log.info("no picture: %s", error)
            self.takes[-1].append(None)


def film_world(
    env: GymnasiumConfig | PettingZooConfig, policies: Mapping[str, Policy], policy_map: Mapping[str, str], seed: int
) -> Reel | None:
    """One greedy episode as the environment draws it; None if it cannot, or not in a way that a page can show."""
    mode = _mode(env)
    if mode is None:
        return None
    made: list[Filmed] = []

    def make() -> World:
        made.append(Filmed(world_maker(_drawn(env, mode))()))
        return made[-1]

    groups = group_of(env.groups) if isinstance(env, PettingZooConfig) else group_of({})
    rows = env.rows if isinstance(env, PettingZooConfig) else None
    try:
        vector = Worlds([make], seed=seed, group_of=groups, rows=rows, limit_s=env.limit_s, max_faults=0)
    except HpcjetError as error:
        _log.info("no film: %s", error)
        return None
    try:
        _play(vector, policies, policy_map, seed)
    finally:
        vector.close()
    takes = made[-1].takes
    # The second take is that of the next episode, which has begun.
    return reel(takes[0], mode) if takes else None


def reel(frames: Sequence[Any], mode: str) -> Reel | None:
    """Of what an environment drew: arrays [H, W, 3] or texts. None if nothing of it can be shown."""
    good = [_picture(frame) if mode == "rgb_array" else _text(frame) for frame in frames]
    steps = [step for step, frame in enumerate(good) if frame is not None]
    most = MOST_FRAMES
    while steps:
        kept = [steps[at] for at in _every(len(steps), most)]
        shown = [str(good[step]) for step in kept]
        if sum(map(len, shown)) <= MOST_BYTES or most == 1:
            return Reel(shown, [], kept) if mode == "rgb_array" else Reel([], shown, kept)
        most //= 2
    return None


def _play(vector: Worlds, policies: Mapping[str, Policy], policy_map: Mapping[str, str], seed: int) -> None:
    actor = Actor(vector.spec, routes(vector.spec, dict(policy_map)), policies, seed=seed, with_values=False)
    turn = vector.reset()
    for _ in range(MOST_STEPS):
        turn = vector.step({name: acts.action for name, acts in actor.act(turn, greedy=True).items()})
        if turn.episodes:
            return


def _mode(env: GymnasiumConfig | PettingZooConfig) -> str | None:
    """How a world of this kind can draw itself; one is made and closed to learn it."""
    try:
        world: Any = world_maker(env)()
    except Exception as error:  # whatever an environment may raise
        _log.info("no film: %s", error)
        return None
    try:
        modes = (getattr(world.env, "metadata", None) or {}).get("render_modes") or []
    finally:
        world.close()
    return next((mode for mode in MODES if mode in modes), None)


def _drawn(env: Any, mode: str) -> Any:
    return replace(env, kwargs={**env.kwargs, "render_mode": mode})


def _picture(frame: Any) -> str | None:
    array: npt.NDArray[Any] = np.asarray(frame)
    if array.ndim != 3 or array.shape[2] < 3 or array.dtype != np.uint8 or not array.size:
        return None
    return base64.b64encode(png(array[:, :, :3])).decode()


def _text(frame: Any) -> str | None:
    return visible(frame)[:20_000] if isinstance(frame, str) else None


def _every(count: int, most: int) -> list[int]:
    """At most `most` of the indexes 0 to count - 1, evenly, with the first and the last."""
    return sorted({round(at * (count - 1) / max(1, min(count, most) - 1)) for at in range(min(count, most))})
