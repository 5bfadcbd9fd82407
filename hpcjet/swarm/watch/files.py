"""Files of a training in its run directory, named once."""

from dataclasses import dataclass
from pathlib import Path

from hpcjet.rundir import RunDir


@dataclass(frozen=True)
class SwarmFiles:
    """All are in RUN/swarm."""

    path: Path

    @classmethod
    def of(cls, run: RunDir) -> "SwarmFiles":
        return cls(run.path / "swarm")

    @property
    def metrics(self) -> Path:
        """A row for each update."""
        return self.path / "metrics.csv"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def losses(self) -> Path:
        """What was lost and when, one JSON object per line."""
        return self.path / "losses.jsonl"

    @property
    def seats(self) -> Path:
        """Where each seat is and what it did, while it runs and afterwards."""
        return self.path / "seats.json"

    @property
    def trajectory(self) -> Path:
        """A greedy episode."""
        return self.path / "trajectory.npz"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"
