"""Nested dicts, lists and tuples of numbers, text and arrays in one file, without pickle.

The file is numpy's npz: the arrays, and as `tree` (UTF-8 JSON) what they hang on. Dataclasses, named tuples and enums
of this package come back as what they were.
"""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

TREE = "tree"
PLAIN = (str, bool, int, float, type(None))


def save(file: IO[bytes], value: Any) -> None:
    """Raises TypeError for what cannot be kept."""
    arrays: list[np.ndarray[Any, Any]] = []

    def keep(array: np.ndarray[Any, Any]) -> int:
        if array.dtype.hasobject:
            raise TypeError(f"an array of {array.dtype} cannot be kept in a checkpoint")
        arrays.append(array)
        return len(arrays) - 1

    text = json.dumps(encoded(value, keep))
    named: dict[str, Any] = {f"a{number}": array for number, array in enumerate(arrays)}
    named[TREE] = np.frombuffer(text.encode(), dtype=np.uint8)
    np.savez(file, **named)


def load(path: Path) -> Any:
    """Raises OSError, ValueError, KeyError or zipfile.BadZipFile for a file that is damaged."""
    with np.load(path, allow_pickle=False) as held:
        text = held[TREE].tobytes().decode()
        return decoded(json.loads(text), lambda number: held[f"a{number}"])


def encoded(value: Any, keep: Callable[[np.ndarray[Any, Any]], int]) -> Any:
    """As JSON; arrays are given to `keep` and named by its answers."""
    if isinstance(value, Enum):
        return {"enum": _name(type(value)), "is": value.name}
    if type(value) in PLAIN:
        return value
    if isinstance(value, np.ndarray):
        return {"array": keep(value)}
    if isinstance(value, np.generic):
        return {"scalar": keep(np.asarray(value))}
    if isinstance(value, dict):
        return {"dict": [[encoded(key, keep), encoded(each, keep)] for key, each in value.items()]}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"named": _name(type(value)), "is": [encoded(each, keep) for each in value]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [encoded(each, keep) for each in value]}
    if is_dataclass(value) and not isinstance(value, type):
        held = {each.name: encoded(getattr(value, each.name), keep) for each in fields(value)}
        return {"data": _name(type(value)), "is": held}
    raise TypeError(f"a {type(value).__name__} cannot be kept in a checkpoint")


def decoded(tree: Any, array: Callable[[int], np.ndarray[Any, Any]]) -> Any:
    """What `encoded` made it of. Raises ValueError for what it never makes."""
    if not isinstance(tree, dict):
        return tree
    kind, held = next(iter(tree.items()))
    if kind == "array":
        return array(held)
    if kind == "scalar":
        return array(held)[()]
    if kind == "dict":
        return {decoded(key, array): decoded(each, array) for key, each in held}
    if kind in ("list", "tuple"):
        items = [decoded(each, array) for each in held]
        return items if kind == "list" else tuple(items)
    if kind == "enum":
        return _class(held, lambda each: issubclass(each, Enum))[tree["is"]]
    if kind == "named":
        made = _class(held, lambda each: hasattr(each, "_fields"))
        return made(*(decoded(each, array) for each in tree["is"]))
    if kind == "data":
        made = _class(held, is_dataclass)
        return made(**{name: decoded(each, array) for name, each in tree["is"].items()})
    raise ValueError(f"a checkpoint holds no {kind!r}")


def _name(kind: type) -> str:
    if not kind.__module__.startswith("hpcjet."):
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__} cannot be kept in a checkpoint")
    return f"{kind.__module__}:{kind.__qualname__}"


def _class(name: str, fits: Callable[[Any], Any]) -> Any:
    module, _, kind = name.partition(":")
    if not module.startswith("hpcjet."):
        raise ValueError(f"{name} is not of this package")
    found = getattr(import_module(module), kind)
    if not (isinstance(found, type) and fits(found)):
        raise ValueError(f"{name} is not what a checkpoint holds")
    return found
