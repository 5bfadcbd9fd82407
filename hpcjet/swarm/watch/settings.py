"""The settings of a training as its report lists them. Pure."""

from dataclasses import dataclass
from typing import Any

from hpcjet.config.plain import to_plain
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.errors import ConfigError
from hpcjet.shown.visible import visible

_LONGEST = 200


@dataclass(frozen=True)
class Setting:
    key: str
    value: str
    changed: bool
    """Other than by default."""


def settings(exp: SwarmConfig) -> list[Setting]:
    """All of them, by dotted key."""
    try:
        usual = dict(_flat(to_plain(type(exp)())))
    except (ConfigError, TypeError):
        usual = {}
    return [
        Setting(visible(key), visible(_text(value))[:_LONGEST], bool(usual) and usual.get(key, value) != value)
        for key, value in _flat(to_plain(exp))
    ]


def _flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [
            pair for key, inner in value.items() for pair in _flat(inner, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix, value)]


def _text(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
