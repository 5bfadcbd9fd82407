"""A record as one line of JSON, and back."""

import json
from dataclasses import MISSING, fields
from typing import Any

from hpcjet.swe.record import Record
from hpcjet.tasks.verdict import Verdict

_TEXT, _NUMBER = (str,), (int, float)
_KINDS: dict[str, tuple[type, ...]] = {
    "instance_id": _TEXT,
    "attempt": (int,),
    "verdict": _TEXT,
    "failure": _TEXT,
    "detail": _TEXT,
    "tries": (int,),
    "scaffold": _TEXT,
    "exit_status": _TEXT,
    "steps": (int,),
    "tokens": (dict,),
    "seconds": (dict,),
    "tests": (dict,),
    "patch_bytes": (int,),
    "edited_tests": (list,),
    "node": _TEXT,
    "started": _NUMBER,
    "artifacts": _TEXT,
    "recorded": _NUMBER,
}
"""Types as json.loads gives them; compared exactly, as true and false would pass for numbers."""
_VERDICTS = {verdict.value: verdict for verdict in Verdict}
_NAMES = [field.name for field in fields(Record)]
_NEEDED = {field.name for field in fields(Record) if field.default is MISSING and field.default_factory is MISSING}


def to_line(record: Record, *, recorded: float) -> bytes:
    """The record as a line with its newline; ASCII only, so that any text survives, half a character included.

    `recorded` is the Unix time of the recording.
    """
    values = {name: getattr(record, name) for name in _NAMES} | {"recorded": recorded}
    return json.dumps(values, separators=(",", ":")).encode("ascii") + b"\n"


def from_line(line: bytes) -> tuple[Record, float]:
    """Read what `to_line` wrote, the record and when it was recorded; fields that a later hpcjet added are passed over.

    Raises ValueError, saying what is wrong, for anything else.
    """
    values = checked_values(line)
    return to_record(values), values.get("recorded", 0.0)


def checked_values(line: bytes) -> dict[str, Any]:
    """The fields in a line, of which `to_record` surely makes a record. Raises ValueError as `from_line` does."""
    values = json.loads(line)
    if type(values) is not dict:
        raise ValueError("not a JSON object")
    for name, value in values.items():
        if name in _KINDS and type(value) not in _KINDS[name]:
            raise ValueError(f"{name} is no {_KINDS[name][-1].__name__}")
    if missing := _NEEDED - values.keys():
        raise ValueError(f"{min(missing)} is missing")
    if values["verdict"] not in _VERDICTS:
        raise ValueError(f"verdict is {values['verdict']!r:.40}, not one of {', '.join(_VERDICTS)}")
    _check_items(values)
    return values


def to_record(values: dict[str, Any]) -> Record:
    """The record of fields that were checked."""
    known = {name: values[name] for name in _NAMES if name in values}
    known["verdict"] = _VERDICTS[known["verdict"]]
    known["edited_tests"] = tuple(known.get("edited_tests", ()))
    return Record(**known)


def _check_items(values: dict[str, Any]) -> None:
    for name in ("tokens", "seconds", "tests"):
        for value in values.get(name, {}).values():
            if type(value) not in _NUMBER:
                raise ValueError(f"{name} is no map to numbers")
    for value in values.get("edited_tests", ()):
        if type(value) is not str:
            raise ValueError("edited_tests is no list of str")
