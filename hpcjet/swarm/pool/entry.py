"""What is known of a fragment without having it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcjet.swarm.fragment import Fragment


class Key(NamedTuple):
    """Names a fragment in the whole run."""

    pool: str
    """The node pool that holds it; a pool that was started again has another name."""
    number: int


@dataclass(frozen=True)
class ReturnStats:
    """Rewards summed over the steps of each row that acted."""

    count: int = 0
    mean: float = 0.0
    least: float = 0.0
    most: float = 0.0


@dataclass(frozen=True)
class Entry:
    """Metadata of a fragment: some hundred bytes."""

    source: str
    """Who made it: the world host."""
    attempt: int
    """Which try of that source; results of an old one are ignored."""
    node: str
    """Where that was."""
    first_world: int
    """Number in the run of the first world; its worlds are numbered on from there."""
    worlds: int
    policy: str
    group: str
    first_step: int
    """Of the source, counted from the begin of the run."""
    steps: int
    agent_steps: int
    version: int
    """Of the policy that acted."""
    nbytes: int
    """Of its arrays."""
    returns: ReturnStats = ReturnStats()
    priority: float | None = None
    """None for the greatest that there is then."""

    @property
    def place_in_run(self) -> tuple[int, str, str, str, int]:
        """An order that does not depend on when it came."""
        return self.first_step, self.policy, self.group, self.source, self.first_world


def nbytes_of(fragment: Fragment) -> int:
    """Bytes of all arrays of a fragment, packed or not."""
    values = vars(fragment).values()
    arrays = [value for value in values if not isinstance(value, list)]
    lists = [array for value in values if isinstance(value, list) for array in value]
    return sum(int(getattr(array, "nbytes", 0)) for array in (*arrays, *lists))


def return_stats(fragment: Fragment) -> ReturnStats:
    """Over the rows [W, R] that acted at least once."""
    acted = fragment.present[:-1].any(axis=0)
    if not acted.any():
        return ReturnStats()
    sums = fragment.reward.sum(axis=0, dtype=np.float64)[acted]
    return ReturnStats(int(acted.sum()), float(sums.mean()), float(sums.min()), float(sums.max()))


def entry_of(
    fragment: Fragment, *, source: str, attempt: int, node: str, policy: str, group: str, first_world: int,
    first_step: int, priority: float | None = None,
) -> Entry:  # fmt: skip
    """The metadata of a fragment."""
    return Entry(
        source=source, attempt=attempt, node=node, first_world=first_world, worlds=fragment.reward.shape[1],
        policy=policy, group=group, first_step=first_step, steps=fragment.steps,
        agent_steps=int(fragment.present[:-1].sum()), version=fragment.version, nbytes=nbytes_of(fragment),
        returns=return_stats(fragment), priority=priority,
    )  # fmt: skip
