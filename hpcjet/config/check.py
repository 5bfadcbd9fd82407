"""Checks of values, with messages that name key, value, what is allowed and the next step."""

from hpcjet.errors import ConfigError


def bad(key: str, value: object, allowed: str, next_step: str) -> ConfigError:
    """The error for a value that cannot be used."""
    return ConfigError(f"{key}={value} is not allowed: {allowed}; {next_step}")


def at_least(key: str, value: float | None, lowest: float) -> None:
    """Raise ConfigError if the value is set and below `lowest`."""
    # Not `value < lowest`: that lets nan through, and a time limit of nan never comes.
    if value is not None and not value >= lowest:
        raise bad(key, value, f"it must be {lowest} or more", f"set {key}={lowest} or higher")
