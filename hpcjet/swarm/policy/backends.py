"""Backends by name."""

from importlib import import_module
from typing import cast

from hpcjet.config.check import bad
from hpcjet.swarm.policy.interface import Backend

KNOWN = {"torch": "hpcjet.swarm.torch_backend"}


def backend(name: str) -> Backend:
    """A known one, or a module of the user's own (with a dot in its name). Raises ConfigError."""
    if "." not in name and name not in KNOWN:
        raise bad(
            "exp.backend", name, f"known are {', '.join(KNOWN)}, or a module's dotted name", "set exp.backend=torch"
        )
    module = import_module(KNOWN.get(name, name))
    for wanted in ("make_policy", "make_learner"):
        if not hasattr(module, wanted):
            raise bad("exp.backend", name, f"it has no {wanted}", "see hpcjet.swarm.policy.Backend")
    return cast(Backend, module)
