"""The files that can be chosen in a config group: the shipped ones, and the user's own beside them."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcjet.config.plain import first_line, nearest
from hpcjet.config.root import SCHEMAS
from hpcjet.errors import ConfigError
from hpcjet.paths import conf_dir, user_conf_dir

NAME = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z][a-z0-9_-]*(?<!_schema)", re.IGNORECASE | re.ASCII)
"""Needs no quotes in a shell or in Hydra's grammar, and is read as a word."""


@dataclass(frozen=True)
class OwnFile:
    """A config file of the user."""

    group: str
    path: Path
    data: dict[str, Any]
    parents: tuple[str, ...]
    """The choices of the same group that it builds on."""
    whole: bool
    """Its keys begin at the root of the config (`# @package _global_`), not in its group."""


def choices(group: str) -> list[str]:
    """The names that can be chosen in a group."""
    return sorted({*shipped(group), *own(group)})


def shipped(group: str) -> dict[str, Path]:
    """Name -> file of those that come with hpcjet."""
    return {path.stem: path for path in sorted((conf_dir() / group).glob("*.yaml"))}


def own(group: str) -> dict[str, Path]:
    """Name -> file of the user's that can be chosen."""
    return {path.stem: path for path in _own_paths(group) if _fault(group, path) is None}


def left_out(group: str) -> list[str]:
    """A sentence on each of the user's files that cannot be chosen."""
    found = [(path, _fault(group, path)) for path in _own_paths(group)]
    return [f"{path} cannot be chosen: {fault}" for path, fault in found if fault]


def title(path: Path) -> str:
    """The first comment of a file, in one line."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    comments = [line.lstrip("# ").strip() for line in lines[:2] if line.startswith("#") and "@package" not in line]
    return comments[0] if comments else ""


def search_path() -> list[str]:
    """The override that makes Hydra look into the user's folder, if there is one."""
    from hydra.core.override_parser.types import Quote, QuotedString

    folder = _own_folder()
    if folder is None:
        return []
    return [f"hydra.searchpath=[{QuotedString(text=f'file://{folder}', quote=Quote.double).with_quotes()}]"]


def own_files(chosen: Mapping[str, str]) -> list[OwnFile]:
    """The user's files that these choices (group -> name) lead to.

    Raises ConfigError with the file's name for one that cannot be read, builds on nothing, or has a shipped one's name.
    """
    found: list[OwnFile] = []
    for group, name in chosen.items():
        for path in _own_paths(group):
            if path.stem == name and (fault := _fault(group, path)):
                raise ConfigError(f"{group}={name}: {path} cannot be chosen: {fault}")
        _follow(group, name, (), found)
    return found


def blamed(error: ConfigError, files: Sequence[OwnFile], given: Sequence[str]) -> ConfigError:
    """The error with the name of the user's file in front that has the key of which it speaks.

    `given`: the overrides; a key that is among them is nobody else's fault.
    """
    found = re.match(r"(.+?)(?:=| is not | has no )", str(error))
    key = found[1] if found else ""
    if any(_sets(word, key) for word in given):
        return error
    for file in files:
        if _has(file, key):
            return ConfigError(f"{file.path}: {error}")
    unasked = not re.fullmatch(r"\w+(\.\w+)*", key) or " is not a key: " in str(error)
    if files and unasked and not any(str(file.path) in str(error) for file in files):
        return ConfigError(f"{_all_of(files)}: {error}")
    return error


@contextlib.contextmanager
def refusals_explained(files: Sequence[OwnFile]) -> Iterator[None]:
    """Within the block what Hydra does not explain itself, such as an odd `# @package` line, names the user's files."""
    try:
        yield
    except (HydraException, OmegaConfBaseException):
        raise
    except (AssertionError, TypeError, ValueError) as error:
        if not files or isinstance(error, ConfigError):
            raise
        reason = first_line(error) or "look at its first line and its defaults"
        raise ConfigError(f"{_all_of(files)}: Hydra cannot use it: {reason}") from None


