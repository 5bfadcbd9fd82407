"""The interface of a vector of worlds; the package's docstring tells how it is meant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hpcjet.errors import WorldError
from hpcjet.swarm.spaces.layout import ActionLayout

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GroupSpec:
    """Agents that share a policy, and so the shapes of their observations and actions."""

    rows: int
    """R, the most agents of the group in a world at a time."""
    observation_size: int
    """F"""
    actions: ActionLayout
    has_mask: bool = False
    """Whether agents of this group may be given masks of the actions that are allowed."""


@dataclass(frozen=True)
class VectorSpec:
    worlds: int
    """W"""
    groups: Mapping[str, GroupSpec]
    state_size: int = 0
    """S, floats of the global state that a central critic sees; 0 for none."""


@dataclass
class GroupTurn:
    """One group after a reset or a step: what to act on now, and what came of the last actions."""

    observation: Floats
    """[W, R, F]; rows that are not present hold what they like."""
    present: Bools
    """[W, R], the rows that act now."""
    reward: Floats
    """[W, R], what each row earned in this step, paused rows too; 0 after a reset."""
    terminated: Bools
    """[W, R], the life that stood in this row ended for good."""
    truncated: Bools
    """[W, R], it was cut short. Never both."""
    final_rows: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """[n], w * R + r of those lives that ended with a last observation; other truncated lives have no bootstrap."""
    final_observation: Floats = field(default_factory=lambda: np.empty((0, 0), dtype=np.float32))
    """[n, F]"""
    action_mask: Bools | None = None
    """[W, R, M], allowed choices, all of them where no mask was given; None if the group has no masks."""
    mask_given: Bools | None = None
    """[W, R], the rows that were given one."""


@dataclass(frozen=True)
class Episode:
    """An episode that ended in this step."""

    world: int
    """Its number in the whole run."""
    number: int
    """Which episode of that world, from 0."""
    steps: int
    returns: Mapping[str, float]
    """The sum of the rewards of all agents of each group."""
    agents: Mapping[str, int]
    """How many agents of each group took part."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the world says of itself, such as the share of slots that are held."""


@dataclass
class Turn:
    """All worlds after a reset or a step. Its arrays hold until the next call of the same vector."""

    groups: dict[str, GroupTurn]
    episodes: list[Episode] = field(default_factory=list)
    faults: list[WorldError] = field(default_factory=list)
    """Worlds that failed in this step; what their agents had begun counts as truncated without a last observation."""
    state: Floats | None = None
    """[W, S]"""
    final_state: Floats | None = None
    """[W, S], as it was after this step before worlds began anew; for those with a last observation."""


class WorldVector(Protocol):
    """W worlds that are stepped together."""

    @property
    def spec(self) -> VectorSpec: ...

    def reset(self) -> Turn:
        """Begin a new episode in every world. Raises WorldError."""

    def step(self, actions: Mapping[str, npt.NDArray[Any]]) -> Turn:
        """Actions of each group, [W, R, A]; those of rows that were not present are ignored. Raises WorldError."""

    def close(self) -> None:
        """Free what the worlds hold; may be called twice."""


@runtime_checkable
class Resumable(Protocol):
    """A WorldVector that can go on from where another one was."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on, copied."""

    def load_state_dict(self, state: Mapping[str, Any]) -> Turn:
        """Go on from there; the turn holds what stands now, and nothing of the step that led there."""
