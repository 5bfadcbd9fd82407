"""Checks of values, with messages that name key, value, what is allowed and the next step."""

from hpcjet.errors import ConfigError


def bad(key: str, value: object, allowed: str, next_step: str) -> ConfigError:
    """The error for a value that cannot be used."""
    return ConfigError(f"{key}={value} is not allowed: {allowed}; {next_step}")


def at_least(key: str, value: float | None, lowest: float) -> None:
    """Raise ConfigError if the value is set and below `lowest`."""
    if value is not None and value < lowest:
        raise bad(key, value, f"it must be {lowest} or more", f"set {key}={lowest} or higher")
