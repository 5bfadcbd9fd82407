"""Hydra's other sweepers, such as Optuna's: they choose the points, and are told the objective of each.

Such a sweeper hands a batch of points to a launcher of Hydra's, and must have their results before it chooses the next
ones. So this launcher submits the batch, and waits. It is made known to Hydra here, not as an installed plugin: every
Hydra program of the user's would load that at its start.
"""

import contextlib
import importlib.util
import logging
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from hpcjet.config.compose import compose, errors_explained, parse
from hpcjet.config.files import search_path
from hpcjet.config.root import LaunchConfig, register
from hpcjet.errors import EXIT_OK, ConfigError, WorkloadError
from hpcjet.paths import conf_dir
from hpcjet.preflight import become_lab_user, find_lab
from hpcjet.sweep.axes import Axis, Request, Value
from hpcjet.sweep.folder import FOLDER, SweepDir
from hpcjet.sweep.follow import await_end
from hpcjet.sweep.planning import Planner, refuse_inside_a_job
from hpcjet.sweep.results import results
from hpcjet.sweep.states import Standing, Where
from hpcjet.sweep.submit import grow_sweep, new_name

HYDRAS = ("hydra/sweeper=", "hydra.sweeper.", "hydra/sweeper/")
NAMESPACE = "hydra_plugins.hpcjet"
"""Hydra takes launchers from modules of this name only; the class below says that it is from there."""


def run_sweeper(name: str, words: Sequence[str]) -> int:
    """Let a sweeper of Hydra's choose points until it has enough. Raises HpcjetError."""
    own = [word for word in words if _is_hydras(word)]
    rest = [word for word in words if not _is_hydras(word)]
    overrides = parse(rest)
    fixed = [Value(word, each) for word, each in zip(rest, overrides, strict=True) if not each.is_sweep_override()]
    swept = [each.get_key_element() for each in overrides if each.is_sweep_override()]
    register()
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        with errors_explained(rest):
            config = _composed(name, [*search_path(), *own, *map(_plus, rest)])
        first = _first(config)
        refuse_inside_a_job(first.cluster)
        find_lab(first)
        become_lab_user(first)
        if not first.sweep.objective:
            raise ConfigError(
                f"hydra/sweeper={name} needs to know what is good: set sweep.objective to a number in the points' "
                "summary.json or result.json, such as sweep.objective=resolved"
            )
        sweep = SweepDir(first.run.root.expanduser().absolute() / FOLDER / _name(first, rest))
        if sweep.about.exists():
            raise ConfigError(f"sweep.name={sweep.path.name} is taken: {sweep}; choose another name")
        sweep.make()
        with open_dict(config):
            config.hydra.sweep.dir = str(sweep)
        batches = Batches(sweep, fixed, swept, words, objective=first.sweep.objective)
        _sweep(config, batches.run, [_plus(word) for word in rest])
    print(f"look at it with: hpcjet sweep {sweep}")
    return EXIT_OK


