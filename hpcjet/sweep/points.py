"""The points of a sweep: each is known by the hash of its resolved config. Pure."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcjet.config.plain import to_plain
from hpcjet.config.root import SCHEMAS, LaunchConfig, kind_of

NOT_OF_A_POINT = frozenset({"run", "sweep", "submit", "follow", "dry_run", "snapshot"})
"""Keys that say where and how a launch is made, not what it computes."""
HOW_LONG_AND_WHERE = frozenset(
    {"time_min", "partition", "account", "qos", "constraint", "nodelist", "exclude", "job_name", "signal_delay_s"}
    | {"requeue", "max_restarts", "boot_timeout_s", "end_timeout_s"}
)
"""Keys of `cluster` that change no result: a point that ran out of time stays the same point with more of it."""


@dataclass(frozen=True)
class Point:
    """One point: how it differs from the base config of its sweep."""

    index: int
    hash: str
    overrides: tuple[str, ...]
    """The words that make it, of all axes."""
    changes: dict[str, Any]
    """Resolved values by key, such as `engine.temperature`; and a whole group, with its `kinds.` entry, if its schema
    is another."""
    tasks: int = -1
    """The number of its list of tasks, -1 if it is about none."""

    def to_json(self) -> str:
        return json.dumps({**self.__dict__, "overrides": list(self.overrides)})


def read_point(line: str | bytes) -> Point:
    """The reverse of Point.to_json."""
    data = json.loads(line)
    return Point(**{**data, "overrides": tuple(data["overrides"])})


def config_of(base: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """The whole config of a point, as plain data."""
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
    for key, value in point.changes.items():
        group, dot, name = key.partition(".")
        if dot:
            config[group][name] = value
        else:
            config[group] = value
    return config


class Plain:
    """Configs as plain data; parts that are the same object are turned into data once."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[Any, Any]] = {}
        self._texts: dict[tuple[int, frozenset[str]], str] = {}

    def of(self, config: LaunchConfig) -> dict[str, Any]:
        """As config.plain.to_dict; the parts are shared."""
        data = {entry.name: self._part(getattr(config, entry.name)) for entry in dataclasses.fields(config)}
        return data | {"kinds": {group: kind_of(group, getattr(config, group)) for group in SCHEMAS}}

    def hash_of(self, config: LaunchConfig, *, swept: frozenset[str] = frozenset()) -> str:
        """Of what the config computes; of `swept` keys every value counts."""
        kept = frozenset(HOW_LONG_AND_WHERE - {key.removeprefix("cluster.") for key in swept})
        texts = {"kinds": canonical({group: kind_of(group, getattr(config, group)) for group in SCHEMAS})}
        for entry in dataclasses.fields(config):
            if entry.name not in NOT_OF_A_POINT:
                texts[entry.name] = self._text(getattr(config, entry.name), kept if entry.name == "cluster" else None)
        return digest(f"{name}={texts[name]}" for name in sorted(texts))

    def _part(self, value: Any) -> Any:
        if not dataclasses.is_dataclass(value):
            return to_plain(value)
        # With the object itself: its id belongs to nothing else as long as it is kept.
        if id(value) not in self._parts:
            self._parts[id(value)] = (value, to_plain(value))
        return self._parts[id(value)][1]

    def _text(self, value: Any, without: frozenset[str] | None) -> str:
        if not dataclasses.is_dataclass(value):
            return canonical(to_plain(value))
        data, key = self._part(value), (id(value), without or frozenset())
        if key not in self._texts:
            self._texts[key] = canonical({name: each for name, each in data.items() if name not in (without or ())})
        return self._texts[key]


def canonical(data: Any) -> str:
    """JSON that is the same for the same data, in every process and version of Python."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(texts: Iterable[str]) -> str:
    """Twenty hexadecimal digits."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:20]


def sweep_key(hashes: Sequence[str]) -> str:
    """The same for two sweeps with the same points in any order."""
    return digest(sorted(hashes))


def changes(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """How plain data differs from the base: by key, or by whole group where the schemas differ."""
    return dict(_changes(base, data))


def _changes(base: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        before = base[name]
        if value is before or name == "kinds":
            continue
        if name in SCHEMAS and data["kinds"][name] != base["kinds"][name]:
            yield name, value
            yield f"kinds.{name}", data["kinds"][name]
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", each) for key, each in value.items() if each != before[key])
        elif value != before:
            yield name, value
