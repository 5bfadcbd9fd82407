"""The figures of a run as a table for the terminal."""

from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hpcjet.shown.duration import count, duration
from hpcjet.swe.summary import Estimate, Summary
from hpcjet.tasks.verdict import Verdict

_PARTS = {"llm": "agent", "rebuild": "verify", "tests": "verify"}


def print_summary(summary: Summary, *, engine: str, run_dir: Path, report: Path | None, console: Console) -> None:
    """Print the figures; paths stand on lines of their own and are never broken, so that they can be copied."""
    console.print(summary_table(summary, engine=engine))
    for name, path in (("run", run_dir), ("report", report)):
        if path is not None:
            console.print(Text.assemble((f"{name:<8}", "dim"), str(path)), soft_wrap=True)


def summary_table(summary: Summary, *, engine: str) -> RenderableType:
    """The outcome at the left, where the time went at the right, within 80 columns; `engine` is for a person."""
    both = Table.grid(padding=(0, 3))
    both.add_row(_figures(summary), _times(summary))
    lines: list[RenderableType] = [Text.assemble(("engine  ", "dim"), engine), Text(), both]
    if summary.infrastructure:
        classes = ", ".join(f"{number} {name}" for name, number in summary.infrastructure.items())
        lines += [Text(), Text(f"infrastructure failures: {classes}", "yellow")]
    return Group(*lines, Text())


def _figures(summary: Summary) -> Table:
    table = _grid()
    table.add_column(style="dim", no_wrap=True)

    def row(name: str, value: int | str, note: str = "", style: str = "") -> None:
        table.add_row(Text(name, style), Text(value if isinstance(value, str) else count(value), style), note)

    open_tasks = summary.tasks - summary.resolved - summary.failed
    row("tasks", summary.tasks, f"{open_tasks} not judged" if open_tasks else "")
    row("  resolved", summary.resolved, _share(summary.resolved, summary.tasks), "bold green")
    row("  failed", summary.failed, _share(summary.failed, summary.tasks), "red" if summary.failed else "")
    row("attempts", summary.attempts, f"{summary.missing} missing" if summary.missing else "")
    for verdict in Verdict:
        if number := summary.verdicts[verdict.value]:
            row(f"  {verdict.value}", number, _share(number, summary.attempts))
    if len(summary.pass_at) > 1:
        for k, estimate in summary.pass_at.items():
            row(f"pass@{k}", f"{estimate.value:.1%}", _error(estimate))
    if summary.tokens:
        row("tokens in", summary.tokens.get("prompt", 0))
        row("tokens out", summary.tokens.get("completion", 0))
    return table


def _times(summary: Summary) -> Table:
    table = _grid()
    table.add_row(Text("stage", "dim"), Text("all attempts", "dim"))
    for stage, seconds in summary.seconds.items():
        name = f"  of which {stage}" if _PARTS.get(stage) in summary.seconds else stage
        table.add_row(name, duration(seconds))
    table.add_row(Text("wall clock", "bold"), Text(duration(summary.wall_s), "bold"))
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _error(estimate: Estimate) -> str:
    return "" if estimate.error is None else f"± {estimate.error:.1%}"
