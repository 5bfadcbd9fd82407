"""The command `hpcjet tasks validate`."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcjet.errors import EXIT_OK, EXIT_WORKLOAD, ConfigError
from hpcjet.paths import cache_dir
from hpcjet.tasks.validate import REJECTED, Validation

DESCRIPTION = """\
Run the tests of each task without and with its reference patch, in sandboxes. Tasks whose tests fail without the patch
and pass with it go to validated.jsonl beside the task file, with their lists of tests; the others to rejected.jsonl,
with the reason. Results are kept: a later call does only what is missing."""


def register(commands: Any) -> None:
    """Add `validate` to the subparsers of `hpcjet tasks`."""
    parser = commands.add_parser("validate", help="prove tasks with their reference patches", description=DESCRIPTION)
    parser.add_argument("path", nargs="?", type=Path, help="JSONL file or task set (default: the set built last)")
    parser.add_argument("--repos", type=Path, help="folder of repositories (default: repos beside the task file)")
    parser.add_argument("--limit", type=int, metavar="N", help="stop when the first N proven tasks exist")
    parser.add_argument("--jobs", type=int, metavar="N", help="tasks at a time (default: the number of CPUs)")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds for one test run (%(default)g)"
    )
    parser.add_argument(
        "--repeat", type=int, default=0, metavar="N", help="further runs to find flaky tests (%(default)s)"
    )
    parser.set_defaults(func=validate_command)


def validate_command(arguments: argparse.Namespace) -> int:
    """Exit code 0 if a task is proven (--limit of them, if given), else 1. Raises TaskError and ConfigError."""
    from hpcjet.config.sandbox import SandboxConfig
    from hpcjet.sandbox.detect import scratch_base
    from hpcjet.sandbox.held import temp_folder
    from hpcjet.tasks.home import choose_shelf, choose_trees
    from hpcjet.tasks.jsonl import load_tasks
    from hpcjet.tasks.room import Keep
    from hpcjet.tasks.sets import TASKS, VALIDATED, resolve_tasks
    from hpcjet.tasks.tree import TreeStore
    from hpcjet.tasks.validate import Bench
    from hpcjet.tasks.validate_set import validate

    _check(arguments)
    file, repos = resolve_tasks(arguments.path, arguments.repos, cache=cache_dir())
    if file.name == VALIDATED and (whole := file.with_name(TASKS)).is_file():
        file = whole
    tasks = load_tasks(file)
    config = SandboxConfig()
    cpus = len(os.sched_getaffinity(0))
    jobs = min(arguments.jobs or cpus, len(tasks) or 1)
    begin = time.monotonic()
    with temp_folder(scratch_base(config), "validate") as scratch:
        scratch.chmod(0o711)
        trees, shelf = choose_trees(None, config, keep=Keep()), choose_shelf(None, keep=Keep())
        bench = Bench(
            store=TreeStore(trees, config, repos, shelf=shelf),
            sandbox=config,
            scratch=scratch,
            timeout_s=arguments.timeout,
            cpus=max(1, cpus // jobs),
            repeats=arguments.repeat,
        )
        with _progress(arguments.limit or len(tasks), limited=arguments.limit is not None) as observe:
            results = validate(tasks, bench, folder=file.parent, jobs=jobs, limit=arguments.limit, observe=observe)
    proven = sum(found.proven for found in results.values())
    print(
        f"{proven} of {len(results)} validated tasks are proven; there are {len(tasks)} in {file}. "
        f"It took {time.monotonic() - begin:.0f} s.\n"
        f"proven: {file.with_name(VALIDATED)}\nrejected, with reasons: {file.with_name(REJECTED)}"
    )
    return EXIT_OK if proven >= (arguments.limit or 1) else EXIT_WORKLOAD


def _check(arguments: argparse.Namespace) -> None:
    for name, least in (("limit", 1), ("jobs", 1), ("timeout", 1), ("repeat", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name}={value} is not allowed; give {least} or more")


@contextlib.contextmanager
def _progress(total: int, *, limited: bool) -> Iterator[Callable[[Validation, bool], None]]:
    """A live bar on a terminal, else one short line for each task."""
    if not sys.stderr.isatty():
        yield lambda found, known: None if known else print(_line(found), flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("proven" if limited else "validated", total=total)

        def observe(found: Validation, known: bool) -> None:
            if found.proven or not limited:
                progress.advance(bar)
            if not known:
                progress.console.print(_line(found), markup=False, highlight=False)

        yield observe


def _line(found: Validation) -> str:
    seconds = sum(found.seconds.values())
    if found.proven:
        lists = f"{len(found.FAIL_TO_PASS)} fail to pass, {len(found.PASS_TO_PASS)} pass to pass"
        return f"proven    {found.instance_id}: {lists} ({seconds:.1f} s)"
    return f"rejected  {found.instance_id}: {found.reason.splitlines()[0]} ({seconds:.1f} s)"
