"""Policies alone, to play or to evaluate."""

from pathlib import Path

from hpcjet.config.check import bad
from hpcjet.swarm.checkpoints.folder import MANIFEST, newest_checkpoint, read_checkpoint
from hpcjet.swarm.policy.backends import backend
from hpcjet.swarm.policy.interface import Policy


def load_policies(folder: Path) -> dict[str, Policy]:
    """By name, each with its `spec` and `version`: of one checkpoint, or of the newest in a folder of them.

    Raises ConfigError if there is none; Damaged if that one checkpoint is.
    """
    found = read_checkpoint(folder) if (folder / MANIFEST).exists() else newest_checkpoint(folder)
    if found is None:
        allowed = "there is no checkpoint in it"
        raise bad("checkpoints", folder, allowed, "see whether the run got as far as its first (checkpoint_every)")
    made_by, policies = backend(found.form.backend), {}
    for name, spec in found.form.policies.items():
        policies[name] = made_by.make_policy(spec, found.form.policy, 0)
        policies[name].load_weights(found.learners[name]["weights"], found.version)
    return policies
