"""Judging a patch: a fresh tree and sandbox, the tests of the task, a verdict."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.tasks.grade import grade
from hpcjet.tasks.junit import Outcome
from hpcjet.tasks.sections import protected_paths, sections, split_off_tests
from hpcjet.tasks.task import Task
from hpcjet.tasks.testrun import Place, Stopped, TestRun, run_tests
from hpcjet.tasks.tree import PreparedTree
from hpcjet.tasks.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The verdict on one patch, and what it rests on."""

    verdict: Verdict
    detail: str = ""
    """One line for a person."""
    failure: str = ""
    """The class of an infrastructure failure: `sandbox`, `disk_full`, `memory`, `task` (test patch does not apply)."""
    applied: str = ""
    """How the patch went in: `strict`, `3way`, or empty."""
    tests: dict[str, int] = field(default_factory=dict)
    """`passed`, `failed`, `skipped`, `missing` among the tests that decide."""
    edited_tests: tuple[str, ...] = ()
    """Test files in the patch; these parts of it were left out."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds of `open`, `apply`, `rebuild`, `tests`, and `total`."""


def verify(
    task: Task,
    tree: PreparedTree,
    patch: bytes,
    *,
    sandbox_config: SandboxConfig,
    scratch: Path,
    timeout_s: float,
    cpus: int,
    artifacts: Path | None = None,
    keep_scratch: bool = False,
) -> Verification:
    """Judge a patch against the base tree; everything that goes wrong becomes a verdict and nothing is raised.

    What the patch does to test files is left out: those come from the base and from the test patch. `scratch` is a
    folder on a local disk for this call alone, removed at the end unless `keep_scratch`; `timeout_s` limits the tests,
    and once more a rebuild; `artifacts` receives tests.log, junit.xml and build.log. See run_tests() for what can still
    be forged.
    """
    if not patch.strip():
        return Verification(verdict=Verdict.empty_patch, detail="the patch is empty")
    if not sections(patch):
        return Verification(verdict=Verdict.patch_rejected, detail="the patch names no file")
    begin = time.monotonic()
    change, edited = split_off_tests(patch, protected_paths(task))
    run = TestRun()
    place = Place(
        sandbox=sandbox_config,
        scratch=scratch,
        timeout_s=timeout_s,
        cpus=cpus,
        artifacts=artifacts,
        keep_scratch=keep_scratch,
    )
    verdict, detail, failure, tests = Verdict.failed, "", "", {}
    try:
        run_tests(task, tree, change, run, place=place)
        if run.problem:
            detail = run.problem
        else:
            graded = grade(task, run.outcomes, returncode=run.returncode)
            verdict, detail, tests = graded.verdict, graded.detail, graded.tests
    except Stopped as stopped:
        verdict, detail, failure = stopped.verdict, str(stopped), stopped.failure
    return Verification(
        verdict=verdict,
        detail=detail,
        failure=failure,
        applied=run.applied,
        tests=tests,
        edited_tests=edited,
        outcomes=run.outcomes,
        seconds={**run.seconds, "total": round(time.monotonic() - begin, 4)},
    )
