"""What a backend gives: policies that act, and learners that change them. Arrays of numpy go in and come out.

A backend is one module with `make_policy` and `make_learner`. Everything that is not a network (noise, trajectories,
advantages, the choice of samples) is made outside of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.learning.ranks import ALONE, Ranks
from hpcjet.swarm.spaces.layout import ActionLayout
from hpcjet.swarm.vector import Bools, Floats

Meanwhile = Callable[[float], None]
"""What can be done while an update waits: it is told which share of the update is done."""


@dataclass(frozen=True)
class PolicySpec:
    """Shapes of what a policy sees and does."""

    observation_size: int
    """F"""
    actions: ActionLayout
    has_mask: bool = False
    state_size: int = 0
    """S, floats of global state that its values are made from besides the observation; 0 for none."""


class Acts(NamedTuple):
    """What N agents do."""

    action: npt.NDArray[Any]
    """[N, A]"""
    log_prob: Floats
    """[N]"""
    value: Floats | None
    """[N], in units of reward."""


class Policy(Protocol):
    """Weights of one version. No method changes them but `load_weights`."""

    spec: PolicySpec
    version: int
    """How often it was updated."""

    def act(
        self,
        observation: Floats,
        noise: Floats | None,
        *,
        mask: Bools | None = None,
        state: Floats | None = None,
        with_values: bool = True,
    ) -> Acts:
        """Actions for [N, F], with noise [N, outputs] as `noise.draw` makes it, or the likeliest ones without.

        Rows do not depend on each other: what stands in rows of absent agents changes nothing.
        """

    def values(self, observation: Floats, state: Floats | None = None) -> Floats:
        """V [N] of [N, F] and, with a central critic, [N, S]; in units of reward."""

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """All that acting and values need, copied."""

    def load_weights(self, weights: Mapping[str, npt.NDArray[Any]], version: int) -> None:
        """Take those of another policy of the same form. Raises ConfigError if a name or shape does not fit."""


class Learner(Protocol):
    """Changes one policy; deterministic given its seed, on one machine with one number of threads and of ranks."""

    @property
    def policy(self) -> Policy: ...

    def update(
        self,
        fragments: Sequence[Fragment],
        *,
        nodes: Sequence[int] = (),
        weights: Sequence[float] = (),
        rate: float = 1.0,
        meanwhile: Meanwhile | None = None,
    ) -> dict[str, float]:
        """Learn from these once (all epochs), raise the policy's version, and tell how it went.

        With several ranks each calls it with its part, which may be none; what is told is of all, on each.
        `nodes`: a number for each fragment, the same on all ranks for what was made on one node (standardise=node).
        `weights`: the importance weight of each fragment, by which the losses of its samples are multiplied; they are
        divided by the number of samples all the same. Empty: each has 1.
        `rate`: by what the learning rate is multiplied this time.
        `meanwhile`: may be called while ranks wait for each other, equally often on each.
        """

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, normaliser, seed and version: all that the next update depends on; alike on all ranks.

        Nested dicts of numbers, text and arrays of numpy; `weights` holds the policy's `weights()`.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, bit for bit. Raises ConfigError for a policy of another form."""


class Backend(Protocol):
    """How a module is seen that makes policies of one library."""

    def make_policy(self, spec: PolicySpec, config: PolicyConfig, seed: int, *, device: str = "cpu") -> Policy:
        """`device`: cpu, or cuda where it has a GPU."""

    def make_learner(self, policy: Policy, config: LearnerConfig, seed: int, *, ranks: Ranks = ALONE) -> Learner: ...


def check_columns(what: str, array: npt.NDArray[Any] | None, rows: int, columns: int) -> None:
    """Raise ValueError unless the array is [rows, columns]; 0 columns want None."""
    shape = None if array is None else array.shape
    wanted = (rows, columns) if columns else None
    if shape != wanted:
        raise ValueError(f"{what} has shape {shape}, {wanted} is wanted")


def check_inputs(spec: PolicySpec, observation: Floats, state: Floats | None, with_values: bool) -> None:
    """Raise ValueError, with the shapes, unless observation and state fit the policy."""
    if observation.ndim != 2:
        raise ValueError(f"observation has shape {observation.shape}, (N, {spec.observation_size}) is wanted")
    if observation.dtype != np.float32:
        raise ValueError(f"observation is {observation.dtype}, float32 is wanted")
    check_columns("observation", observation, len(observation), spec.observation_size)
    if with_values:
        check_columns("state", state, len(observation), spec.state_size)
