"""Proving tasks: their tests must fail without the reference patch and pass with it."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError, TaskError
from hpcjet.tasks.jsonl import dump_tasks, task_to_row
from hpcjet.tasks.junit import UNNAMED, Outcome
from hpcjet.tasks.sections import Section, sections
from hpcjet.tasks.sets import VALIDATED
from hpcjet.tasks.task import Task
from hpcjet.tasks.testrun import Place, Stopped, TestRun, run_tests
from hpcjet.tasks.tree import PreparedTree, TreeStore
from hpcjet.tasks.verdict import Verdict

REJECTED = "rejected.jsonl"
KNOWN = "validation"
"""Folder beside the task file with one result per task, so that nothing is done twice."""
FORMAT = 1
"""Changes when validation is done differently, so that old results are not taken for new ones."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What was found out about one task. A reason means that it is not proven."""

    instance_id: str
    reason: str = ""
    FAIL_TO_PASS: tuple[str, ...] = ()
    """Tests that pass with the reference patch only."""
    PASS_TO_PASS: tuple[str, ...] = ()
    """Tests that pass with and without it."""
    lasting: bool = True
    """Whether it will be the same next time: a disk that was full proves nothing."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds of `tree`, `before` and `after`."""

    @property
    def proven(self) -> bool:
        return not self.reason


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where and how tasks are validated."""

    store: TreeStore
    sandbox: SandboxConfig
    scratch: Path
    """A folder on a local disk; each test run makes a folder of its own in it."""
    timeout_s: float = 600.0
    """For the tests of one run."""
    cpus: int = 1
    """For the test command and a rebuild."""
    repeats: int = 0
    """Further runs with the reference patch; tests that do not pass in all of them are dropped as flaky."""


def validate_task(task: Task, bench: Bench) -> Validation:
    """Run the tests of a task without and with its reference patch. Everything that goes wrong becomes a reason."""
    seconds: dict[str, float] = {}
    try:
        with ExitStack() as used:
            begin = time.monotonic()
            tree = used.enter_context(bench.store.lend(task))
            seconds["tree"] = round(time.monotonic() - begin, 2)
            found = _prove(task, tree, bench, seconds)
    except Stopped as stopped:
        lasting = stopped.verdict is not Verdict.infrastructure or stopped.failure == "task"
        found = Validation(instance_id="", reason=str(stopped), lasting=lasting)
    except TaskError as error:
        found = Validation(instance_id="", reason=str(error), lasting=False)
    except SandboxError as error:
        found = Validation(instance_id="", reason=str(error), lasting=False)
    return replace(found, instance_id=task.instance_id, seconds=seconds)


def _prove(task: Task, tree: PreparedTree, bench: Bench, seconds: dict[str, float]) -> Validation:
    before, seconds["before"] = _run(task, tree, (), bench)
    fix = sections(task.patch_bytes)
    after, seconds["after"] = _run(task, tree, fix, bench)
    runs = [after.outcomes]
    if after.outcomes and (bench.repeats or _lost(before.outcomes, after.outcomes)):
        # once more even if that was not asked for: it may have been a flaky test
        runs += [_run(task, tree, fix, bench)[0].outcomes for _ in range(max(1, bench.repeats))]
    found = compare(before.outcomes, runs)
    if not _passed(after.outcomes):
        why = after.problem or f"the test command ended with {after.returncode}"
        found = replace(found, reason=f"no test passes with the reference patch: {why}")
    return found


def compare(before: Mapping[str, Outcome], runs: Sequence[Mapping[str, Outcome]]) -> Validation:
    """The lists of a task from its outcomes without the reference patch and those of one or more runs with it; pure."""
    passed_before = _passed(before)
    passed = [_passed(run) for run in runs]
    always, ever = set.intersection(*passed), set[str]().union(*passed)
    if lost := sorted(passed_before - ever):
        reason = f"{len(lost)} tests that passed before do not pass with the reference patch, first {lost[0]}"
        return Validation(instance_id="", reason=reason)
    fail_to_pass = tuple(test for test in runs[0] if test in always - passed_before)
    pass_to_pass = tuple(test for test in runs[0] if test in always & passed_before)
    reason = (
        "" if fail_to_pass else f"no test fails without the reference patch ({len(pass_to_pass)} pass with and without)"
    )
    return Validation(instance_id="", reason=reason, FAIL_TO_PASS=fail_to_pass, PASS_TO_PASS=pass_to_pass)


def _passed(outcomes: Mapping[str, Outcome]) -> set[str]:
    return {test for test, outcome in outcomes.items() if outcome is Outcome.passed and test != UNNAMED}


def _lost(before: Mapping[str, Outcome], after: Mapping[str, Outcome]) -> bool:
    return not _passed(before) <= _passed(after)


def _run(task: Task, tree: PreparedTree, change: tuple[Section, ...], bench: Bench) -> tuple[TestRun, float]:
    """One run and its seconds. Without the fix a run may well hang or not compile: no test passes then."""
    begin = time.monotonic()
    scratch = bench.scratch / f"{hashlib.sha256(task.instance_id.encode()).hexdigest()[:12]}-{time.monotonic_ns()}"
    place = Place(sandbox=bench.sandbox, scratch=scratch, timeout_s=bench.timeout_s, cpus=bench.cpus)
    run = TestRun()
    try:
        run_tests(task, tree, change, run, place=place)
    except Stopped as stopped:
        if change or stopped.verdict is Verdict.infrastructure:
            raise
    return run, round(time.monotonic() - begin, 2)


# Results on disk


def known_validation(task: Task, folder: Path) -> Validation | None:
    """The result of an earlier validation of exactly this task, if there is one."""
    try:
        row: dict[str, Any] = json.loads(_known_file(task, folder).read_text("utf-8"))
        row |= {name: tuple(row[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
        return Validation(**row)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_validation(task: Task, found: Validation, folder: Path) -> None:
    """Write a result down if it will be the same next time."""
    if not found.lasting:
        return
    target = _known_file(task, folder)
    target.parent.mkdir(exist_ok=True)
    atomic_write(target, json.dumps(asdict(found)) + "\n", mode=0o644)


def write_lists(tasks: Sequence[Task], results: Mapping[str, Validation], folder: Path) -> None:
    """validated.jsonl and rejected.jsonl of all results so far, in the order of the tasks, each in one step."""
    proven = [
        replace(task, FAIL_TO_PASS=found.FAIL_TO_PASS, PASS_TO_PASS=found.PASS_TO_PASS)
        for task in tasks
        if (found := results.get(task.instance_id)) and found.proven
    ]
    if proven:
        dump_tasks(folder / VALIDATED, proven)
    else:
        (folder / VALIDATED).unlink(missing_ok=True)  # an empty one would hide the tasks
    rows = [
        json.dumps({"instance_id": task.instance_id, "reason": found.reason})
        for task in tasks
        if (found := results.get(task.instance_id)) and not found.proven
    ]
    atomic_write(folder / REJECTED, "".join(f"{row}\n" for row in rows), mode=0o644)


def _known_file(task: Task, folder: Path) -> Path:
    row = task_to_row(replace(task, FAIL_TO_PASS=(), PASS_TO_PASS=()))
    digest = hashlib.sha256(json.dumps([FORMAT, row], sort_keys=True).encode()).hexdigest()
    return folder / KNOWN / f"{task.instance_id}-{digest[:12]}.json"
