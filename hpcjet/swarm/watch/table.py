"""The figures of a training for the terminal."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcjet.swarm.watch.summary import Summary
from hpcjet.swarm.watch.views import figures


def print_summary(summary: Summary, *, subtitle: str, run_dir: Path, report: Path | None, console: Console) -> None:
    """Print the figures; paths stand on lines of their own and are never broken, so that they can be copied."""
    console.print(Text(subtitle), Text())
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for figure in figures(summary):
        table.add_row(Text(figure.value, "bold green" if figure.good else ""), Text(figure.text))
    console.print(table, Text())
    for name, path in (("run", run_dir), ("report", report)):
        if path is not None:
            console.print(Text.assemble((f"{name:<8}", "dim"), str(path)), soft_wrap=True)
