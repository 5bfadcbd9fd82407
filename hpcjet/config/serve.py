"""The experiment that serves a model, in the config group `exp`."""

from dataclasses import dataclass
from typing import ClassVar

from hpcjet.config.check import at_least
from hpcjet.config.exp import ExpConfig, OnNodeLoss


@dataclass
class ServeConfig(ExpConfig):
    """Serves the model of engine=vllm or engine=sglang until the job ends; no Ray is started."""

    on_node_loss: ClassVar[OnNodeLoss] = OnNodeLoss["continue"]

    key_hours: float = 168.0
    """Hours for which the key that is made for the run opens the endpoint, at least 0.01."""

    def __post_init__(self) -> None:
        at_least("exp.key_hours", self.key_hours, 0.01)

    @property
    def wants_ray(self) -> bool:
        return False

    @property
    def wants_engine(self) -> bool:
        return True
