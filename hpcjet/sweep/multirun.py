"""python -m hpcjet.launch -m: a sweep. Not by a launcher of Hydra's, whose contract is to wait for every point."""

import shlex
from collections.abc import Mapping, Sequence

from rich.console import Console

from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import EXIT_OK, ConfigError
from hpcjet.plan import Defaults, Plan, cost, make_plan
from hpcjet.preflight import become_lab_user, find_lab, forecast
from hpcjet.sweep.axes import read_request
from hpcjet.sweep.folder import FOLDER, About, Array, SweepDir
from hpcjet.sweep.follow import follow
from hpcjet.sweep.grouping import Group, groups_of, split
from hpcjet.sweep.patching import configs
from hpcjet.sweep.planning import SweepPlan, plan_sweep, refuse_inside_a_job
from hpcjet.sweep.script import render
from hpcjet.sweep.submit import MAX_ARRAY_SIZE, described, share_of, submit_sweep


def multirun(words: Sequence[str]) -> int:
    """Submit a sweep, or show what would be submitted; returns the exit code."""
    if sweeper := _sweeper(words):
        from hpcjet.sweep.sweeper import run_sweeper

        return run_sweeper(sweeper, words)
    request = read_request([word for word in words if word != "hydra/sweeper=basic"])
    _, first = next(configs(request))
    stays = first.follow and any(value.override.key_or_group == "follow" for value in request.fixed)
    if first.dry_run:
        print(dry_run_text(plan_sweep(request), words), end="")
        return EXIT_OK
    if not first.submit:
        raise ConfigError("submit=false is for a single launch: a sweep is submitted, or shown with dry_run=true")
    find_lab(first)
    become_lab_user(first)
    if stays:
        refuse_inside_a_job(first.cluster)
    console = Console()
    sweep = submit_sweep(plan_sweep(request), words, tell=lambda text: _say(console, text))
    if stays:
        return follow(sweep, console)
    _say(console, f"look at it with: hpcjet sweep {shlex.quote(_handle(sweep, first))}")
    return EXIT_OK


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _handle(sweep: SweepDir, config: LaunchConfig) -> str:
    """What names the sweep where the user stands: its name is enough below the usual folder."""
    return sweep.path.name if str(config.run.root) == "runs" else str(sweep)


def _sweeper(words: Sequence[str]) -> str:
    """The sweeper of Hydra's that is asked for; empty for the usual one."""
    for word in words:
        key, _, value = word.partition("=")
        if key.lstrip("+") == "hydra/sweeper" and value != "basic":
            return value
    return ""


def dry_run_text(plan: SweepPlan, words: Sequence[str]) -> str:
    """The whole page: points, arrays, throttle, cost, and each script. Slurm is asked if it is there."""
    about, points = described(plan, words)
    sweep = SweepDir(plan.first.run.root.expanduser().absolute() / FOLDER / (plan.first.sweep.name or "NAME"))
    groups = groups_of(about, points, [point.index for point in points])
    parts = [_points_text(plan), *_pages(groups, about, sweep)]
    again = [word for word in words if not word.startswith("dry_run=")]
    parts.append(f"folder\n  {sweep}")
    parts.append(f"next\n  {shlex.join(['python', '-m', 'hpcjet.launch', '-m', *again])}")
    return "\n\n".join(parts) + "\n"


def _points_text(plan: SweepPlan) -> str:
    lines = [f"points\n  {len(plan.points)}"]
    lines += [f"  {axis.key}: {len(axis.values)} values" for axis in plan.request.axes]
    if plan.twins:
        lines.append(f"  {plan.twins} left out: they compute the same as others")
    return "\n".join(lines)


def _pages(groups: Sequence[Group], about: About, sweep: SweepDir) -> list[str]:
    pages = []
    most = groups[0].config.sweep.max_array_size or MAX_ARRAY_SIZE
    parts = sum(len(list(split(group, max_array_size=most))) for group in groups)
    for group in groups:
        first = group.config
        plan = make_plan(first, run_dir=sweep.run(group.indices[0]), python=about.python)
        if not isinstance(first.cluster, SlurmConfig):
            how = f"{group.parallelism} at a time" if group.parallelism > 1 else "one after the other"
            pages.append(f"on this machine\n  {len(group.indices)} points, {how}")
            continue
        at_once = share_of(group.parallelism, parts)
        arrays = [
            Array(number=number, token="TOKEN", points=list(indices), pack=group.pack, parallelism=at_once)
            for number, indices in enumerate(split(group, max_array_size=most))
        ]
        script = render(plan, first.cluster, sweep=sweep, array=arrays[0])
        said = forecast(first, script)
        sizes = ", ".join(str(array.num_elements) for array in arrays)
        lines = [f"{len(arrays)} with {sizes} elements, at most {at_once} of each at a time"]
        if group.pack > 1:
            lines.append(f"{group.pack} points in each, {first.sweep.side_by_side} at a time")
        if first.cluster.partition and "," in first.cluster.partition:
            lines.append("all elements of an array wait in one of the partitions: Slurm chooses it for the array")
        lines += [f"would not start: {problem}" for problem in said.problems]
        pages.append("job arrays\n" + "\n".join(f"  {line}" for line in lines))
        pages.append(f"cost at most\n  {_cost(plan, said.defaults, group)}")
        pages.append("script\n" + "\n".join(f"  {line}".rstrip() for line in script.splitlines()))
    return pages


def _cost(plan: Plan, defaults: Mapping[str, Defaults], group: Group) -> str:
    most, count = cost(plan, defaults), group.num_allocations
    hours = (("node-hours", most.node_hours), ("CPU-hours", most.cpu_hours), ("GPU-hours", most.gpu_hours))
    return ", ".join(
        f"{unit}: the site's default decides" if each is None else f"{each * count:g} {unit}" for unit, each in hours
    )
