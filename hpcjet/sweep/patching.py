"""The configs of many points: composed once for each combination of choices, and patched from there.

Hydra needs 10 to 40 ms for a config, this some microseconds. It does the same: each distinct value goes through Hydra's
own assignment to the composed config once, each distinct combination of values through the checks of its schema. What
cannot be patched for certain is composed in full: choices, keys that overlap, anything with an interpolation.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import MISSING, Container, DictConfig, ListConfig, OmegaConf
from omegaconf.base import Node
from omegaconf.errors import OmegaConfBaseException

from hpcjet.config.compose import compose, composed, errors_explained
from hpcjet.config.plain import unknown_keys
from hpcjet.config.root import SCHEMAS, LaunchConfig
from hpcjet.errors import ConfigError
from hpcjet.sweep.axes import Axis, Request, Value

Field = tuple[str, ...]
"""Where a value is: (`seed`,) or (`engine`, `temperature`); what lies deeper belongs to the whole field."""


class CannotPatch(Exception):
    """The point is composed in full instead."""


def configs(request: Request) -> Iterator[tuple[tuple[Value, ...], LaunchConfig]]:
    """The values and the config of each point, in order. Equal parts of configs are the same objects.

    Raises ConfigError with the words of the first point that is wrong.
    """
    axes, fixed = request.axes, [value.word for value in request.fixed]
    patched = [number for number, axis in enumerate(axes) if _can_be_patched(axis, request)]
    bases: dict[tuple[str, ...], _Base | None] = {}
    for values in request.points():
        chosen = tuple(value.word for number, value in enumerate(values) if number not in patched)
        if chosen not in bases:
            bases[chosen] = _base([*fixed, *chosen])
        words = [*fixed, *(value.word for value in values)]
        try:
            config = _config(bases[chosen], [values[number] for number in patched], words)
        except ConfigError as error:
            raise ConfigError(f"the point {' '.join(value.word for value in values)}: {error}") from None
        yield values, config


def _config(base: "_Base | None", values: Sequence[Value], words: list[str]) -> LaunchConfig:
    if base is not None:
        try:
            return base.patched(values)
        except CannotPatch:
            pass
    return compose(words)


def _can_be_patched(axis: Axis, request: Request) -> bool:
    if axis.is_choice or _field(axis.path) is None or any("${" in value.word for value in axis.values):
        return False
    others = [value.override for value in request.fixed]
    others += [other.values[0].override for other in request.axes if other is not axis]
    return not any(_overlap(axis.path, other) for other in others)


def _overlap(path: str, other: Override) -> bool:
    """Whether their order matters: one key lies within the other. A choice of a group comes first in any order."""
    key = other.key_or_group
    inside = path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.")
    return inside and not (key in SCHEMAS and isinstance(other.value(), str))


def _field(path: str) -> Field | None:
    """The field that a key belongs to, if it can be told from its name."""
    parts = path.split(".")
    if parts[:2] == ["cluster", "groups"]:
        return None  # its entries are typed: a typo in one is for the full composition to find
    if "[" in path or parts[0] not in {each.name for each in dataclasses.fields(LaunchConfig)}:
        return None
    inner = parts[0] in SCHEMAS or parts[0] in ("run", "sweep")
    if len(parts) == 1:
        return None if inner else (parts[0],)
    return (parts[0], parts[1]) if inner else None


def _base(words: list[str]) -> "_Base | None":
    with errors_explained(words):
        config = composed(words)
    if any(node._is_interpolation() for node in _nodes(config)) or any(unknown_keys(config, LaunchConfig, "")):
        return None
    return _Base(config)


class _Base:
    """One composed config, and what was made of it so far."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self._values: dict[tuple[Field, tuple[str, ...]], Any] = {}
        self._parts: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._fields: dict[str, dict[str, Any]] = {}

    def patched(self, values: Sequence[Value]) -> LaunchConfig:
        """The config with these values. Raises CannotPatch."""
        by_name: dict[str, list[Value]] = {}
        for value in values:
            by_name.setdefault(value.override.key_or_group.partition(".")[0], []).append(value)
        parts = {**self._untouched, **{name: self._part(name, mine) for name, mine in by_name.items()}}
        if len(parts) < len(dataclasses.fields(LaunchConfig)):
            raise CannotPatch
        return LaunchConfig(**parts)

    @cached_property
    def _untouched(self) -> dict[str, Any]:
        """The parts as they are; one that is wrong, or not whole, without the values is left out."""
        found = {}
        for entry in dataclasses.fields(LaunchConfig):
            with contextlib.suppress(ConfigError, OmegaConfBaseException):
                found[entry.name] = _typed(_child(self._config, entry.name))
        return found

    def _part(self, name: str, values: list[Value]) -> Any:
        key = (name, tuple(value.word for value in values))
        if key not in self._parts:
            self._parts[key] = self._made(name, values)
        return self._parts[key]

    def _made(self, name: str, values: list[Value]) -> Any:
        by_field: dict[Field, list[Value]] = {}
        for value in values:
            field = _field(value.override.key_or_group)
            assert field is not None
            by_field.setdefault(field, []).append(value)
        if (name,) in by_field:
            return self._value((name,), by_field[name,])
        fields = self._fields_of(name)
        given = {**fields, **{field[1]: self._value(field, mine) for field, mine in by_field.items()}}
        if MISSING in given.values() or len(given) > len(fields):
            raise CannotPatch
        schema = OmegaConf.get_type(self._config, name)
        try:
            return schema(**given)  # type: ignore[misc]
        except ConfigError:
            raise CannotPatch from None

    def _fields_of(self, name: str) -> dict[str, Any]:
        """The values of a part, MISSING for one that must be given."""
        if name not in self._fields:
            part = _child(self._config, name)
            assert isinstance(part, DictConfig)
            children = {str(key): _child(part, str(key)) for key in part}
            self._fields[name] = {
                key: MISSING if node._is_missing() else _typed(node) for key, node in children.items()
            }
        return self._fields[name]

    def _value(self, field: Field, values: list[Value]) -> Any:
        key = (field, tuple(value.word for value in values))
        if key not in self._values:
            self._values[key] = self._assigned(field, values)
        return self._values[key]

    def _assigned(self, field: Field, values: list[Value]) -> Any:
        """What Hydra's assignment makes of the values; the composed config is afterwards as it was."""
        part = self._config if len(field) == 1 else _child(self._config, field[0])
        assert isinstance(part, DictConfig)
        before = deepcopy(_child(part, field[-1]))
        try:
            ConfigLoaderImpl._apply_overrides_to_config([value.override for value in values], self._config)
            return _typed(_child(part, field[-1]))
        except (ConfigCompositionException, OmegaConfBaseException):
            raise CannotPatch from None
        finally:
            part._content[field[-1]] = before  # type: ignore[index]


def _typed(node: Node) -> Any:
    return OmegaConf.to_object(node) if isinstance(node, Container) else node._value()


def _child(part: DictConfig, name: str) -> Node:
    """Raises CannotPatch for a key that is none: the full composition has the words for it."""
    node = part._get_node(name) if name in part._content else None  # type: ignore[operator]
    if not isinstance(node, Node):
        raise CannotPatch
    return node


def _nodes(node: Any) -> Iterator[Node]:
    yield node
    if isinstance(node, DictConfig | ListConfig) and not node._is_none() and not node._is_missing():
        inside: Iterable[Any] = node._content.values() if isinstance(node, DictConfig) else node._content  # type: ignore
        for each in inside:
            yield from _nodes(each)
