"""What a checkpoint holds, and whether it fits a training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from hpcjet.config.check import bad
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm.hosts.spec import HostState
from hpcjet.swarm.policy.interface import PolicySpec
from hpcjet.swarm.row import Row

HARMLESS = ("log_std", "value_norm_beta")
"""Settings of a policy that only say where it begins, or are part of its state."""


class Damaged(Exception):
    """A checkpoint that was not written by this package as it is now."""


@dataclass(frozen=True)
class Form:
    """What the policies are like."""

    backend: str
    policies: Mapping[str, PolicySpec]
    policy: PolicyConfig

    def check(self, held: "Form", where: str) -> None:
        """Raise ConfigError, naming what differs, if states of the form `held` are not for this one."""
        if held.backend != self.backend:
            raise _unlike(where, "backend", held.backend, self.backend, "exp.backend")
        if held.policies.keys() != self.policies.keys():
            names = [", ".join(sorted(each.policies)) for each in (held, self)]
            raise _unlike(where, "policies", names[0], names[1], "exp.policy_map")
        for name, spec in self.policies.items():
            for each in fields(PolicySpec):
                before, now = getattr(held.policies[name], each.name), getattr(spec, each.name)
                if before != now:
                    raise _unlike(where, f"policy {name}: {each.name}", before, now, "exp.environment")
        for each in fields(PolicyConfig):
            before, now = getattr(held.policy, each.name), getattr(self.policy, each.name)
            if before != now and each.name not in HARMLESS:
                raise _unlike(where, f"policy: {each.name}", before, now, f"exp.policy.{each.name}")


@dataclass(frozen=True)
class Checkpoint:
    """All that a training goes on from."""

    version: int
    """Updates so far."""
    agent_steps: int
    """Learned from so far."""
    form: Form
    learners: Mapping[str, Mapping[str, Any]]
    """`Learner.state_dict` of each policy."""
    index: Mapping[str, Any] | None = None
    """`Index.state_dict`."""
    hosts: Mapping[str, HostState] = field(default_factory=dict)
    """Of each seat at the begin of its fragment of this version."""
    seconds: float = 0.0
    """That the training took so far."""
    rows: Sequence[Row] = ()
    """Of the last updates, as far as the driver was not seen to have them."""


def _unlike(where: str, what: str, held: object, wanted: object, key: str) -> ConfigError:
    next_step = f"set {key} as it was, or begin another run"
    return bad(f"checkpoint {where}: {what}", held, f"this training has {wanted}", next_step)
