"""Validating a whole task set: in parallel, in order, and never the same task twice."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcjet.tasks.task import Task
from hpcjet.tasks.validate import Bench, Validation, keep_validation, known_validation, validate_task, write_lists

WRITE_S = 5.0
"""The lists are written at most this often while validation goes on: each time all of them."""

Observer = Callable[[Validation, bool], object]
"""Told of each result, and whether it was known before."""


def validate(
    tasks: Sequence[Task],
    bench: Bench,
    *,
    folder: Path,
    jobs: int,
    limit: int | None = None,
    observe: Observer = lambda found, known: None,
) -> dict[str, Validation]:
    """Validate tasks, `jobs` at a time, until all are or the first `limit` proven ones exist; results by instance id.

    validated.jsonl and rejected.jsonl in `folder` always hold what is known so far: also what earlier calls found out.
    """
    results: dict[str, Validation] = {}
    for task in tasks:
        if found := known_validation(task, folder):
            results[task.instance_id] = found
            observe(found, True)
    try:
        _validate_rest(tasks, results, bench, folder, jobs, limit, observe)
    finally:
        write_lists(tasks, results, folder)
    return results


def _validate_rest(
    tasks: Sequence[Task],
    results: dict[str, Validation],
    bench: Bench,
    folder: Path,
    jobs: int,
    limit: int | None,
    observe: Observer,
) -> None:
    """Hand out in order, and no more than could still be needed for `limit`."""
    workers = _Workers(bench, jobs)
    waiting = [task for task in tasks if task.instance_id not in results]
    running: dict[str, Task] = {}
    written = time.monotonic()
    while True:
        while waiting and len(running) < jobs and _needed(tasks, results, running, waiting[0], limit):
            task = waiting.pop(0)
            running[task.instance_id] = task
            workers.give(task)
        if not running:
            return
        found = workers.take()
        task = running.pop(found.instance_id)
        results[found.instance_id] = found
        keep_validation(task, found, folder)
        observe(found, False)
        if time.monotonic() - written > WRITE_S:
            write_lists(tasks, results, folder)
            written = time.monotonic()


def _needed(
    tasks: Sequence[Task], results: dict[str, Validation], running: dict[str, Task], task: Task, limit: int | None
) -> bool:
    """Whether fewer than `limit` tasks before this one are proven or may still become so."""
    if limit is None:
        return True
    count = 0
    for earlier in tasks:
        if earlier is task or count >= limit:
            break
        found = results.get(earlier.instance_id)
        count += earlier.instance_id in running or (found is not None and found.proven)
    return count < limit


class _Workers:
    """Threads that die with the process: a person who interrupts a validation waits for no test."""

    def __init__(self, bench: Bench, count: int) -> None:
        self._todo: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Validation | BaseException] = queue.SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._work, args=(bench,), name=f"hpcjet-validate-{number}", daemon=True).start()

    def give(self, task: Task) -> None:
        self._todo.put(task)

    def take(self) -> Validation:
        found = self._done.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def _work(self, bench: Bench) -> None:
        while True:
            task = self._todo.get()
            try:
                self._done.put(validate_task(task, bench))
            except BaseException as error:  # a bug: to be raised where the caller is
                self._done.put(error)
