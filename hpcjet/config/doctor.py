"""The experiment that looks at a cluster, in the config group `exp`; `hpcjet doctor` launches it."""

from dataclasses import dataclass
from typing import ClassVar

from hpcjet.config.check import at_least, bad
from hpcjet.config.exp import ExpConfig, OnNodeLoss

MOST_MB = 1024


@dataclass
class DoctorConfig(ExpConfig):
    """Looks at every node and at what lies between them, without Ray; hpcjet doctor launches it and reports."""

    on_node_loss: ClassVar[OnNodeLoss] = OnNodeLoss["continue"]
    one_step: ClassVar[bool] = True

    timeout_s: float = 120.0
    """Seconds that the looks at the nodes may take in all, at least 10."""
    transfer_mb: int = 16
    """MiB that the nodes sum up to see how fast they reach each other, 1 to 1024."""

    @property
    def wants_ray(self) -> bool:
        # A Ray that does not work must not hide what else there is to see.
        return False

    def __post_init__(self) -> None:
        at_least("exp.timeout_s", self.timeout_s, 10)
        at_least("exp.transfer_mb", self.transfer_mb, 1)
        if self.transfer_mb > MOST_MB:
            raise bad(
                "exp.transfer_mb", self.transfer_mb, f"it must be {MOST_MB} or less", f"set exp.transfer_mb={MOST_MB}"
            )
