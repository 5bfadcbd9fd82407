"""How a run came out, on the terminal."""

from rich.console import Console

from hpcjet.config.exp import SweConfig
from hpcjet.rundir import RunDir
from hpcjet.start import stored_config


def print_outcome(run: RunDir, console: Console) -> None:
    """The table of an agent run; the answer of a noop run. Nothing if there is nothing to tell yet."""
    config = stored_config(run)
    if isinstance(config.exp, SweConfig):
        from hpcjet.swe.report import summarise_run
        from hpcjet.swe.table import print_summary

        summary, engine = summarise_run(run)
        report = run.report if run.report.exists() else None
        print_summary(summary, engine=engine, run_dir=run.path, report=report, console=console)
