"""What a sweep will do: its points with their files found and checked, before anything is written."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hpcjet.config.check import bad
from hpcjet.config.cluster import ClusterConfig, LocalConfig, SlurmConfig
from hpcjet.config.command import CommandConfig
from hpcjet.config.exp import SweConfig
from hpcjet.config.group import Form
from hpcjet.config.root import LaunchConfig, kind_of
from hpcjet.errors import ConfigError
from hpcjet.start import resolved
from hpcjet.sweep.axes import Request
from hpcjet.sweep.patching import configs
from hpcjet.sweep.points import Plain, Point, changes, sweep_key

if TYPE_CHECKING:
    from hpcjet.tasks.task import Task


@dataclass
class SweepPlan:
    """The points of a sweep, and what the first of them stands for."""

    request: Request
    first: LaunchConfig
    base: dict[str, Any]
    """The first point's config as plain data; points tell how they differ from it."""
    points: list[Point] = field(default_factory=list)
    configs: list[LaunchConfig] = field(default_factory=list)
    """Of the points; equal parts are the same objects."""
    tasks: "list[list[Task]]" = field(default_factory=list)
    """Lists of tasks; a point names its list by number."""
    twins: int = 0
    """Points left out because another one computes the same."""

    @property
    def key(self) -> str:
        """The same for the same points."""
        return sweep_key([point.hash for point in self.points])


def plan_sweep(request: Request) -> SweepPlan:
    """All points of a request. Raises HpcjetError for the first that is wrong; nothing is written."""
    planner = Planner(request)
    for values, config in configs(request):
        planner.add([value.word for value in values], config)
    return planner.plan


class Planner:
    """Makes a plan of points that come one after the other."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._files, self._plain = _Files(), Plain()
        self._swept = frozenset(axis.path for axis in request.axes if axis.path.startswith("cluster."))
        self._known: dict[str, int] = {}
        self._plan: SweepPlan | None = None

    def add(self, words: Sequence[str], config: LaunchConfig) -> int:
        """Add a point; returns its index, that of an earlier one that computes the same if there is one."""
        config, tasks = self._files.found(config)
        data = self._plain.of(config)
        plan = self._plan = self._plan or SweepPlan(self._request, config, data, tasks=self._files.tasks)
        name = self._plain.hash_of(config, swept=self._swept)
        if name in self._known:
            plan.twins += 1
            return self._known[name]
        self._known[name] = index = len(plan.points)
        plan.points.append(Point(index, name, tuple(words), changes(plan.base, data), tasks))
        plan.configs.append(config)
        return index

    @property
    def plan(self) -> SweepPlan:
        """Raises ConfigError for points that cannot be one sweep."""
        assert self._plan is not None, "there is at least one point"
        _check(self._plan)
        return self._plan


def _check(plan: SweepPlan) -> None:
    """What must be the same for all points of a sweep."""
    seen: dict[int, ClusterConfig] = {id(config.cluster): config.cluster for config in plan.configs}
    kinds = {kind_of("cluster", cluster) for cluster in seen.values()}
    if len(kinds) > 1:
        raise ConfigError(
            f"a sweep runs on one cluster, and this one names {', '.join(sorted(kinds))}: sweep each alone"
        )
    wrong = [axis.key for axis in plan.request.axes if axis.path.split(".")[0] in ("run", "sweep", *NOT_SWEPT)]
    if wrong:
        raise ConfigError(f"{wrong[0]} cannot be swept: it says how the sweep is made, not what a point computes")
    on_slurm = [cluster for cluster in seen.values() if isinstance(cluster, SlurmConfig)]
    if forms := [each.form.name for each in on_slurm if each.form is not Form.job]:
        raise bad(
            "cluster.form", forms[0], "a sweep's points run in the elements of job arrays", "set cluster.form=job"
        )
    side_by_side = plan.first.sweep.side_by_side
    if side_by_side > 1 and any(each.head_nodes > 1 for each in on_slurm):
        raise ConfigError(
            f"sweep.side_by_side={side_by_side} is for allocations of one node: set cluster.nodes=1, or "
            "sweep.side_by_side=1 for one after the other"
        )


NOT_SWEPT = ("dry_run", "submit", "follow", "snapshot")


class _Files:
    """Finds and checks the files that configs name: once for all configs that name the same ones."""

    def __init__(self) -> None:
        self.tasks: list[list[Task]] = []
        self._found: dict[tuple[Any, ...], tuple[dict[str, Any], int]] = {}
        self._exps: dict[tuple[int, int], tuple[Any, Any]] = {}

    def found(self, config: LaunchConfig) -> tuple[LaunchConfig, int]:
        """The config with its files, and the number of its list of tasks, -1 without."""
        key = _named_files(config)
        if key is None:
            return config, -1
        if key not in self._found:
            whole, tasks = resolved(config)
            if tasks is not None:
                self.tasks.append(tasks)
            number = len(self.tasks) - 1 if tasks is not None else -1
            self._found[key] = (_differences(config.exp, whole.exp), number)
        differences, number = self._found[key]
        mark = (id(config.exp), id(differences))
        if mark not in self._exps:
            # The exp is kept, so that its id stays its own.
            self._exps[mark] = (config.exp, replace(config.exp, **differences))
        return replace(config, exp=self._exps[mark][1]), number


def _named_files(config: LaunchConfig) -> tuple[Any, ...] | None:
    """All that finding and checking depends on; None for an experiment without files."""
    exp, cluster = config.exp, config.cluster
    where = (type(exp), type(cluster), tuple(getattr(cluster, "setup", ())), getattr(cluster, "cpus", None))
    if isinstance(exp, CommandConfig):
        return (*where, exp.workdir, exp.python, *_rest(exp, "command"))
    if isinstance(exp, SweConfig):
        engine = (type(config.engine), getattr(config.engine, "api_key_env", None))
        files = (exp.tasks, exp.repos, exp.trees, exp.trees_shared, tuple(exp.ids), exp.limit, exp.scaffold)
        return (*where, *engine, *files, id(config.sandbox) if isinstance(cluster, LocalConfig) else 0)
    return None


def _rest(exp: CommandConfig, *without: str) -> list[Any]:
    return [getattr(exp, each.name) for each in dataclasses.fields(exp) if each.name not in without]


def _differences(before: Any, after: Any) -> dict[str, Any]:
    names = [each.name for each in dataclasses.fields(before)]
    return {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}


def refuse_inside_a_job(cluster: ClusterConfig) -> None:
    """Raise ConfigError where a job would submit a sweep: its own allocation would wait for jobs that wait for it."""
    if isinstance(cluster, SlurmConfig) and "SLURM_JOB_ID" in os.environ:
        raise ConfigError(
            f"this is Slurm job {os.environ['SLURM_JOB_ID']}, and a sweep submits jobs of its own: launch it from a "
            "login node, or run it inside this job with cluster=local"
        )
