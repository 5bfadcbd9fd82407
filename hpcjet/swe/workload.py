"""The workload of exp=swe: what is not recorded yet is attempted, judged and recorded."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcjet.cluster.site import TEMP_VARIABLE, logs_here
from hpcjet.config.exp import SweConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.engine import EngineSite, Serving, build_serving
from hpcjet.engine.keyfile import new_key
from hpcjet.errors import EXIT_OK, EngineError, StoreError
from hpcjet.plan import Plan
from hpcjet.serve.nodes import EngineNodes, serving_grows, serving_hosts
from hpcjet.swe.attempt import AttemptSettings, Job
from hpcjet.swe.dispatch import Dispatcher
from hpcjet.swe.progress import Progress, Told
from hpcjet.swe.prospects import Prospects
from hpcjet.swe.record import Record
from hpcjet.swe.report import write_reports
from hpcjet.swe.scaffold import scaffold_settings
from hpcjet.swe.store import ResultStore, Writer
from hpcjet.swe.usage import MemberUse, Usage, read_usage
from hpcjet.tasks.jsonl import load_tasks
from hpcjet.tasks.room import Keep
from hpcjet.workload import Cluster

_log = logging.getLogger(__name__)


class SweWorkload:
    """Agents at software-engineering tasks. The driver is the only writer of results, so none can be there twice."""

    connects = True

    def __init__(self, plan: Plan, config: LaunchConfig) -> None:
        assert isinstance(config.exp, SweConfig)
        self._plan, self._config, self._exp = plan, config, config.exp
        self._run = plan.run
        self._store = ResultStore(self._run.results)
        self._jobs: list[Job] = []
        self._progress = Progress(self._run.progress)
        self._usage = Usage()
        self._nodes: EngineNodes | None = None
        """With an engine."""

    def prepare(self) -> None:
        """Read what is to be done, and what is done already."""
        tasks = load_tasks(self._run.tasks)
        index = self._store.index()
        for problem in index.problems:
            _log.warning("%s", problem)
        done = index.keys_done(max_tries=self._exp.max_tries)
        planned = [Job(task, attempt) for attempt in range(self._exp.attempts) for task in tasks]
        self._jobs = [job for job in planned if job.key not in done]
        self._progress.total = len(planned)
        for record in index.records():
            if record.key in done:
                self._progress.count(record)
        self._progress.begin()
        self._usage = Usage(_used_before(self._run.usage))
        _log.info("%d attempts to make, %d are recorded", len(self._jobs), len(planned) - len(self._jobs))

    def __enter__(self) -> "SweWorkload":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, cluster: Cluster) -> int:
        """Make the attempts and write the reports."""
        if self._jobs:
            with self._serving(cluster) as serving, self._store.writer(self._plan.run.path.name) as writer:
                self._make(cluster, serving, writer)
        summary = write_reports(self._run)
        _log.info("resolved %d of %d tasks", summary.resolved, summary.tasks)
        return EXIT_OK

    def _make(self, cluster: Cluster, serving: Serving | None, writer: Writer) -> None:
        dispatcher = Dispatcher(
            cluster,
            self._exp,
            self._settings(),
            serving=serving,
            prospects=Prospects.of(
                self._plan, self._exp.group, head=cluster.head, restart=int(os.environ["HPCJET_RESTART"])
            ),
            usage=self._usage,
            keeps=lambda node: self._nodes is not None and not self._nodes.is_free(node.member, node.group),
        )
        told = Told(self._run, dispatcher, self._progress)

        def check() -> None:
            told.write()
            if self._nodes is not None:
                self._nodes.look()
            try:
                if serving is not None:
                    serving.check()
            except EngineError as error:
                raise EngineError(
                    f"{error}; see its log in {self._run.path / 'logs'}, "
                    f"then go on with: hpcjet resume {self._run.path}"
                ) from None

        try:
            for record in dispatcher.run(self._jobs, check=check):
                _record(writer, record)
                self._progress.count(record)
                _log.info("%s #%d: %s %s", record.instance_id, record.attempt, record.verdict.value, record.detail)
        finally:
            told.end()
        for node, isolation in sorted(dispatcher.isolation.items()):
            _log.info("agents on %s were isolated with %s", node, isolation)

    def _settings(self) -> AttemptSettings:
        exp = self._exp
        assert exp.repos is not None
        return AttemptSettings(
            run_dir=self._run.path,
            repos=exp.repos,
            trees=exp.trees,
            scratch=Path(os.environ[TEMP_VARIABLE]),
            sandbox=self._config.sandbox,
            scaffold=exp.scaffold.value,
            scaffold_settings=scaffold_settings(exp, self._config.engine, seed=self._config.seed),
            agent_timeout_s=exp.agent_timeout_s,
            test_timeout_s=exp.test_timeout_s,
            build_timeout_s=exp.build_timeout_s,
            cpus=max(1, round(exp.cpus)),
            shared=exp.trees_shared,
            keep=Keep.of(gb=exp.trees_gb, days=exp.trees_days, free_gb=exp.trees_free_gb),
        )

    @contextmanager
    def _serving(self, cluster: Cluster) -> Iterator[Serving | None]:
        """The engine, up and answering, if the scaffold needs one."""
        if not self._exp.wants_engine:
            yield None
            return
        config = self._config.engine
        site = EngineSite(
            host=cluster.address,
            port=cluster.ports["engine"],
            folder=Path(os.environ[TEMP_VARIABLE]) / "engine",
            log=logs_here(self._run) / "engine.log",
            api_key=new_key(),
            tasks=self._run.tasks,
        )
        serving = build_serving(
            config, site, self._run, ports=cluster.ports, hosts=serving_hosts(self._plan, cluster.hosts),
            head=cluster.head, grows=serving_grows(self._plan),
        )  # fmt: skip
        try:
            serving.start()
            # Where the dispatcher has worker processes, it is the one that gives nodes back.
            works = self._exp.group
            nodes = EngineNodes(cluster, self._plan, serving, works=lambda group: works in (None, group))
            serving.wait_ready(deadline=time.monotonic() + config.start_timeout_s, awaited=nodes.awaited)
            self._nodes = nodes
            yield serving
        finally:
            serving.stop()


def _record(writer: Writer, record: Record) -> None:
    """Record a result; a full disk gets a little time to be freed. Raises StoreError."""
    for pause_s in (1.0, 5.0, None):
        try:
            writer.add(record)
            return
        except StoreError as error:
            if pause_s is None:
                raise
            _log.warning("%s; trying again in %.0f s", error, pause_s)
            time.sleep(pause_s)


def _used_before(file: Path) -> dict[str, MemberUse]:
    """By earlier starts of this run."""
    try:
        return read_usage(file.read_text())
    except OSError:
        return {}