def _all_of(files: Sequence[OwnFile]) -> str:
    return " or ".join(dict.fromkeys(str(file.path) for file in files))


def _own_folder() -> Path | None:
    folder, named = user_conf_dir()
    try:
        there = folder.is_dir()
    except PermissionError:
        there = False
    if named and not there:
        raise ConfigError(f"HPCJET_CONF={folder} is not a folder that you may read: make it, or unset the variable")
    return folder.resolve() if there else None


def _own_paths(group: str) -> list[Path]:
    folder = _own_folder()
    if folder is None:
        return []
    try:
        return sorted(path for path in (folder / group).iterdir() if path.suffix in (".yaml", ".yml"))
    except OSError:
        return []


def _fault(group: str, path: Path) -> str | None:
    """Why a file of the user cannot be chosen."""
    if path.suffix != ".yaml":
        return f"its name must end in .yaml; rename it to {path.stem}.yaml"
    if not NAME.fullmatch(path.stem):
        return "its name must begin with a letter, then letters, digits, - and _; rename it"
    if path.stem in shipped(group):
        return (
            f"hpcjet ships {group}={path.stem}; rename it, such as to my-{path.name}, "
            f"which may build on that: defaults: [{path.stem}]"
        )
    return None


def _follow(group: str, name: str, trail: tuple[str, ...], found: list[OwnFile]) -> None:
    path = own(group).get(name)
    if path is None:
        return
    if name in trail:
        raise ConfigError(f"{path}: it builds on itself: {' -> '.join((*trail, name))}; change its defaults")
    file = _read(group, path)
    for parent in file.parents:
        known = [*choices(group), *(f"{kind}_schema" for kind in SCHEMAS[group])]
        if parent not in known:
            raise ConfigError(
                f"{path}: defaults: {parent} is not known: "
                f"choose one of {', '.join(choices(group))}{nearest(parent, known)}"
            )
        _follow(group, parent, (*trail, name), found)
    found.append(file)


def _read(group: str, path: Path) -> OwnFile:
    try:
        text = path.read_text(encoding="utf-8")
        data = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}: {_place(error, text)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: it is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: it is not valid YAML: {first_line(error)}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: it must hold KEY: VALUE lines, not a list; see docs/your-cluster.md")
    whole = bool(re.match(r"(#[^\n]*\n|\s)*#\s*@package\s+_global_", text))
    if group in data and not whole:
        raise ConfigError(f"{path}: write the keys without `{group}:` in front of them, at the left margin")
    return OwnFile(group, path, {str(key): value for key, value in data.items()}, _parents(group, path, data), whole)


def _parents(group: str, path: Path, data: Mapping[Any, Any]) -> tuple[str, ...]:
    defaults = data.get("defaults")
    words = [each for each in defaults if isinstance(each, str)] if isinstance(defaults, list) else []
    names = [word.partition("@")[0].removeprefix(f"/{group}/") for word in words]
    parents = tuple(name for name in names if name != "_self_" and not name.startswith("/"))
    if not parents:
        example = "slurm" if group == "cluster" else next(iter(SCHEMAS[group]))
        raise ConfigError(f"{path}: it builds on nothing: begin it with a line such as  defaults: [{example}]")
    return parents


def _place(error: yaml.MarkedYAMLError, text: str) -> str:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f"it is not valid YAML: {error.problem}"
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    if re.match(r" *\t", line):
        return f"line {mark.line + 1} is indented with a tab; use spaces"
    return f"line {mark.line + 1} is not valid YAML: {error.problem}"


def _sets(word: str, key: str) -> bool:
    """Whether an override gives this key a value, by itself or within a mapping."""
    name, _, value = word.lstrip("+~").partition("=")
    return name == key or (value.startswith("{") and key.startswith(f"{name}."))


def _has(file: OwnFile, key: str) -> bool:
    parts = key.split(".")
    if not file.whole:
        if parts[0] != file.group:
            return False
        parts = parts[1:]
    node: Any = file.data
    for part in parts:
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return bool(parts)