class Batches:
    """The points that a sweeper asked for so far, all in one sweep."""

    def __init__(
        self, sweep: SweepDir, fixed: Sequence[Value], swept: Sequence[str], words: Sequence[str], *, objective: str
    ) -> None:
        self._sweep, self._words, self._swept = sweep, words, swept
        self._objectives = [each.strip() for each in objective.split(",")]
        self._planner = Planner(Request(tuple(fixed), tuple(Axis(key, ()) for key in swept)))
        self._known = 0

    def run(self, batch: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Submit the points of a batch that are new, wait for all of them, and tell their objectives."""
        console = Console()
        with _hydra_put_aside():
            indices = [self._planner.add(self._chosen(words), compose(words)) for words in batch]
        plan = self._planner.plan
        new = range(self._known, len(plan.points))
        if new:
            console.print(f"sweep {self._sweep}, points {new[0]} to {new[-1]}", highlight=False, soft_wrap=True)
            grow_sweep(self._sweep, plan, self._words, new=new, tell=lambda text: None)
            self._known = len(plan.points)
        found = await_end(self._sweep, console, only=indices)
        return [self._returned(words, found[index]) for words, index in zip(batch, indices, strict=True)]

    def _chosen(self, words: Sequence[str]) -> list[str]:
        """What the sweeper chose, in the order of the axes."""
        by_key = {each.get_key_element(): word for word, each in zip(words, parse(words), strict=True)}
        return [by_key[key] for key in self._swept if key in by_key]

    def _returned(self, words: Sequence[str], each: Standing) -> JobReturn:
        answer = JobReturn(overrides=list(words), status=JobStatus.FAILED)
        if each.where is not Where.done:
            answer.return_value = WorkloadError(f"{each.run} is {each.where.value}: {each.reason}")
            return answer
        values = results(each.run)
        try:
            numbers = [float(values[name]) for name in self._objectives]
        except (KeyError, TypeError, ValueError):
            known = ", ".join(values) or "none"
            answer.return_value = WorkloadError(
                f"sweep.objective={','.join(self._objectives)} is no number among the results of {each.run}: {known}"
            )
            return answer
        answer.status = JobStatus.COMPLETED
        answer.return_value = numbers[0] if len(numbers) == 1 else numbers
        return answer


@contextlib.contextmanager
def _hydra_put_aside() -> Iterator[None]:
    """There is one Hydra at a time, and composing a point makes one of its own."""
    held = GlobalHydra.instance().hydra
    assert held is not None
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().initialize(held)


class HpcjetLauncher(Launcher):
    """What a sweeper of Hydra's gives its batches to."""

    __module__ = NAMESPACE
    work: Callable[[Sequence[Sequence[str]]], Sequence[JobReturn]]

    def setup(self, *, hydra_context: HydraContext, task_function: Any, config: DictConfig) -> None:
        self.work = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        return self.work(job_overrides)


def _composed(name: str, words: Sequence[str]) -> DictConfig:
    """Hydra's config with that of its sweeper; keys that are swept over are not in it yet."""
    node = {"_target_": f"{NAMESPACE}.{HpcjetLauncher.__name__}"}
    ConfigStore.instance().store(group="hydra/launcher", name="hpcjet", node=node)
    try:
        return GlobalHydra.instance().hydra.compose_config(  # type: ignore[union-attr]
            config_name="launch",
            overrides=["hydra/launcher=hpcjet", *words],
            run_mode=RunMode.MULTIRUN,
            with_log_configuration=False,
        )
    except MissingConfigException as error:
        if "sweeper" in (error.missing_cfg_file or ""):
            known = ", ".join(option for option in error.options or [])
            raise ConfigError(
                f"hydra/sweeper={name} is not installed: there are {known}; Optuna's is in the package "
                "hydra-optuna-sweeper"
            ) from None
        raise


def _first(config: DictConfig) -> LaunchConfig:
    """What does not depend on the points: where they run, and how the sweep is made."""
    parts = {name: OmegaConf.to_object(config[name]) for name in ("cluster", "run", "sweep")}
    return LaunchConfig(**parts)  # type: ignore[arg-type]


def _sweep(config: DictConfig, work: Callable[..., Any], arguments: list[str]) -> None:
    loader = GlobalHydra.instance().config_loader()
    plugins = Plugins.instance()
    plugins.register(HpcjetLauncher)
    # Hydra looks it up by its name as well.
    module, parent = types.ModuleType(NAMESPACE), NAMESPACE.partition(".")[0]
    if parent not in sys.modules and importlib.util.find_spec(parent) is None:
        sys.modules.setdefault(parent, types.ModuleType(parent))
    module.HpcjetLauncher = HpcjetLauncher  # type: ignore[attr-defined]
    sys.modules.setdefault(NAMESPACE, module)
    logging.getLogger("hydra_plugins").setLevel(logging.INFO)
    context = HydraContext(config_loader=loader, callbacks=Callbacks(config))
    try:
        sweeper = plugins.instantiate_sweeper(config=config, hydra_context=context, task_function=work)
        sweeper.sweep(arguments=arguments)
    except HydraException as error:
        raise ConfigError(f"the sweeper says: {error}") from None


def _is_hydras(word: str) -> bool:
    return word.lstrip("+~").startswith(HYDRAS)


def _plus(word: str) -> str:
    return f"+{word}" if word.startswith("exp=") else word


def _name(config: LaunchConfig, words: Sequence[str]) -> str:
    """Like that of other sweeps; the experiment is not composed yet."""
    chosen = [word.partition("=")[2] for word in words if word.lstrip("+").startswith("exp=")]
    return config.sweep.name or new_name(chosen[-1] if chosen else "sweep")
