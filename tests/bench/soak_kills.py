"""Which of the processes that a soak kills came back, by what the run tells of its losses, and what each cost."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hpcjet.swarm.watch.told import Loss

TOLD_AS = {
    "HostActor": "the host of ", "ServerActor": "the process of swarm-ps-", "IndexActor": "the process of swarm-index",
}  # fmt: skip
"""The processes that are killed, by Ray's name of their class -> how the run names their loss."""
SETTLED = 10
"""Updates after a loss was mended, until the next one may come: so each strikes a training that goes on."""
CLOCK_S = 1.0
"""A loss that was told of an earlier time than this before a kill is of something else."""


@dataclass(frozen=True)
class Kill:
    """One kill -9."""

    kind: str
    """Of those in TOLD_AS."""
    at: float
    """Unix seconds."""
    updates: int
    """Made before it."""


@dataclass
class Outcome:
    """What became of a kill."""

    kill: Kill
    loss: Loss | None = None
    """As the run told it, once new experience had come, or at its end."""
    mended_at: int | None = None
    """Updates when it was first seen to be mended."""

    @property
    def mended(self) -> bool:
        return self.loss is not None and self.loss.seconds_to_first_new_sample is not None

    @property
    def seconds(self) -> float | None:
        """From the kill to new experience: the run counts from when it notices, which is later."""
        if self.loss is None or self.loss.seconds_to_first_new_sample is None:
            return None
        return max(0.0, self.loss.time - self.kill.at) + self.loss.seconds_to_first_new_sample


class Kills:
    """All of a soak, in turn, and never one while another is being recovered from."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.others: list[Loss] = []
        """What was lost without being killed here."""
        self._seen = 0

    def add(self, kill: Kill) -> None:
        self.outcomes.append(Outcome(kill))

    @property
    def pending(self) -> bool:
        return any(each.mended_at is None for each in self.outcomes)

    @property
    def calm_from(self) -> int:
        """Updates when the last one was mended, or was killed if it is pending still."""
        return max(
            (each.kill.updates if each.mended_at is None else each.mended_at for each in self.outcomes), default=0
        )

    def settled(self, updates: int) -> bool:
        """Whether the training has gone on since the last one."""
        return not self.outcomes or (not self.pending and updates >= self.calm_from + SETTLED)

    def see(self, losses: Sequence[Loss], updates: int) -> list[Outcome]:
        """Those that were mended since the last look, by all losses that the run has told so far."""
        for loss in losses[self._seen :]:
            mine = next((each for each in self.outcomes if each.loss is None and _is(each.kill, loss)), None)
            if mine is None:
                self.others.append(loss)
            else:
                mine.loss = loss
        self._seen = len(losses)
        new = [each for each in self.outcomes if each.mended and each.mended_at is None]
        for each in new:
            each.mended_at = updates
        return new

    def complaints(self) -> list[str]:
        found = [f"{name(each)}, killed after {each.kill.updates} updates: {_why(each)}" for each in self.outcomes
                 if not each.mended]  # fmt: skip
        return found + [f"{each.what}: lost, and it was not killed" for each in self.others]


def _is(kill: Kill, loss: Loss) -> bool:
    return loss.what.startswith(TOLD_AS[kill.kind]) and loss.time >= kill.at - CLOCK_S


def _why(outcome: Outcome) -> str:
    return "its loss was not told" if outcome.loss is None else "no new experience came"


def name(outcome: Outcome) -> str:
    """As the run names it."""
    return outcome.kill.kind if outcome.loss is None else outcome.loss.what.partition(" (")[0]


def update_times(metrics: Path) -> list[tuple[int, float]]:
    """(version, seconds of learning) of all rows."""
    with metrics.open(newline="") as file:
        return [(int(float(row["version"])), float(row["seconds"])) for row in csv.DictReader(file)]


def pause(times: Iterable[tuple[int, float]], first: int, last: int) -> float:
    """The longest time between two updates that follow each other, from version `first` to one after `last`."""
    there = [seconds for version, seconds in times if first <= version <= last + 1]
    return max((after - before for before, after in pairwise(there)), default=0.0)


def table(kills: Kills, times: Sequence[tuple[int, float]], steps_each: int) -> str:
    """As Markdown; `steps_each`: agent-steps of a fragment."""
    lines = [
        "| killed | after updates | fragments lost | agent-steps lost | s to new experience | most s between updates |",
        "|---|---|---|---|---|---|",
    ]
    last = times[-1][0] if times else 0
    for each in kills.outcomes:
        lost = each.loss.lost_fragments if each.loss else 0
        seconds = "none came" if each.seconds is None else f"{each.seconds:.1f}"
        until = last if each.mended_at is None else each.mended_at + SETTLED
        still = pause(times, each.kill.updates, until)
        lines.append(
            f"| {name(each)} | {each.kill.updates} | {lost} | {lost * steps_each} | {seconds} | {still:.1f} |"
        )  # fmt: skip
    return "\n".join(lines)
