"""What the oracle does in an attempt: one behaviour from its first answer to its last."""

import hashlib
from enum import Enum

from hpcjet.config.engine import OracleMode


class Behaviour(Enum):
    """One way to work on a task."""

    solve = "solve"
    """Looks, plays the reference patch, rebuilds, tests, submits."""
    wrong = "wrong"
    """The same with an edit that fixes nothing."""
    empty = "empty"
    """Looks and submits without a change."""
    malformed = "malformed"
    """solve, with one tool call whose arguments are no JSON."""
    slow = "slow"
    """solve, with one command that sleeps for an hour: the time limit of commands must end it."""
    endless = "endless"
    """solve, then looks on and on for ENDLESS_TURNS answers: a step limit should end it."""
    mute = "mute"
    """Never runs a command: the limit of format errors ends it."""


ENDLESS_TURNS = 500

_MIXED = (
    (40, Behaviour.solve),
    (60, Behaviour.wrong),
    (75, Behaviour.empty),
    (85, Behaviour.malformed),
    (90, Behaviour.slow),
    (95, Behaviour.endless),
    (100, Behaviour.mute),
)
"""Upper end in percent -> behaviour."""


def choose_behaviour(mode: OracleMode, *, instance_id: str, attempt: int, seed: int) -> Behaviour:
    """A fixed function: a repeated try of an attempt, and another replica, behave alike."""
    if mode is not OracleMode.mixed:
        return Behaviour[mode.name]
    digest = hashlib.sha256(f"{seed}\0{instance_id}\0{attempt}".encode("utf-8", "surrogateescape")).digest()
    percent = int.from_bytes(digest[:8], "big") % 100
    return next(behaviour for end, behaviour in _MIXED if percent < end)
