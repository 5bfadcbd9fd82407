"""The keys of the config with their defaults and docstrings, read from the schema's source: help that cannot drift."""

import ast
import dataclasses
import enum
import inspect
import textwrap
import typing
from collections.abc import Container
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from hpcjet.config.files import left_out, own, shipped, title
from hpcjet.config.root import SCHEMAS, LaunchConfig, RunConfig
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.config.sweep import SweepConfig
from hpcjet.paths import user_conf_dir

PAGES: dict[str, type] = {"run": RunConfig, "sweep": SweepConfig}
"""Keys at the root that are no groups and have keys of their own."""
SHARED = (SwarmConfig,)
"""Schemas that are no kinds, whose keys are shown with the first kind that has them."""


@dataclass(frozen=True)
class Key:
    """One key: its full name, default as text, and meaning."""

    name: str
    default: str
    text: str


def keys_of(schema: type, prefix: str) -> list[Key]:
    """The keys of a schema, base classes first; those of a part of it in the part's place."""
    texts: dict[str, str] = {}
    for cls in reversed(schema.__mro__):
        if dataclasses.is_dataclass(cls):
            texts |= _docstrings(cls)
    found = []
    for each in dataclasses.fields(schema):
        if each.default_factory is not dataclasses.MISSING and dataclasses.is_dataclass(part := each.default_factory()):
            found += [replace(key, name=f"{prefix}{each.name}.{key.name}") for key in _keys_as_in(part)]
        else:
            found.append(Key(prefix + each.name, _default(each), texts.get(each.name, "")))
    return found


def _keys_as_in(part: Any) -> list[Key]:
    """Those of a part whose defaults may be others than its schema's."""
    shown = {each.name: _text_of(getattr(part, each.name)) for each in dataclasses.fields(part)}
    return [replace(key, default=shown.get(key.name, key.default)) for key in keys_of(type(part), "")]


def help_of(group: str) -> str:
    """The help page of one config group, of `run` or of `sweep`."""
    if group in PAGES:
        return _page(group, PAGES[group], f"{group}.")
    pages = [_page_of_kind(group, kind) for kind in SCHEMAS[group]]
    return "\n".join(page for page in [*pages, _page_of_files(group)] if page)


def top_keys() -> list[Key]:
    """Keys at the root that are not groups."""
    return [key for key in keys_of(LaunchConfig, "") if key.name.partition(".")[0] not in {*SCHEMAS, *PAGES}]


def _page_of_kind(group: str, kind: str) -> str:
    """A kind that extends another, or what another extends, is described by what it adds."""
    schema = SCHEMAS[group][kind]
    shared = schema.__mro__[1]
    before = takewhile(lambda other: other != kind, SCHEMAS[group])
    if shared in SHARED and (alike := [other for other in before if SCHEMAS[group][other].__mro__[1] is shared]):
        page = _page(f"{group}={kind}", schema, f"{group}.", without=[key.name for key in keys_of(shared, "")])
        return f"{page}  Takes the keys of {group}={alike[0]} besides, but those of its own kind of world.\n"
    for other, base in SCHEMAS[group].items():
        if base is not schema and issubclass(schema, base):
            known = [key.name for key in keys_of(base, "")]
            page = _page(f"{group}={kind}", schema, f"{group}.", without=known)
            return f"{page}  Takes the keys of {group}={other}.\n"
    return _page(f"{group}={kind}", schema, f"{group}.")


def _page_of_files(group: str) -> str:
    """The files of a group that are no kinds of their own: one line each."""
    ready = {name: path for name, path in shipped(group).items() if name not in SCHEMAS[group]}
    lines = _listed(f"Ready-made choices of {group}:", group, ready)
    mine, faults = own(group), left_out(group)
    if mine or faults or group == "cluster":
        heading = f"Your own, {user_conf_dir()[0] / group}/NAME.yaml (docs/your-cluster.md):"
        lines += _listed(heading, group, mine) or [heading, "  none yet"]
    lines += [_indent(fault, 2) for fault in faults]
    return "".join(f"{line}\n" for line in lines)


def _listed(heading: str, group: str, files: dict[str, Path]) -> list[str]:
    width = max(map(len, files), default=0)
    rows = [f"  {group}={name:<{width}}  {title(path)}".rstrip() for name, path in files.items()]
    return [heading, *rows] if rows else []


def _page(title: str, schema: type, prefix: str, *, without: Container[str] = (), width: int = 78) -> str:
    lines = [title, _indent((schema.__doc__ or "").strip().partition("\n")[0], 2, width=width)]
    for key in keys_of(schema, prefix):
        name = key.name.removeprefix(prefix)
        if name in without:
            continue
        lines.append(f"  {key.name}={key.default}" if key.default else f"  {key.name}=...  (required)")
        if key.text:
            lines.append(_indent(key.text, 6, width=width))
        if entries := _entries(schema, name):
            page = _page(f"{key.name}.NAME", entries, f"{key.name}.NAME.", width=width - 4)
            lines.append(textwrap.indent(page.rstrip(), " " * 4))
    return "\n".join(lines) + "\n"


def _entries(schema: type, name: str) -> type | None:
    """The schema of the entries of a key that is a dictionary of them."""
    first, _, rest = name.partition(".")
    kind = typing.get_type_hints(schema)[first]
    if rest:
        return _entries(kind, rest)
    words = typing.get_args(kind)
    return next((word for word in words if dataclasses.is_dataclass(word) and isinstance(word, type)), None)


def _indent(text: str, by: int, *, width: int = 78) -> str:
    return textwrap.fill(" ".join(text.split()), width, initial_indent=" " * by, subsequent_indent=" " * by)


def _docstrings(cls: type) -> dict[str, str]:
    """Field name -> the string that stands below it in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, below in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[statement.target.id] = below.value.value
    return found


def _default(field: "dataclasses.Field[Any]") -> str:
    value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return _text_of(value)


def _text_of(value: Any) -> str:
    """As it would be written on the command line; empty for a value that must be given."""
    if value is dataclasses.MISSING or value == "???":
        return ""
    if isinstance(value, enum.Enum):
        return value.name
    return {None: "null", True: "true", False: "false"}.get(value, str(value)) if _is_plain(value) else str(value)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool)
