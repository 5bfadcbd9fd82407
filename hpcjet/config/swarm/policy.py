"""What a policy is made of."""

from dataclasses import dataclass, field
from enum import Enum

from hpcjet.config.check import at_least, bad


class Activation(Enum):
    """What stands between layers.

    tanh: for small networks.
    relu: for wide ones.
    """

    tanh = "tanh"
    relu = "relu"


@dataclass
class PolicyConfig:
    """One policy: a network for actions, and one of the same form for values."""

    hidden: list[int] = field(default_factory=lambda: [64, 64])
    """Widths of the hidden layers of both networks."""
    activation: Activation = Activation.tanh
    """tanh or relu."""
    log_std: float = 0.0
    """Where the logarithm of the standard deviation of real numbers in actions begins; it does not depend on what is
    seen."""
    log_std_least: float = -5.0
    """It does not fall below this: without chance in actions nothing more is learned."""
    observation_norm: bool = False
    """Normalise observations and global states by running statistics of what was seen; for worlds whose numbers are far
    from 1. The statistics are part of the weights."""
    central_critic: bool = True
    """Show the world's global state to the value network, where the worlds have one (MAPPO; false for IPPO)."""
    value_norm: bool = True
    """Let the value network put out values normalised by running statistics of returns."""
    value_norm_beta: float = 0.99
    """How much of the statistics stays in an update."""

    def __post_init__(self) -> None:
        for width in self.hidden:
            at_least("exp.policy.hidden", width, 1)
        if not self.log_std >= self.log_std_least:
            raise bad("log_std", self.log_std, f"log_std_least is {self.log_std_least}", "raise it or lower that")
        if not 0 <= self.value_norm_beta < 1:
            raise bad("exp.policy.value_norm_beta", self.value_norm_beta, "0 or more, below 1", "set it to 0.99")
