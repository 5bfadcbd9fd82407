"""The commands `hpcjet tasks ...`."""

import argparse
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hpcjet.errors import EXIT_OK
from hpcjet.paths import cache_dir

Subparsers = Any
"""What argparse's add_subparsers gives; its class has no public name."""


def register(subparsers: Subparsers, *, more: Iterable[Callable[[Subparsers], object]] = ()) -> Subparsers:
    """Add `tasks` with `build` and `list`; `more` adds further commands below it. Returns the subparsers of `tasks`.

    Every command sets the default `func`: a callable from Namespace to exit code. It raises TaskError.
    """
    parser = subparsers.add_parser("tasks", help="make, list and check task sets")
    commands = parser.add_subparsers(dest="tasks_command", required=True, metavar="COMMAND")
    _register_build(commands)
    _register_list(commands)
    for add in more:
        add(commands)
    return commands


def _register_build(commands: Subparsers) -> None:
    build = commands.add_parser("build", help="make a task set")
    kinds = build.add_subparsers(dest="kind", required=True, metavar="KIND")
    debian = kinds.add_parser("debian", help="from a Debian source package; fetches it from the machine's own mirror")
    debian.add_argument("package", nargs="?", default="python3.11", help="source package (default: %(default)s)")
    debian.add_argument("--refresh", action="store_true", help="look for a newer version although a set is there")
    debian.set_defaults(func=build_command)


def _register_list(commands: Subparsers) -> None:
    listing = commands.add_parser("list", help="list the tasks of a set")
    listing.add_argument("path", nargs="?", type=Path, help="JSONL file or task set (default: the set built last)")
    listing.add_argument("--json", action="store_true", help="for scripts, one object a line")
    listing.set_defaults(func=list_command)


def build_command(arguments: argparse.Namespace) -> int:
    from hpcjet.tasks.debian import build_debian
    from hpcjet.tasks.jsonl import iter_tasks
    from hpcjet.tasks.sets import TASKS

    with _progress():
        folder = build_debian(arguments.package, cache=cache_dir(), refresh=arguments.refresh)
    count = sum(1 for _ in iter_tasks(folder / TASKS))
    print(f"{count} tasks in {folder / TASKS}")
    return EXIT_OK


def list_command(arguments: argparse.Namespace) -> int:
    from hpcjet.tasks.jsonl import iter_tasks
    from hpcjet.tasks.sets import resolve_task_file

    for task in iter_tasks(resolve_task_file(arguments.path, cache=cache_dir())):
        title = task.problem_statement.strip().partition("\n")[0]
        if arguments.json:
            print(json.dumps({"instance_id": task.instance_id, "tests": list(task.tests), "title": title}))
            continue
        print(f"{task.instance_id}  {' '.join(task.tests)}  {_printable(title)}")
    return EXIT_OK


def _printable(text: str) -> str:
    short = text if len(text) <= 80 else text[:77] + "..."
    return short.encode("utf-8", "replace").decode("utf-8")


class _progress:
    """Show what hpcjet.tasks logs as short lines while a command runs, unless the program shows logs already."""

    def __enter__(self) -> None:
        self._logger = logging.getLogger("hpcjet.tasks")
        self._level = self._logger.level
        self._handler: logging.Handler | None = None
        if not logging.getLogger().handlers:
            self._handler = logging.StreamHandler()
            self._handler.setFormatter(logging.Formatter("%(message)s"))
            self._logger.addHandler(self._handler)
            self._logger.setLevel(logging.INFO)

    def __exit__(self, *_: object) -> None:
        if self._handler:
            self._logger.removeHandler(self._handler)
            self._logger.setLevel(self._level)
