"""Turning test outcomes into a verdict: pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcjet.tasks.junit import Outcome, outcome_of
from hpcjet.tasks.task import Task
from hpcjet.tasks.verdict import Verdict

MISSING = "missing"


@dataclass(frozen=True)
class Grade:
    """The verdict on one test run, and how the tests that decide ended: `passed`, `failed`, `skipped`, `missing`."""

    verdict: Verdict
    detail: str = ""
    tests: dict[str, int] = field(default_factory=dict)


def grade(task: Task, outcomes: Mapping[str, Outcome], *, returncode: int) -> Grade:
    """All FAIL_TO_PASS and PASS_TO_PASS tests must pass; a skipped one has not passed.

    A task without lists was never validated: then no test may fail, one must pass, and the command must end with 0.
    """
    named = (*task.FAIL_TO_PASS, *task.PASS_TO_PASS)
    if named:
        ends = {test: _end(outcome_of(outcomes, test)) for test in named}
        bad = [test for test, end in ends.items() if end != "passed"]
    else:
        ends = {test: _end(outcome) for test, outcome in outcomes.items()}
        bad = [test for test, end in ends.items() if end == "failed"]
    tests = _count(ends)
    if bad:
        return Grade(
            Verdict.failed, f"{len(bad)} of {len(ends)} tests did not pass, first {bad[0]} ({ends[bad[0]]})", tests
        )
    if not tests["passed"]:
        return Grade(Verdict.failed, f"none of {len(ends)} tests passed", tests)
    if not named and returncode:
        return Grade(Verdict.failed, f"all tests passed, but the test command ended with {returncode}", tests)
    return Grade(Verdict.resolved, "", tests)


def _end(outcome: Outcome | None) -> str:
    if outcome is None:
        return MISSING
    return "failed" if outcome is Outcome.error else outcome.value


def _count(ends: Mapping[str, str]) -> dict[str, int]:
    counts = Counter(ends.values())
    return {end: counts[end] for end in ("passed", "failed", "skipped", MISSING)}
