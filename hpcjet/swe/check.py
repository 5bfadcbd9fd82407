"""What can be checked of a request before anything starts: the tasks, the engine's key, the sandbox of this machine."""

import difflib
import os
from dataclasses import replace
from pathlib import Path

from hpcjet.config.check import bad
from hpcjet.config.cluster import LocalConfig
from hpcjet.config.engine import OpenAIConfig, ServedConfig
from hpcjet.config.exp import ScaffoldName, SweConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import ConfigError, SandboxError
from hpcjet.paths import cache_dir
from hpcjet.tasks.jsonl import load_tasks
from hpcjet.tasks.repos import repository, resolve_commit
from hpcjet.tasks.sets import resolve_tasks
from hpcjet.tasks.task import Task


def resolve(config: LaunchConfig) -> tuple[LaunchConfig, list[Task]]:
    """The config with its files found, and the tasks it asks for. Raises ConfigError or TaskError."""
    exp = config.exp
    assert isinstance(exp, SweConfig)
    tasks_file, repos = resolve_tasks(exp.tasks, exp.repos, cache=cache_dir())
    tasks = select(load_tasks(tasks_file), exp, tasks_file)
    trees = exp.trees.absolute() if exp.trees else None  # the nodes find a place
    shared = exp.trees_shared.absolute() if exp.trees_shared else None
    found = replace(exp, tasks=tasks_file.absolute(), repos=repos.absolute(), trees=trees, trees_shared=shared)
    return replace(config, exp=found), tasks


def check(config: LaunchConfig, tasks: list[Task]) -> None:
    """Raises what would fail later on the nodes, as far as it can be seen from here."""
    exp = config.exp
    assert isinstance(exp, SweConfig) and exp.repos is not None
    for repo, commit in {(task.repo, task.base_commit) for task in tasks}:
        resolve_commit(repository(exp.repos, repo), commit)
    if isinstance(config.engine, OpenAIConfig) and exp.wants_engine:
        _check_key(config.engine)
    if isinstance(config.engine, ServedConfig) and exp.scaffold is ScaffoldName.mini:
        check_tool_calls(config.engine)
    if isinstance(config.cluster, LocalConfig):
        check_sandbox(config)


def check_tool_calls(engine: ServedConfig) -> None:
    """Raises ConfigError if the engine would refuse what mini-swe-agent asks it for."""
    if not engine.tool_call_parser:
        raise bad(
            "engine.tool_call_parser",
            None,
            "mini-swe-agent gives its commands as tool calls, and every model family writes them in its own way",
            "name the parser of the model, such as engine.tool_call_parser=hermes (Qwen 2.5 and 3) or qwen3_coder",
        )


def check_sandbox(config: LaunchConfig) -> None:
    """Raises SandboxError if no sandbox can be opened on this machine, ConfigError if sandbox.bwrap is no program."""
    from hpcjet.sandbox import probe

    found = probe(config.sandbox)
    if found.runtime is None:
        asked_for = config.sandbox.bwrap is not None and found.denial == "program"
        raise ConfigError(found.reason) if asked_for else SandboxError(found.reason)
    if not found.fixed_paths:
        raise SandboxError(f"the tasks need sandboxes that show a tree at a path of their own: {found.reason}")


def select(tasks: list[Task], exp: SweConfig, file: Path) -> list[Task]:
    """exp.ids, then exp.limit. Raises ConfigError for an id that is not in the file, and if nothing is left."""
    by_id = {task.instance_id: task for task in tasks}
    for wanted in exp.ids:
        if wanted not in by_id:
            near = difflib.get_close_matches(wanted, by_id, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"exp.ids names {wanted}, which is not among the {len(tasks)} tasks of {file}{hint}")
    chosen = [by_id[wanted] for wanted in dict.fromkeys(exp.ids)] or tasks
    if not chosen:
        raise ConfigError(f"exp.tasks={file} holds no task; see hpcjet tasks list")
    return chosen[: exp.limit] if exp.limit else chosen


def _check_key(engine: OpenAIConfig) -> None:
    if engine.api_key_env and engine.api_key_env not in os.environ:
        raise ConfigError(
            f"engine.api_key_env={engine.api_key_env} is not set in the environment: export it with the key, "
            "or name another variable"
        )
