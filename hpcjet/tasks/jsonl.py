"""Task files: one SWE-bench row in JSON on each line; what only hpcjet knows stands under the one key `hpcjet`."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hpcjet.atomic import replacing
from hpcjet.errors import TaskError
from hpcjet.tasks.task import Recipe, Task

_REQUIRED = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch")
_OPTIONAL_TEXT = ("version", "created_at", "hints_text")
_TEST_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")
_EXTRA = ("tests", "layers", "recipe")
_LIST_FIELDS = ("setup", "rebuild_paths", "junk")
_ID_MAX_BYTES = 200
_DEFAULT_RECIPE = Recipe()

_ID = re.compile(r"[^./\s\x00-\x1f\x7f][^/\s\x00-\x1f\x7f]*")
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*)*")
_REF = re.compile(r"[^\s\x00-\x20\x7f~^:?*\[\\-][^\s\x00-\x20\x7f~^:?*\[\\]*")


class _RowError(Exception):
    """A field of a row is not usable; iter_tasks adds file and line."""


def load_tasks(path: Path, *, recipe: Recipe | None = None) -> list[Task]:
    """All tasks of a file; `recipe` is for the rows that bring none. Raises TaskError with the line number."""
    return list(iter_tasks(path, recipe=recipe))


def iter_tasks(path: Path, *, recipe: Recipe | None = None) -> Iterator[Task]:
    """The tasks of a file one by one, in its order. Raises TaskError with file, line, field and what is allowed."""
    lines_of_ids: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            task = row_to_task(_parse(line), recipe=recipe)
            if earlier := lines_of_ids.get(task.instance_id):
                raise _RowError(f"instance_id={task.instance_id!r} was used on line {earlier}: each id once only")
        except _RowError as error:
            raise TaskError(f"{path} line {number}: {error}") from None
        lines_of_ids[task.instance_id] = number
        yield task


def dump_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write a task file in one step: a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path, mode=0o644) as descriptor,
        os.fdopen(descriptor, "w", encoding="ascii", newline="\n", closefd=False) as file,
    ):
        for task in tasks:
            file.write(json.dumps(task_to_row(task)) + "\n")


def task_to_row(task: Task) -> dict[str, Any]:
    """The row of a task: SWE-bench's fields with the lists as JSON text, as in the original data sets."""
    row: dict[str, Any] = {name: getattr(task, name) for name in (*_REQUIRED, *_OPTIONAL_TEXT)}
    row.update({name: json.dumps(list(getattr(task, name))) for name in _TEST_LISTS})
    extra: dict[str, Any] = {}
    if task.tests != patched_files(task.test_patch):
        extra["tests"] = list(task.tests)
    if task.layers:
        extra["layers"] = list(task.layers)
    if recipe := _recipe_differences(task.recipe):
        extra["recipe"] = recipe
    return {**row, "hpcjet": extra} if extra else row


def row_to_task(row: Mapping[str, Any], *, recipe: Recipe | None = None) -> Task:
    text: dict[str, Any] = {name: _text(row, name) for name in _REQUIRED}
    _check_id(text["instance_id"])
    _check_repo(text["repo"])
    check_commit(text["base_commit"], field="base_commit")
    extra = _extra(row)
    layers = _strings(extra.get("layers", []), "hpcjet.layers")
    for layer in layers:
        check_commit(layer, field="hpcjet.layers")
    if layers and layers[-1] != text["base_commit"]:
        raise _RowError(f"hpcjet.layers ends with {layers[-1]!r}: the last layer must be base_commit")
    tests = _strings(extra["tests"], "hpcjet.tests") if "tests" in extra else patched_files(text["test_patch"])
    rest: dict[str, Any] = {name: _optional_text(row, name) for name in _OPTIONAL_TEXT}
    rest |= {name: _test_list(row, name) for name in _TEST_LISTS}
    return Task(
        **text,
        **rest,
        tests=tests,
        layers=layers,
        recipe=_recipe(extra["recipe"]) if "recipe" in extra else recipe or _DEFAULT_RECIPE,
    )


def patched_files(patch: str) -> tuple[str, ...]:
    """The files that a patch changes or makes, in its order; not those that it removes."""
    names: dict[str, None] = {}
    start = "diff --git " if "diff --git " in patch else r"--- .*\n\+\+\+ "
    for section in re.split(rf"(?m)^(?={start})", patch):
        if name := _file_of_section(section):
            names[name] = None
    return tuple(names)


