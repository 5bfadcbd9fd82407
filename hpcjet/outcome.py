"""How a run came out: on the terminal, as facts for scripts, and as a page."""

from typing import Any

from rich.console import Console

from hpcjet.config.exp import SweConfig
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.rundir import RunDir
from hpcjet.start import stored_config


def has_report(run: RunDir) -> bool:
    """Whether runs of its kind have figures and a page of their own."""
    return isinstance(stored_config(run).exp, SweConfig | SwarmConfig)


def write_report(run: RunDir) -> None:
    """Write report.html and summary.json of a run that has them. Raises StoreError."""
    match stored_config(run).exp:
        case SweConfig():
            from hpcjet.swe.report import write_reports

            write_reports(run)
        case SwarmConfig():
            from hpcjet.swarm.watch import report

            report.write_report(run)


def outcome_facts(run: RunDir) -> dict[str, Any]:
    """The figures so far; empty for a kind without."""
    match stored_config(run).exp:
        case SweConfig():
            from hpcjet.swe.report import summarise_run

            return summarise_run(run)[0].to_json()
        case SwarmConfig():
            from hpcjet.swarm.watch import report

            return report.summarise_run(run).to_json()
    return {}


def print_outcome(run: RunDir, console: Console) -> None:
    """The figures of agents or of a training. Nothing if there is nothing to tell yet."""
    config = stored_config(run)
    page = run.report if run.report.exists() else None
    match config.exp:
        case SweConfig():
            from hpcjet.swe.report import summarise_run
            from hpcjet.swe.table import print_summary

            summary, engine = summarise_run(run)
            print_summary(summary, engine=engine, run_dir=run.path, report=page, console=console)
        case SwarmConfig() as exp:
            from hpcjet.swarm.watch import report, table

            table.print_summary(
                report.summarise_run(run), subtitle=report.subtitle(exp, seed=config.seed), run_dir=run.path,
                report=page, console=console,
            )  # fmt: skip
