"""What a dry run prints: the node plan, the cost, what Slurm says of it, the script, the next command."""

import shlex
from collections.abc import Sequence

from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import ConfigError
from hpcjet.plan import Defaults, Plan, cost
from hpcjet.preflight import Forecast, forecast
from hpcjet.slurm.script import render, submitit_command


def dry_run_text(plan: Plan, config: LaunchConfig, overrides: Sequence[str]) -> str:
    """The whole page, for a terminal of 80 columns or a file. Slurm is asked if it is there, and need not be."""
    script = None
    if isinstance(config.cluster, SlurmConfig):
        folder = plan.run.submit_folder
        script = render(plan, config.cluster, folder=folder, command=submitit_command(plan, folder))
    said = forecast(config, script) if script else Forecast()
    return page(plan, overrides, script=script, said=said, engine=_engine(config))


def page(
    plan: Plan, overrides: Sequence[str], *, script: str | None, said: Forecast, engine: Sequence[str] = ()
) -> str:
    """The page from its parts. Pure; `script` is None on this machine."""
    parts = [_nodes(plan), _cost(plan, said.defaults)]
    if engine:
        parts.insert(1, "engine\n" + "\n".join(f"  {line}" for line in engine))
    if said.version:
        parts.append(f"Slurm {said.version} here\n" + "\n".join(f"  {line}" for line in _verdict(said)))
    parts.append(f"run directory\n  {plan.run}")
    if script:
        parts.append("script\n" + "".join(f"  {line}\n" for line in script.splitlines()).rstrip())
    else:
        parts.append(f"command on this machine\n  {submitit_command(plan, plan.run.submit_folder)}")
    again = [word for word in overrides if not word.startswith("dry_run=")]
    parts.append(f"next\n  {shlex.join(['python', '-m', 'hpcjet.launch', *again])}")
    return "\n\n".join(parts) + "\n"


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
    for number, group in enumerate(plan.groups):
        memory = "site's default" if group.memory_gb is None else f"{group.memory_gb:g} GiB"
        role = "head and workers" if number == 0 and group.nodes > 1 else "head" if number == 0 else "workers"
        rows.append((group.name, str(group.nodes), _number(group.cpus), _number(group.gpus), memory, role))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  " + "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows]
    limit = "the partition's default" if plan.time_min is None else f"{plan.time_min} min"
    where = "this machine" if plan.cluster == "local" else f"time limit {limit}"
    return f"node plan ({where}; starts with {plan.min_nodes} of {plan.num_nodes})\n" + "\n".join(
        line.rstrip() for line in lines
    )


def _cost(plan: Plan, defaults: Defaults) -> str:
    if plan.cluster == "local":
        return "cost at most\n  nothing is charged on this machine"
    most = cost(plan, defaults)
    shown = [
        f"{hours:g} {unit}" if hours is not None else f"{unit}: the site's default decides"
        for hours, unit in (
            (most.node_hours, "node-hours"),
            (most.cpu_hours, "CPU-hours"),
            (most.gpu_hours, "GPU-hours"),
        )
    ]
    return "cost at most\n  " + ", ".join(shown)


def _number(count: int | None) -> str:
    return "default" if count is None else str(count)