def _file_of_section(section: str) -> str:
    header = re.split(r"(?m)^(?:@@ |GIT binary patch)", section, maxsplit=1)[0]
    for pattern, prefix in ((r"^\+\+\+ (.+)$", "b/"), (r"^(?:rename|copy) to (.+)$", "")):
        if match := re.search(pattern, header, re.MULTILINE):
            # git puts a tab after a name with spaces
            name = _unquote(match[1].rstrip("\r").removesuffix("\t"))
            return "" if name == "/dev/null" else name.removeprefix(prefix)
    if "\ndeleted file mode " in header:
        return ""
    match = re.match(r'diff --git (?:"?a/.*"? )("b/.*"|b/.*)$', header, re.MULTILINE)
    return _unquote(match[1]).removeprefix("b/") if match else ""


def _unquote(name: str) -> str:
    """Undo git's C-style quoting of unusual names."""
    if not (len(name) >= 2 and name[0] == name[-1] == '"'):
        return name
    raw = name[1:-1].encode("utf-8", "surrogateescape")
    plain = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}

    def replace(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8) & 255]) if code.isdigit() else plain.get(code, code)

    return re.sub(rb"\\([0-7]{3}|.)", replace, raw).decode("utf-8", "surrogateescape")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if text := line.decode("utf-8", "surrogateescape").removeprefix("\ufeff").strip():
                    yield number, text
    except OSError as error:
        raise TaskError(f"the task file {path} cannot be read ({error.strerror}); give a JSONL file") from error


def _parse(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise _RowError(f"not JSON ({error}); a task file has one JSON object on each line") from None
    if not isinstance(row, dict):
        raise _RowError(f"a {type(row).__name__} where a JSON object is needed")
    return row


def _text(row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        raise _RowError(f"{name} is missing; a row needs {', '.join(_REQUIRED)}")
    if not isinstance(row[name], str):
        raise _RowError(f"{name}={_short(row[name])} is a {type(row[name]).__name__}; text is needed")
    return str(row[name])


def _optional_text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _RowError(f"{name}={_short(value)} is a {type(value).__name__}; text is needed")
    return str(value)


def _test_list(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = row.get(name)
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise _RowError(f"{name}={_short(value)} is no JSON text; a list of test ids is needed") from None
    return _strings(value, name)


def _strings(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _RowError(f"{name}={_short(value)} is not allowed; a list of texts is needed")
    return tuple(value)


def _extra(row: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = row.get("hpcjet") or {}
    if not isinstance(extra, dict):
        raise _RowError(f"hpcjet={_short(extra)} is not allowed; an object with {', '.join(_EXTRA)} is needed")
    _refuse_unknown(extra, _EXTRA, "hpcjet")
    return extra


def _recipe(value: Any) -> Recipe:
    if not isinstance(value, dict):
        raise _RowError(f"hpcjet.recipe={_short(value)} is not allowed; an object is needed")
    _refuse_unknown(value, [field.name for field in fields(Recipe)], "hpcjet.recipe")
    settings: dict[str, Any] = {}
    for name, item in value.items():
        if name in _LIST_FIELDS:
            settings[name] = _strings(item, f"hpcjet.recipe.{name}")
        elif isinstance(item, str):
            settings[name] = item
        else:
            raise _RowError(f"hpcjet.recipe.{name}={_short(item)} is not allowed; text is needed")
    return Recipe(**settings)


def _recipe_differences(recipe: Recipe) -> dict[str, Any]:
    values = {field.name: getattr(recipe, field.name) for field in fields(Recipe)}
    changed = {name: value for name, value in values.items() if value != getattr(_DEFAULT_RECIPE, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changed.items()}


def _refuse_unknown(given: Mapping[str, Any], allowed: Iterable[str], name: str) -> None:
    if unknown := sorted(set(given) - set(allowed)):
        raise _RowError(f"{name} has no field {unknown[0]!r}; allowed are {', '.join(allowed)}")


def _check_id(value: str) -> None:
    if not _ID.fullmatch(value) or ".." in value or len(value.encode("utf-8", "surrogateescape")) > _ID_MAX_BYTES:
        raise _RowError(
            f"instance_id={_short(value)} is not allowed: it names a folder, so no '/', no '..', no blanks, "
            f"no leading '.', at most {_ID_MAX_BYTES} bytes, as in owner__repo-123"
        )


def _check_repo(value: str) -> None:
    if not _REPO.fullmatch(value) or ".." in value:
        raise _RowError(f"repo={_short(value)} is not allowed; a name such as owner/name is needed")


def check_commit(value: str, *, field: str) -> None:
    """Refuse what is neither a hash nor a plain ref name: it is given to git as an argument."""
    if not _REF.fullmatch(value) or ".." in value or "@{" in value or value.endswith(("/", ".lock", ".")):
        raise _RowError(f"{field}={_short(value)} is not allowed; a commit hash or a branch or tag name is needed")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
