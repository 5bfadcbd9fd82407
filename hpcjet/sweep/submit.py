"""Bring a sweep on its way: find what is done, write the folder, submit what is left, each array exactly once."""

import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from hpcjet import __version__
from hpcjet.atomic import atomic_write
from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.plain import to_dict
from hpcjet.config.root import SnapshotKind, kind_of
from hpcjet.errors import ConfigError, HpcjetError
from hpcjet.plan import make_plan
from hpcjet.preflight import check_slurm
from hpcjet.rundir import RunDir, new_short_id
from hpcjet.runlock import RunLock
from hpcjet.slurm.limits import site
from hpcjet.slurm.request import check_request
from hpcjet.slurm.sbatch import sbatch
from hpcjet.slurm.submit import interpreter
from hpcjet.start import frozen, keep_provenance
from hpcjet.sweep import local
from hpcjet.sweep.folder import FOLDER, About, Array, SweepDir, earlier, sweeps
from hpcjet.sweep.grouping import Group, groups_of, split
from hpcjet.sweep.planning import SweepPlan
from hpcjet.sweep.points import Point
from hpcjet.sweep.script import render
from hpcjet.sweep.states import GOING_ON, LOCAL, Standing, Where, standings
from hpcjet.sweep.verify import LOST, lost, seen

MAX_ARRAY_SIZE = 1001
"""Slurm's own default, where the controller does not say."""
Tell = Callable[[str], None]


def submit_sweep(plan: SweepPlan, words: Sequence[str], *, tell: Tell) -> SweepDir:
    """Submit the points of a plan that no sweep has done or at work. Raises HpcjetError; then nothing is written.

    A sweep of the very same points goes on in its folder; another one takes over what earlier sweeps have.
    """
    root = plan.first.run.root.expanduser().absolute()
    before = same_sweep(root, plan)
    about, points = described(plan, words)
    groups = groups_of(about, points, [point.index for point in points])
    most = check(groups)
    sweep = before or SweepDir(root / FOLDER / (plan.first.sweep.name or new_name(about.exp)))
    tell(f"sweep {sweep}")
    sweep.make()
    with RunLock(sweep.path):
        about, points = _merged(sweep, about, points) if before else (_with_found(about, points, root, tell), points)
        _write(sweep, about, points, plan)
        _submit(sweep, points, most, tell, rerun=plan.first.sweep.rerun)
    return sweep


def grow_sweep(sweep: SweepDir, plan: SweepPlan, words: Sequence[str], *, new: Sequence[int], tell: Tell) -> None:
    """Submit the `new` points of a plan whose other points the sweep has already. Raises HpcjetError."""
    about, points = described(plan, words)
    most = check(groups_of(about, points, new))
    sweep.make()
    with RunLock(sweep.path):
        found = sweep.read_about().found if sweep.about.exists() else {}
        chosen = [points[index] for index in new]
        more = _with_found(about, chosen, sweep.path.parent.parent, tell, but=sweep).found
        about = replace(about, found={**found, **more})
        _write(sweep, about, points, plan)
        _submit(sweep, points, most, tell, only=frozenset(new))


def resume_sweep(sweep: SweepDir, *, tell: Tell) -> None:
    """Submit again what is missing or failed. Raises HpcjetError."""
    about, points = sweep.read_about(), sweep.read_points()
    most = check(groups_of(about, points, [point.index for point in points]))
    with RunLock(sweep.path):
        _submit(sweep, points, most, tell)


def same_sweep(root: Path, plan: SweepPlan) -> SweepDir | None:
    """The newest sweep of these very points. Raises ConfigError if the name asked for is that of another one."""
    name = plan.first.sweep.name
    for sweep in reversed(sweeps(root)):
        if name and sweep.path.name != name:
            continue
        with suppress(ConfigError):
            if sweep.read_about().key == plan.key:
                return sweep
        if name:
            raise ConfigError(f"sweep.name={name}: {sweep} has other points; choose another name, or remove it")
    return None


def new_name(exp: str) -> str:
    """Not of the form of a run's name, which `hpcjet runs` lists."""
    return f"{exp}-{datetime.now():%Y%m%d-%H%M%S}-{new_short_id()}"


