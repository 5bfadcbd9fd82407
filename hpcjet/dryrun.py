"""What a dry run prints: the node plan, the cost, what Slurm says of it, the script, the next command."""

import shlex
from collections.abc import Mapping, Sequence

from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import ConfigError
from hpcjet.plan import Cost, Defaults, NodeGroup, Plan, group_costs, total
from hpcjet.preflight import Forecast, forecast
from hpcjet.slurm.allocations import job_nodes
from hpcjet.slurm.script import render, render_worker, submitit_command


def dry_run_text(plan: Plan, config: LaunchConfig, overrides: Sequence[str]) -> str:
    """The whole page, for a terminal of 80 columns or a file. Slurm is asked if it is there, and need not be."""
    script, workers = None, {}
    if isinstance(config.cluster, SlurmConfig):
        folder = plan.run.submit_folder
        script = render(plan, config.cluster, folder=folder, command=submitit_command(plan, folder))
        for group in plan.worker_groups:
            workers[group.name] = render_worker(plan, config.cluster, group.name, job_nodes(group))
    said = forecast(config, script) if script else Forecast()
    return page(plan, overrides, script=script, workers=workers, said=said, engine=_engine(config))


def page(
    plan: Plan, overrides: Sequence[str], *, script: str | None, said: Forecast, engine: Sequence[str] = (),
    workers: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """The page from its parts. Pure; `script` is None on this machine; `workers`: group -> script of its jobs."""
    parts = [_nodes(plan), _cost(plan, said.defaults)]
    if engine:
        parts.insert(1, "engine\n" + "\n".join(f"  {line}" for line in engine))
    if said.version:
        parts.append(f"Slurm {said.version} here\n" + "\n".join(f"  {line}" for line in _verdict(said)))
    parts.append(f"run directory\n  {plan.run}")
    if script:
        parts.append(f"script\n{_shown(script)}")
        parts += [f"script of each job of group {name}\n{_shown(text)}" for name, text in (workers or {}).items()]
    else:
        parts.append(f"command on this machine\n  {submitit_command(plan, plan.run.submit_folder)}")
    again = [word for word in overrides if not word.startswith("dry_run=")]
    parts.append(f"next\n  {shlex.join(['python', '-m', 'hpcjet.launch', *again])}")
    return "\n\n".join(parts) + "\n"


def _shown(script: str) -> str:
    return "".join(f"  {line}\n" for line in script.splitlines()).rstrip()


def _engine(config: LaunchConfig) -> list[str]:
    """A dry run may be far from the cluster and its files: what would stop the launch is only told."""
    from hpcjet.start import engine_lines

    try:
        return engine_lines(config)
    except ConfigError as error:
        return [f"would not start: {error}"]


def _verdict(said: Forecast) -> list[str]:
    if said.problems:
        return [f"would not start: {problem}" for problem in said.problems]
    return [f"expected start: {said.expected.text() if said.expected else 'not known'}"]


def _nodes(plan: Plan) -> str:
    rows = [("group", "nodes", "CPUs", "GPUs", "memory", "role")]
    for group in plan.groups:
        memory = "site's default" if group.memory_gb is None else f"{group.memory_gb:g} GiB"
        cpus, gpus = _number(group.cpus), _number(group.gpus)
        rows.append((group.name, str(group.nodes), cpus, gpus, memory, _role(plan, group)))
    limit = "the partition's default" if plan.time_min is None else f"{plan.time_min} min"
    where = "this machine" if plan.cluster == "local" else f"time limit {limit}"
    lines = [f"node plan ({where}; starts with {plan.min_nodes} of {plan.num_nodes})", *_table(rows)]
    return "\n".join([*lines, *_choices(plan)])


def _role(plan: Plan, group: NodeGroup) -> str:
    if group not in plan.worker_groups:
        is_first = group is plan.groups[0]
        return "head and workers" if is_first and group.nodes > 1 else "head" if is_first else "workers"
    size = f"{group.min_nodes} to {group.max_nodes} nodes" if group.elastic else "workers"
    limit = "" if group.time_min is None else f", {group.time_min} min each"
    return f"{size}, in jobs of {job_nodes(group)}{limit}"


def _choices(plan: Plan) -> list[str]:
    """Where one of several partitions is chosen by Slurm."""
    cluster = plan.typed_config().cluster
    requests = cluster.requests if isinstance(cluster, SlurmConfig) and cluster.groups else {}
    return [
        f"  group {name}: for each job Slurm chooses one of the partitions {request.partition}"
        for name, request in requests.items()
        if "," in (request.partition or "")
    ]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  " + "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def _cost(plan: Plan, defaults: Mapping[str, Defaults]) -> str:
    if plan.cluster == "local":
        return "cost at most\n  nothing is charged on this machine"
    costs = group_costs(plan, defaults)
    most = f"  {_hours(total(costs.values()))}"
    if len(costs) == 1:
        return f"cost at most\n{most}"
    return "\n".join(
        ["cost at most", *_table([*((name, _hours(each)) for name, each in costs.items())]), most + " in all"]
    )


def _hours(most: Cost) -> str:
    shown = [
        f"{hours:g} {unit}" if hours is not None else f"{unit}: the site's default decides"
        for hours, unit in (
            (most.node_hours, "node-hours"),
            (most.cpu_hours, "CPU-hours"),
            (most.gpu_hours, "GPU-hours"),
        )
    ]
    return ", ".join(shown)


def _number(count: int | None) -> str:
    return "default" if count is None else str(count)
