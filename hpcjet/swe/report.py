"""The report of a run, from what stands in its directory: for the terminal, for scripts, for the browser."""

import json

from hpcjet.atomic import atomic_write
from hpcjet.config.engine import ServedConfig
from hpcjet.config.exp import SweConfig
from hpcjet.config.plain import from_dict
from hpcjet.config.root import LaunchConfig, kind_of
from hpcjet.errors import ConfigError
from hpcjet.ledger import read_ledger
from hpcjet.plan import read_plan
from hpcjet.rundir import RunDir
from hpcjet.swe.html import write_report
from hpcjet.swe.store import Index, ResultStore
from hpcjet.swe.summary import Summary, summarise
from hpcjet.tasks.jsonl import load_tasks
from hpcjet.tasks.task import Task

ORACLE_LABEL = "oracle (plays known solutions, no model)"


def summarise_run(run: RunDir) -> tuple[Summary, str]:
    """The figures so far, and what played the model. Raises ConfigError if this is no run of exp=swe."""
    config, tasks = _read(run)
    return _summary(config, tasks, ResultStore(run.results).index()), engine_label(config)


def write_reports(run: RunDir) -> Summary:
    """Write report.html and summary.json from what is recorded."""
    config, tasks = _read(run)
    index = ResultStore(run.results).index()
    summary = _summary(config, tasks, index)
    by_id = {task.instance_id: task for task in tasks}
    write_report(
        run, summary=summary, records=index.records(), tasks=by_id, engine=engine_label(config), ledger=read_ledger(run)
    )
    atomic_write(run.summary, json.dumps(summary.to_json(), indent=2))
    return summary


def _summary(config: LaunchConfig, tasks: list[Task], index: Index) -> Summary:
    assert isinstance(config.exp, SweConfig)
    return summarise(index.records(), [task.instance_id for task in tasks], config.exp.attempts)


def engine_label(config: LaunchConfig) -> str:
    """What a report calls the engine."""
    exp = config.exp
    if isinstance(exp, SweConfig) and not exp.wants_engine:
        return "none (the reference patch of each task is applied)"
    if isinstance(config.engine, ServedConfig):
        return f"{config.engine.name} ({kind_of('engine', config.engine)})"
    mode = getattr(config.engine, "mode", None)
    if mode is not None:
        return f"{ORACLE_LABEL}, mode={mode.name}"
    return f"{getattr(config.engine, 'model', '?')} at {getattr(config.engine, 'base_url', '?')}"


def _read(run: RunDir) -> tuple[LaunchConfig, list[Task]]:
    if not run.tasks.is_file():
        raise ConfigError(f"{run} is no run of exp=swe: {run.tasks.name} is missing; see hpcjet runs")
    return from_dict(read_plan(run.plan.read_text()).config), load_tasks(run.tasks)