def described(plan: SweepPlan, words: Sequence[str]) -> tuple[About, list[Point]]:
    """What the folder says of a plan. Pure."""
    about = About(
        exp=kind_of("exp", plan.first.exp),
        cluster=kind_of("cluster", plan.first.cluster),
        key=plan.key,
        words=list(words),
        axes=[axis.key for axis in plan.request.axes],
        base=plan.base,
        python=getattr(plan.first.cluster, "python", None) or interpreter(),
        created=time.time(),
        version=__version__,
    )
    return about, plan.points


def check(groups: Sequence[Group]) -> int:
    """Compare the request with what the cluster allows; returns the most elements of one array. Raises HpcjetError."""
    first = groups[0].config
    if not isinstance(first.cluster, SlurmConfig):
        return len(groups[0].indices)
    if shutil.which("sbatch") is None:
        check_slurm(first)
    there = site()
    most = first.sweep.max_array_size or (there and there.max_array_size) or MAX_ARRAY_SIZE
    for group in groups:
        assert isinstance(group.config.cluster, SlurmConfig)
        if there is not None:
            check_request(group.config.cluster, there, array=min(group.num_allocations, most))
    return most


def _merged(sweep: SweepDir, about: About, points: list[Point]) -> tuple[About, list[Point]]:
    """A sweep that is launched again keeps the numbers of its points, and what it took over."""
    before = sweep.read_about()
    numbers = {name: index for index, name in enumerate(sweep.hashes())}
    renumbered = sorted((replace(point, index=numbers[point.hash]) for point in points), key=lambda each: each.index)
    return replace(about, created=before.created, found=before.found), renumbered


def _with_found(about: About, points: Sequence[Point], root: Path, tell: Tell, *, but: SweepDir | None = None) -> About:
    """With the points that earlier sweeps have done, or have at work."""
    if about.base["sweep"]["rerun"]:
        return about
    found: dict[str, str] = {}
    for sweep, shared in earlier(root, {point.hash: point.index for point in points}):
        new = {theirs: mine for theirs, mine in shared.items() if str(mine) not in found}
        if not new or sweep == but:
            continue
        with suppress(HpcjetError, OSError):
            there = standings(sweep, sweep.read_about(), max(new) + 1, now=time.time())
            kept = {mine: there[theirs] for theirs, mine in new.items()}
            kept = {mine: each for mine, each in kept.items() if each.where is Where.done or each.where in GOING_ON}
            found.update({str(mine): str(each.run) for mine, each in kept.items()})
            if kept:
                done = sum(each.where is Where.done for each in kept.values())
                at_work = f", {len(kept) - done} queued or running" if done < len(kept) else ""
                tell(f"found in {sweep}: {done} done{at_work}")
    return replace(about, found=found)


def _write(sweep: SweepDir, about: About, points: list[Point], plan: SweepPlan) -> None:
    for number, tasks in enumerate(plan.tasks):
        from hpcjet.tasks.jsonl import dump_tasks

        dump_tasks(sweep.tasks(number), tasks)
    sweep.write_points(points)
    keep_provenance(RunDir(sweep.path))
    # The last: without it the folder is no sweep yet.
    sweep.write_about(_frozen(sweep, about, plan))


def _frozen(sweep: SweepDir, about: About, plan: SweepPlan) -> About:
    """With snapshot=git or copy: a base config that runs from the copy."""
    config = plan.first
    if config.snapshot is SnapshotKind.none:
        return about
    for axis in plan.request.axes:
        if axis.path in ("exp", "exp.workdir", "cluster.setup") or axis.path.startswith("cluster.env"):
            raise ConfigError(f"{axis.key} cannot be swept with snapshot={config.snapshot.name}: launch each alone")
    config, code = frozen(config, config.run.root.expanduser().absolute())
    if code:
        code.add_user(RunDir(sweep.path))
    return replace(about, base=to_dict(config))


