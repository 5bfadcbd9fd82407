"""A config as plain data and back, and what is said of keys that nobody knows. Needs no Hydra: nodes read it too."""

import dataclasses
import difflib
import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcjet.config.root import SCHEMAS, LaunchConfig, kind_of
from hpcjet.errors import ConfigError


def to_dict(config: LaunchConfig) -> dict[str, Any]:
    """Plain data (paths as text, enums as names) that from_dict turns back; `kinds` names the schema of each group."""
    data = {entry.name: to_plain(getattr(config, entry.name)) for entry in dataclasses.fields(config)}
    return data | {"kinds": {group: kind_of(group, getattr(config, group)) for group in SCHEMAS}}


def from_dict(data: dict[str, Any]) -> LaunchConfig:
    """The reverse of to_dict. Raises ConfigError for what this version of hpcjet does not know."""
    rest = {key: value for key, value in data.items() if key != "kinds"}
    try:
        schema = OmegaConf.structured(
            LaunchConfig(**{group: SCHEMAS[group][kind]() for group, kind in data["kinds"].items()})
        )
        return to_config(OmegaConf.merge(schema, escaped(rest)))
    except (KeyError, TypeError, AttributeError, OmegaConfBaseException) as error:
        raise ConfigError(f"the stored config does not fit this version of hpcjet: {first_line(error)}") from None


def to_config(composed: Any) -> LaunchConfig:
    """The typed config of a composed one. Raises ConfigError for a key that no schema has."""
    for key, known in unknown_keys(composed, LaunchConfig, ""):
        raise unknown_key(key, known)
    config = OmegaConf.to_object(composed)
    assert isinstance(config, LaunchConfig)
    return config


def unknown_keys(node: DictConfig, schema: type, prefix: str) -> Iterator[tuple[str, list[str]]]:
    """Keys that `+key=value` put into a typed node; to_object would drop them in silence."""
    known = [entry.name for entry in dataclasses.fields(schema)]
    for key in node:
        if key not in known:
            yield f"{prefix}{key!s}", known
            continue
        yield from _unknown_below(node, key, f"{prefix}{key!s}")


def _unknown_below(node: DictConfig, key: Any, name: str) -> Iterator[tuple[str, list[str]]]:
    """Those of one value: of a typed node, or of the typed nodes in a dictionary."""
    child = None if OmegaConf.is_missing(node, key) else node._get_node(key)
    if not isinstance(child, DictConfig) or child._is_none():
        return
    schema = OmegaConf.get_type(child)
    if schema is not None and dataclasses.is_dataclass(schema):
        yield from unknown_keys(child, schema, f"{name}.")
        return
    for each in child:
        yield from _unknown_below(child, each, f"{name}.{each!s}")


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that is none of `known`."""
    prefix, dot, name = key.rpartition(".")
    full = [f"{prefix}{dot}{each}" for each in known]
    hint = _other_kinds(prefix, name) or nearest(key, full)
    return ConfigError(f"{key} is not a key: {'known are ' + ', '.join(full) if full else 'there are none here'}{hint}")


def _other_kinds(group: str, name: str) -> str:
    kinds = [
        kind
        for kind, schema in SCHEMAS.get(group, {}).items()
        if name in [each.name for each in dataclasses.fields(schema)]
    ]
    return f"; it is a key of {' and '.join(f'{group}={kind}' for kind in kinds)}" if kinds else ""


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean ...?` with the known word that is like this one, or nothing."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def escaped(value: Any) -> Any:
    """`${` as OmegaConf's `\\${`: what is stored is resolved already, and a dollar sign in it is the shell's."""
    if isinstance(value, dict):
        return {key: escaped(each) for key, each in value.items()}
    if isinstance(value, list):
        return [escaped(each) for each in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {entry.name: to_plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return value
