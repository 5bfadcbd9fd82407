"""One attempt: an agent at work in a sandbox, its change taken, judged in another."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from secrets import token_hex

from hpcjet.atomic import atomic_write
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.session import session_id
from hpcjet.errors import HpcjetError, SandboxError, StoreError, TaskError
from hpcjet.rundir import Artifacts, RunDir
from hpcjet.sandbox import Limits, ReadySandboxes, Sandbox, SandboxSpec, View, open_sandbox
from hpcjet.swe.janitor import Janitor
from hpcjet.swe.record import Record
from hpcjet.swe.scaffold import Outcome, ScaffoldSettings, get_scaffold
from hpcjet.tasks.home import choose_shelf, choose_trees, fit_to
from hpcjet.tasks.patch import Diff, PatchError, base_git, take_diff
from hpcjet.tasks.room import Keep, NoRoom
from hpcjet.tasks.stopwatch import stage
from hpcjet.tasks.task import TESTBED, Task
from hpcjet.tasks.tree import PreparedTree, TreeStore
from hpcjet.tasks.verdict import Verdict
from hpcjet.tasks.verify import Verification, verify

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AttemptSettings:
    """What every attempt of a run has in common."""

    run_dir: Path
    repos: Path
    trees: Path | None
    """Folder of base trees; None: each node takes one of its own."""
    scratch: Path
    """A folder on a local disk of the node, where each attempt makes one of its own."""
    sandbox: SandboxConfig
    scaffold: str
    scaffold_settings: ScaffoldSettings
    agent_timeout_s: float
    test_timeout_s: float
    build_timeout_s: float
    cpus: int
    """CPUs that builds and tests of one attempt may use."""
    keep: Keep = field(default_factory=Keep)
    """Which base trees stay on a node."""
    shared: Path | None = None
    """Where nodes share what one of them has built; None: where the cache folder says."""


@dataclass(frozen=True)
class Job:
    """An attempt to be made; `tries` counts from 1."""

    task: Task
    attempt: int
    tries: int = 1
    losses: int = 0
    """How many of the tries before this one were lost with their node."""
    endpoint: Endpoint | None = None
    """Where this try asks its model; None for a scaffold that asks none."""

    @property
    def session(self) -> str:
        """The id by which an engine knows this try."""
        return session_id(self.task.instance_id, attempt=self.attempt, try_=self.tries)

    @property
    def key(self) -> tuple[str, int]:
        return self.task.instance_id, self.attempt


class Attempter:
    """Makes attempts, from any number of threads. `num_ready`: sandboxes kept open for the next ones."""

    def __init__(self, settings: AttemptSettings, *, num_ready: int = 0) -> None:
        self._settings = settings
        self._num_ready = num_ready
        self._ready: ReadySandboxes | None = None
        self._starting = threading.Lock()
        self._scaffold = get_scaffold(settings.scaffold, settings.scaffold_settings)
        self._janitor = Janitor()

    @cached_property
    def _trees(self) -> TreeStore:
        """When first needed: where there is no room now, there may be some for the next attempt."""
        settings = self._settings
        root = choose_trees(settings.trees, settings.sandbox, keep=settings.keep)
        return TreeStore(
            root,
            settings.sandbox,
            settings.repos,
            build_timeout_s=settings.build_timeout_s,
            keep=fit_to(root, settings.keep),
            shelf=choose_shelf(settings.shared, keep=settings.keep),
        )

    def make(self, job: Job) -> Record:
        """Make an attempt. Never raises: what goes wrong is in the record."""
        seconds: dict[str, float] = {}
        files = RunDir(self._settings.run_dir).artifacts(job.task.instance_id, job.attempt)
        record = Record(
            instance_id=job.task.instance_id,
            attempt=job.attempt,
            verdict=Verdict.infrastructure,
            tries=job.tries,
            scaffold=self._settings.scaffold,
            node=socket.gethostname(),
            started=time.time(),
            artifacts=str(files.path.relative_to(self._settings.run_dir)),
        )
        try:
            with stage(seconds, "total"):
                record = self._make(job, record, files, seconds)
        except HpcjetError as error:
            record = replace(record, failure=_failure_class(error), detail=_first_line(error))
        except OSError as error:
            record = replace(record, failure="io", detail=_first_line(error))
        except Exception as error:
            # One attempt's surprise must not take the process with it, in which many others are made.
            _log.exception("attempt %s failed", job.key)
            record = replace(record, failure="internal", detail=f"{type(error).__name__}: {_first_line(error)}")
        return replace(record, seconds=seconds)

    def _make(self, job: Job, record: Record, files: Artifacts, seconds: dict[str, float]) -> Record:
        files.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as used:
            with stage(seconds, "tree"):
                tree = used.enter_context(self._trees.lend(job.task))
            scratch = used.enter_context(self._scratch())
            record, diff = self._let_agent_work(job, record, files, seconds, tree, scratch)
            if diff is None:
                return record
            with stage(seconds, "verify"):
                verification = self._verify(job.task, tree, diff, files, scratch)
        for name in ("rebuild", "tests"):
            if name in verification.seconds:
                seconds[name] = verification.seconds[name]
        return _judged(record, verification)

    def _let_agent_work(
        self, job: Job, record: Record, files: Artifacts, seconds: dict[str, float], tree: PreparedTree, scratch: Path
    ) -> tuple[Record, Diff | None]:
        """The record with what the agent did, and its change; None if there is nothing to judge."""
        with stage(seconds, "open"):
            spec = self._spec(tree, scratch / "agent")
            sandbox = open_sandbox(self._settings.sandbox, spec, ready=self._standing_ready(spec))
        with sandbox:
            with stage(seconds, "agent"):
                outcome = self._run_scaffold(job, sandbox, files)
            seconds["llm"] = round(outcome.llm_s, 4)
            record = replace(
                record, exit_status=outcome.exit_status, steps=outcome.steps, tokens=outcome.tokens,
                failure=outcome.failure, detail=outcome.detail,
            )  # fmt: skip
            if outcome.failure:
                return record, None
            with stage(seconds, "diff"):
                try:
                    diff = take_diff(sandbox, tree, job.task, sandbox_config=self._settings.sandbox)
                except PatchError as error:
                    return replace(record, verdict=error.verdict, failure=error.failure, detail=str(error)), None
                atomic_write(files.patch, diff.patch)
        return replace(record, patch_bytes=len(diff.patch), edited_tests=diff.edited_tests), diff

    def _standing_ready(self, spec: SandboxSpec) -> ReadySandboxes | None:
        """Those like the first one of all attempts: their specs differ in what they show."""
        with self._starting:
            if self._ready is None and self._num_ready:
                folder = self._settings.scratch / "ready"
                self._ready = ReadySandboxes(self._settings.sandbox, spec, folder=folder, num=self._num_ready)
            return self._ready

    def _run_scaffold(self, job: Job, sandbox: Sandbox, files: Artifacts) -> Outcome:
        return self._scaffold.run(
            job.task,
            sandbox,
            endpoint=job.endpoint,
            session=job.session,
            deadline=time.monotonic() + self._settings.agent_timeout_s,
            trajectory=files.trajectory,
        )

    def _verify(self, task: Task, tree: PreparedTree, diff: Diff, files: Artifacts, scratch: Path) -> Verification:
        return verify(
            task,
            tree,
            diff.patch,
            sandbox_config=self._settings.sandbox,
            scratch=scratch / "verify",
            timeout_s=self._settings.test_timeout_s,
            cpus=self._settings.cpus,
            artifacts=files.path,
            keep_scratch=True,
        )

    def _spec(self, tree: PreparedTree, scratch: Path) -> SandboxSpec:
        sandbox = self._settings.sandbox
        return SandboxSpec(
            scratch=scratch,
            view=View(lowers=tree.lowers, at=TESTBED),
            mounts=(base_git(tree),),
            cwd=TESTBED,
            limits=Limits.of(sandbox),
            keep_scratch=True,
        )

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        folder = self._settings.scratch / token_hex(6)
        folder.mkdir(mode=0o711, parents=True)
        folder.chmod(0o711)
        try:
            yield folder
        finally:
            self._janitor.remove(folder)


def _judged(record: Record, verification: Verification) -> Record:
    return replace(
        record,
        verdict=verification.verdict,
        failure=verification.failure,
        detail=verification.detail or record.detail,
        tests=verification.tests,
        edited_tests=tuple(sorted({*record.edited_tests, *verification.edited_tests})),
    )


def _failure_class(error: HpcjetError) -> str:
    kinds = {SandboxError: "sandbox", StoreError: "disk_full", NoRoom: "disk_full", TaskError: "build"}
    return next((name for kind, name in kinds.items() if isinstance(error, kind)), "internal")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:500]
