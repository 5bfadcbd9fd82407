"""One run of a task's tests on a fresh tree, with or without somebody's change."""

import errno
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox import Completed, Limits, Mount, Sandbox, SandboxSpec, View, open_sandbox
from hpcjet.sandbox.identity import identity
from hpcjet.sandbox.readback import read_back
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.gitbox import base_git, git_setup, new_place
from hpcjet.tasks.junit import MAX_BYTES, Outcome, ReportError, parse_junit
from hpcjet.tasks.layer import needs_rebuild
from hpcjet.tasks.sections import Section, paths_of, sections
from hpcjet.tasks.stopwatch import stage
from hpcjet.tasks.task import TESTBED, Task
from hpcjet.tasks.tree import PreparedTree
from hpcjet.tasks.verdict import Verdict

APPLY_S = 120.0
FULL_BYTES = 32 * 1024**2
"""A disk with less free space than this counts as full."""
SIGKILLED = 137
REPORT = "junit.xml"


class Stopped(Exception):
    """A run ended before its tests told anything; `verdict`, `failure` and the text are what to record."""

    def __init__(self, verdict: Verdict, detail: str, *, failure: str = "") -> None:
        super().__init__(detail)
        self.verdict = verdict
        self.failure = failure


@dataclass
class TestRun:
    """What one run told. Times are wall seconds of `open`, `apply`, `rebuild` and `tests`."""

    __test__ = False  # for pytest

    applied: str = ""
    """How the change went in: `strict` or `3way`."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    problem: str = ""
    """Why there are no outcomes."""
    returncode: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and within which limits tests run."""

    sandbox: SandboxConfig
    scratch: Path
    """A folder on a local disk for this run alone; it is removed at the end unless `keep_scratch`."""
    timeout_s: float
    """For the tests, and once more for a rebuild."""
    cpus: int
    artifacts: Path | None = None
    """Where build.log, tests.log and junit.xml are kept."""
    keep_scratch: bool = False


def run_tests(task: Task, tree: PreparedTree, change: tuple[Section, ...], run: TestRun, *, place: Place) -> None:
    """Apply `change` and the test patch to a fresh tree, rebuild if need be, run the tests; fills `run`.

    The report lies in a folder outside the tree under a name that cannot be known beforehand, and is read after every
    process has ended. What is not stopped: code under test runs in the process that writes the report, and can replace
    test functions or write a report itself. Raises Stopped.
    """
    try:
        place.scratch.mkdir(mode=0o711, parents=True, exist_ok=True)
        place.scratch.chmod(0o711)
        _run_tests(task, tree, change, run, place)
    except SandboxError as error:
        raise _infrastructure("sandbox", str(error), place) from error
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise _infrastructure("disk_full" if full else "sandbox", str(error), place) from error
    finally:
        if not place.keep_scratch:
            remove_tree(place.scratch)


def _run_tests(task: Task, tree: PreparedTree, change: tuple[Section, ...], run: TestRun, place: Place) -> None:
    folder = place.scratch / "report"
    folder.mkdir(mode=0o700)
    identity(place.sandbox).own(folder)
    shown = Mount(source=folder, target=f"/run/report-{token_hex(8)}", writable=True)
    with stage(run.seconds, "open"):
        sandbox = open_sandbox(place.sandbox, _spec(tree, shown, place))
    with sandbox:
        with stage(run.seconds, "apply"):
            run.applied = _apply(sandbox, tree, change, sections(task.test_patch_bytes), place)
        if needs_rebuild(task.recipe, paths_of((*change, *sections(task.test_patch_bytes)))):
            with stage(run.seconds, "rebuild"):
                _rebuild(sandbox, task, place)
        with stage(run.seconds, "tests"):
            done = sandbox.run(_command(task, shown.target, place), timeout_s=place.timeout_s)
    _keep(place, "tests.log", done.output)
    _check_limits(done, place, what="the tests")
    run.returncode = done.returncode
    _read(run, folder, place)
    if run.problem and done.limit == "file":
        run.problem += f": it {_over(done.limit, place.sandbox)}"


def _spec(tree: PreparedTree, report: Mount, place: Place) -> SandboxSpec:
    return SandboxSpec(
        scratch=place.scratch / "sandbox",
        view=View(lowers=tree.lowers, at=TESTBED),
        mounts=(base_git(tree), report),
        cwd=TESTBED,
        limits=Limits.of(place.sandbox),
        keep_scratch=place.keep_scratch,
    )


def _command(task: Task, report: str, place: Place) -> str:
    values = {"{junit}": f"{report}/{REPORT}", "{tests}": shlex.join(task.tests), "{cpus}": str(place.cpus)}
    command = task.recipe.test_command
    for name, value in values.items():
        command = command.replace(name, value)
    return command


# Applying


def _apply(
    sandbox: Sandbox, tree: PreparedTree, change: tuple[Section, ...], tests: tuple[Section, ...], place: Place
) -> str:
    """Strictly and both at once, as is nearly always possible: they are about different files. Else one by one."""
    if not change and not tests:
        return ""
    if _git_apply(sandbox, tree, (*change, *tests), place).returncode == 0:
        return "strict" if change else ""
    applied = _apply_one(sandbox, tree, change, place, verdict=Verdict.patch_rejected) if change else ""
    if tests:
        _apply_one(sandbox, tree, tests, place, verdict=Verdict.infrastructure, failure="task")
    return applied


