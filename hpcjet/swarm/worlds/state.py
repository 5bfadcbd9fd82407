"""The global state of environments of PettingZoo, which a central critic sees."""

from typing import Any

import numpy as np

from hpcjet.config.check import bad
from hpcjet.swarm.spaces.observations import ObservationEncoder
from hpcjet.swarm.spaces.refusal import Misfit
from hpcjet.swarm.vector import Floats

WITHOUT = "set exp.policy.central_critic=false"
MOST = 100_000
"""Numbers in a state: a picture of the whole world, as some environments have it, would be kept for every step."""


def state_space(env: Any) -> Any | None:
    """Its `state_space`, or None if it has no state.

    Raises ConfigError if it has a `state` of its own and no space: its size could only be guessed.
    """
    from pettingzoo import AECEnv, ParallelEnv

    space = getattr(env, "state_space", None)
    # Wrappers have a `state` that asks what they wrap, and a base class has one that is not implemented.
    own = getattr(type(getattr(env, "unwrapped", env)), "state", None)
    if space is None and own not in (None, AECEnv.state, ParallelEnv.state):
        raise bad("state_space", None, "an environment with state() has a space for it",
            f"give it a state_space, or {WITHOUT}",
        )  # fmt: skip
    return space


class StateEncoder:
    """Global states as rows of float32."""

    def __init__(self, space: Any, *, path: str) -> None:
        self._encoder = ObservationEncoder(space, path=path, what="state")
        self.size = self._encoder.size
        if self.size > MOST:
            allowed = f"a central critic takes at most {MOST:,} numbers"
            raise bad("state_space", f"{self.size:,} numbers", allowed, f"wrap the environment, or {WITHOUT}")

    def row(self, state: Any) -> Floats:
        """[S]. Raises Misfit."""
        encoded = np.empty(self.size, dtype=np.float32)
        self._encoder.write(state, encoded)
        if not np.isfinite(encoded).all():
            raise Misfit("the state is not finite")
        return encoded