def _submit(
    sweep: SweepDir,
    points: list[Point],
    most: int,
    tell: Tell,
    *,
    rerun: bool = False,
    only: frozenset[int] | None = None,
    again: bool = True,
) -> None:
    """Submit what is missing or failed; with `again` also what Slurm forgets meanwhile."""
    about = sweep.read_about()
    arrays = sweep.arrays()
    for array in arrays:
        if array.is_open:
            tell(f"array {array.number} was not submitted for certain: Slurm is asked for it")
            _hand_over(sweep, about, points, array, tell, again=True)
    found = standings(sweep, about, len(points), now=time.time())
    todo = [index for index, each in enumerate(found) if _is_to_run(each, rerun=rerun)]
    todo = [index for index in todo if only is None or index in only]
    tell(_summary(found, todo))
    new = list(_arrays(groups_of(about, points, todo), first=len(arrays), most=most, rerun=rerun)) if todo else []
    # All of them are recorded before the first is submitted: whoever goes on after us knows what there is to do.
    for array in new:
        sweep.write_array(array)
    handed = []
    try:
        for array in new:
            handed.append(_hand_over(sweep, about, points, array, tell))
    except (HpcjetError, KeyboardInterrupt):
        tell(f"{len(handed)} of {len(new)} arrays are submitted; the rest with: hpcjet sweep {sweep} --resume")
        raise
    if gone := lost(sweep, handed) if again else []:
        for array in gone:
            tell(f"Slurm job {array.job} is not there any more: its points are submitted again")
            sweep.write_array(replace(array, refused=LOST))
        forgotten = frozenset(index for array in gone for index in array.points)
        _submit(sweep, points, most, tell, rerun=rerun, only=forgotten, again=False)


def _is_to_run(each: Standing, *, rerun: bool) -> bool:
    return each.where not in GOING_ON and (rerun or each.where is not Where.done)


def _summary(found: Sequence[Standing], todo: Sequence[int]) -> str:
    chosen = set(todo)
    left = Counter(each.where for index, each in enumerate(found) if index not in chosen)
    again = sum(found[index].where is not Where.missing for index in todo)
    parts = [f"{left[where]} {where.value}" for where in Where if left[where]]
    parts.append(f"{len(todo)} to run" + (f" ({again} again)" if again else ""))
    return f"{len(found)} points: {', '.join(parts)}"


def _arrays(groups: Sequence[Group], *, first: int, most: int, rerun: bool) -> list[Array]:
    """The submissions of these groups; the allocations that may run at a time are shared out among them."""
    here = not isinstance(groups[0].config.cluster, SlurmConfig)
    parts = [
        (group, indices)
        for group in groups
        for indices in split(group, max_array_size=len(group.indices) if here else most)
    ]
    return [
        Array(
            number=first + number,
            token=f"hpcjet-sweep-{secrets.token_hex(6)}",
            points=list(indices),
            pack=1 if here else group.pack,
            side_by_side=1 if here else group.config.sweep.side_by_side,
            parallelism=share_of(group.parallelism, len(parts)),
            rerun=rerun,
        )
        for number, (group, indices) in enumerate(parts)
    ]


def share_of(parallelism: int, arrays: int) -> int:
    """Slurm's limit is for one array: each gets its part, and at least one."""
    return max(1, parallelism // arrays)


def _hand_over(
    sweep: SweepDir, about: About, points: list[Point], array: Array, tell: Tell, *, again: bool = False
) -> Array:
    """Submit an array, and record that it is. Raises HpcjetError; it is open then, or refused if Slurm said so."""
    now = time.time()
    if about.cluster == LOCAL:
        pid = (local.find(sweep, array) if again else None) or local.start(sweep, array, python=about.python)
        array = replace(array, job=LOCAL, pid=pid, submitted=now)
        sweep.write_array(array)
        at_once = f", {array.parallelism} at a time" if array.parallelism > 1 else ", one after the other"
        tell(f"process {pid}: {len(array.points)} points{at_once}")
        return array
    if job := seen(sweep, array) if again else None:
        array = replace(array, job=job, submitted=now)
        sweep.write_array(array)
        return array
    (group,) = groups_of(about, points, array.points)
    assert isinstance(group.config.cluster, SlurmConfig)
    run = sweep.run(array.points[0])
    plan = make_plan(group.config, run_dir=run, python=about.python)
    script = sweep.script(array.number)
    atomic_write(script, render(plan, group.config.cluster, sweep=sweep, array=array))
    try:
        job = sbatch(script, token=array.token, look_first=again).key
    except ConfigError as error:
        # Slurm will not take it as it is: its points are free for another submission.
        sweep.write_array(replace(array, refused=str(error)))
        raise
    array = replace(array, job=job, submitted=now)
    sweep.write_array(array)
    each = f" of up to {array.pack} points" if array.pack > 1 else ""
    tell(f"Slurm job {job}: {array.num_elements} elements{each}, at most {array.parallelism} at a time")
    return array
