"""How a policy learns."""

from dataclasses import dataclass
from enum import Enum

from hpcjet.config.check import at_least, bad


class Algorithm(Enum):
    """What is minimised.

    ppo: the clipped surrogate over several epochs, advantages by GAE (IPPO, MAPPO with a central critic).
    vtrace: the policy gradient with V-trace, made anew for each minibatch (IMPALA).
    """

    ppo = "ppo"
    vtrace = "vtrace"


class Standardise(Enum):
    """Over what advantages are standardised.

    batch: over all that is learned from at a time (vtrace: over the minibatch), on all ranks.
    node: over what was made on one node, each apart, where nodes have worlds of different kinds.
    none: they are not.
    """

    batch = "batch"
    node = "node"
    none = "none"


@dataclass
class LearnerConfig:
    """One learner."""

    algorithm: Algorithm = Algorithm.ppo
    """ppo or vtrace."""
    learning_rate: float = 3e-4
    """Of Adam."""
    rate_end: float = 1.0
    """The share of the learning rate that is left at the end of the training (exp.updates, exp.agent_steps), where it
    goes in a straight line; 1: it stays as it is. A policy that has learned its task is steadier with little of it."""
    adam_epsilon: float = 1e-5
    """Of Adam, added to the root of the second moment."""
    epochs: int = 4
    """How often each sample is learned from; 1 is usual for vtrace."""
    minibatch: int = 8000
    """Most agent-steps in a step of the optimiser, on all ranks together; batches are split evenly."""
    microbatch: int | None = None
    """Most agent-steps at a time; gradients are added up to those of the minibatch. Only memory and speed change."""
    gamma: float = 0.99
    """The discount of a step."""
    trace: float = 0.95
    """Lambda, of GAE or V-trace."""
    clip: float = 0.2
    """ppo: how far the ratio of probabilities may move from 1."""
    clip_rho: float = 1.0
    """vtrace: greatest importance weight of a temporal difference, and of the policy's gradient."""
    clip_c: float = 1.0
    """vtrace: greatest importance weight in the trace."""
    standardise: Standardise = Standardise.batch
    """batch, node or none: over what advantages are standardised."""
    scale_rate: bool = False
    """Multiply the learning rate by the share of a batch that is not too old (staleness.too_old=mask)."""
    value_coefficient: float = 0.5
    """Weight of the loss of values."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy, which is made large."""
    value_clip: float | None = None
    """ppo: how far values may move from what they were at acting time, in the scale of the value network."""
    huber_delta: float | None = None
    """Beyond this error, in the scale of the value network, its loss is linear."""
    max_grad_norm: float = 0.5
    """Gradients with a greater norm are shortened to it."""
    compile: bool = False
    """ppo: find gradients by autograd and torch.compile, which takes half a minute at the first update: for GPUs. On
    CPUs gradients are found by formulas that are written out, which need no such start."""

    def __post_init__(self) -> None:
        for key in ("epochs", "minibatch", "microbatch"):
            at_least(f"exp.learner.{key}", getattr(self, key), 1)
        for key in ("learning_rate", "adam_epsilon", "clip", "value_clip", "huber_delta", "max_grad_norm"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise bad(
                    f"exp.learner.{key}", value, "it must be above 0", f"set exp.learner.{key} to a positive number"
                )
        for key in ("gamma", "trace", "rate_end"):
            if not 0 <= getattr(self, key) <= 1:
                raise bad(
                    f"exp.learner.{key}", getattr(self, key), "it must be from 0 to 1", f"set exp.learner.{key}=0.95"
                )
