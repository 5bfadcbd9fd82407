"""How spaces and values that do not fit are refused."""

from typing import Any

from hpcjet.config.check import bad
from hpcjet.errors import ConfigError


class Misfit(ValueError):
    """A value does not belong to its space; who knows world, agent and step makes a WorldError of it."""


def unsupported(space: Any, *, path: str, what: str) -> ConfigError:
    """The error for a space that has no flat form here."""
    allowed = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple have a flat form"
    return bad(path, type(space).__name__, f"as {what}; {allowed}", "wrap the environment so that it uses these")