def _apply_one(
    sandbox: Sandbox,
    tree: PreparedTree,
    parts: tuple[Section, ...],
    place: Place,
    *,
    verdict: Verdict,
    failure: str = "",
) -> str:
    done = _git_apply(sandbox, tree, parts, place)
    if done.returncode == 0:
        return "strict"
    if _git_apply(sandbox, tree, parts, place, three_way=True).returncode == 0:
        return "3way"
    whose = "the test patch" if failure else "the patch"
    raise Stopped(verdict, f"{whose} does not apply: {_first_line(done.output)}", failure=failure)


def _git_apply(
    sandbox: Sandbox, tree: PreparedTree, parts: tuple[Section, ...], place: Place, *, three_way: bool = False
) -> Completed:
    patch = b"".join(part.text if part.text.endswith(b"\n") else part.text + b"\n" for part in parts)
    how = "cp -p $base/index $own/index && git apply --3way" if three_way else "git apply"
    script = git_setup(new_place(), head=tree.head) + f"{how} --whitespace=nowarn -"
    done = sandbox.run(script, timeout_s=APPLY_S, stdin=patch)
    if done.timed_out:
        raise _infrastructure("sandbox", f"applying the patch took more than {APPLY_S:.0f} s", place)
    _check_limits(done, place, what="applying the patch")
    return done


def _rebuild(sandbox: Sandbox, task: Task, place: Place) -> None:
    command = task.recipe.rebuild.replace("{cpus}", str(place.cpus))
    done = sandbox.run(command, timeout_s=place.timeout_s)
    _keep(place, "build.log", done.output)
    if done.timed_out:
        raise Stopped(Verdict.failed, f"the rebuild took more than {place.timeout_s:.0f} s: {command}")
    _check_limits(done, place, what="the rebuild")
    if done.returncode:
        raise Stopped(Verdict.failed, f"the rebuild ended with {done.returncode}: {_last_line(done.output)}")


# What came of it


def _read(run: TestRun, folder: Path, place: Place) -> None:
    try:
        data = read_report(folder)
        _keep(place, REPORT, data)
        run.outcomes = parse_junit(data)
    except ReportError as error:
        if run.returncode == SIGKILLED and error.kind == "absent":
            raise _infrastructure("memory", "the test command was killed from outside (SIGKILL)", place) from None
        if run.returncode and _is_full(place.scratch):
            raise _infrastructure("disk_full", str(error), place) from None
        run.problem = f"{error} (the test command ended with {run.returncode})"


def read_report(folder: Path) -> bytes:
    """The report that untrusted code left; only a plain file of a sane size is read. Raises ReportError."""
    folder.chmod(0o700)
    try:
        return read_back(folder, REPORT, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        raise ReportError("absent", "the tests wrote no report") from None
    except SandboxError as error:
        raise ReportError("hostile", f"the test report cannot be used: {error}") from None


def _check_limits(done: Completed, place: Place, *, what: str) -> None:
    """Raises Stopped if a limit of the sandbox ended the command, with the limit's name."""
    if done.limit == "memory":
        raise _infrastructure("memory", f"{what} needed more than sandbox.memory_gb={place.sandbox.memory_gb:g}", place)
    if done.limit == "wall":
        raise Stopped(Verdict.tests_timeout, f"{what} still ran when the life of the sandbox was over")
    if done.timed_out:
        raise Stopped(Verdict.tests_timeout, f"{what} took more than {done.seconds:.0f} s")
    if done.limit in ("disk", "files") and _is_full(place.scratch):
        raise _infrastructure("disk_full", f"{what} ended at a limit while the disk was full", place)
    if done.limit in ("disk", "files", "processes", "cpu"):
        raise Stopped(Verdict.failed, f"{what} {_over(done.limit, place.sandbox)}")


def _over(limit: str, sandbox: SandboxConfig) -> str:
    """What a command did that hit a limit."""
    return {
        "disk": f"wrote more to disk than sandbox.disk_gb={sandbox.disk_gb}",
        "files": f"made more files than sandbox.disk_files={sandbox.disk_files}",
        "processes": f"had more processes than sandbox.processes={sandbox.processes}",
        "cpu": "used more CPU time than one command may",
        "file": "wrote a file that is larger than one may be",
    }[limit]


def _infrastructure(failure: str, detail: str, place: Place) -> Stopped:
    if failure == "sandbox" and _is_full(place.scratch):
        failure = "disk_full"
    return Stopped(Verdict.infrastructure, detail, failure=failure)


def _is_full(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_BYTES


def _keep(place: Place, name: str, data: bytes) -> None:
    if place.artifacts is not None:
        place.artifacts.mkdir(parents=True, exist_ok=True)
        (place.artifacts / name).write_bytes(data)


def _first_line(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip().partition("\n")[0][:300]


def _last_line(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
