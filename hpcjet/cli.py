"""The `hpcjet` command: doctor, runs, status, logs, cancel, resume, report, tasks, lab."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcjet import __version__, checkup
from hpcjet.errors import EXIT_OK, ConfigError
from hpcjet.launch import run_command
from hpcjet.rundir import RunDir, find_run, runs

if TYPE_CHECKING:
    from rich.console import Console

    from hpcjet.slurm.submission import Submission

ROOT = Path("runs")


def main(argv: Sequence[str] | None = None) -> None:
    """The console script; ends the process with the command's exit code."""
    arguments = parser().parse_args(argv)
    sys.exit(run_command(lambda: int(arguments.func(arguments))))


def parser() -> argparse.ArgumentParser:
    """All commands. Launching is python -m hpcjet.launch."""
    top = argparse.ArgumentParser(
        prog="hpcjet",
        description="Look after runs, tasks and the lab. To start a run: python -m hpcjet.launch --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"hpcjet {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    checkup.register(commands)
    _add(commands, "runs", _runs, "list the runs, newest last", run=False)
    status = _add(commands, "status", _status, "how far a run is, and how long each step of its start took")
    status.add_argument("--follow", action="store_true", help="stay until it ends")
    status.add_argument("--events", action="store_true", help="only the raw events, one JSON object per line")
    _add(commands, "logs", _logs, "the end of each log of a run").add_argument(
        "--lines", type=int, default=20, metavar="N", help="lines of each file (default 20)"
    )
    _add(commands, "cancel", _cancel, "end a run; what is recorded stays")
    resume = _add(commands, "resume", _resume, "do what a run has not recorded yet")
    resume.add_argument("--no-follow", action="store_true", help="submit and return")
    report = _add(commands, "report", _report, "the table of a run, and its report.html")
    report.add_argument("--json", action="store_true", help="figures for scripts")
    _register_others(commands)
    return top


def _add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, func: object, text: str, *,
         run: bool = True) -> argparse.ArgumentParser:  # fmt: skip
    command = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    if run:
        command.add_argument("run", metavar="RUN", help="a path, the end of its name such as the short id, or latest")
    command.add_argument("--root", type=Path, default=ROOT, help="folder of runs (default: runs)")
    command.set_defaults(func=func)
    return command


def _register_others(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from hpcjet.lab import command as lab
    from hpcjet.tasks import command as tasks
    from hpcjet.tasks import validate_command

    tasks.register(commands, more=[validate_command.register])
    lab.register(commands)


def _find(arguments: argparse.Namespace) -> RunDir:
    return find_run(arguments.run, arguments.root)


def _runs(arguments: argparse.Namespace) -> int:
    from hpcjet.cluster.state import read_state

    for run in runs(arguments.root):
        state = read_state(run.state)
        print(f"{run.path.parent.name}/{run.path.name}  {state.phase.value if state else 'not submitted'}")
    return EXIT_OK


def _status(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from hpcjet.follow import follow, status_text
    from hpcjet.outcome import print_outcome
    from hpcjet.preflight import find_lab
    from hpcjet.start import read_submission, stored_config

    run, console = _find(arguments), Console()
    if arguments.events:
        sys.stdout.write(run.events.read_text(errors="replace") if run.events.exists() else "")
        return EXIT_OK
    submission = read_submission(run)
    if submission is None:
        raise ConfigError(f"{run} was never submitted; hpcjet resume {run}")
    find_lab(stored_config(run))
    if arguments.follow:
        code = follow(run, submission, console)
        print_outcome(run, console)
        return code
    print(status_text(run, submission), flush=True)
    _print_timeline(run, submission, console)
    return EXIT_OK


def _print_timeline(run: RunDir, submission: "Submission", console: "Console") -> None:
    from hpcjet.cluster.events import Event, read_events
    from hpcjet.cluster.state import read_state
    from hpcjet.slurm.query import Stage
    from hpcjet.slurm.submission import submission_state
    from hpcjet.start import stored_plan
    from hpcjet.timeline import timeline_lines, timeline_text

    events, state = read_events(run.events), read_state(run.state)
    if not events:
        return
    # Slurm is asked only about a run whose last word is not its last.
    again = events[-1].event == Event.requeued
    stage = Stage.ended if state and state.final and not again else submission_state(submission).stage
    # A job that waits again while its last events are of work lost its nodes without a word.
    waits = again or events[-1].event == Event.submitted
    going_on = stage is not Stage.ended and (stage is not Stage.pending or waits)
    now, num_nodes = time.time(), stored_plan(run).num_nodes
    print()
    if console.is_terminal and not console.options.ascii_only:
        console.print(timeline_text(events, now=now, going_on=going_on, num_nodes=num_nodes), soft_wrap=True)
    else:
        print(*timeline_lines(events, now=now, going_on=going_on, num_nodes=num_nodes), sep="\n")


def _logs(arguments: argparse.Namespace) -> int:
    from hpcjet.cluster.child import tail

    run = _find(arguments)
    files = sorted([*run.path.glob("logs/**/*.log"), *run.submit_folder.glob("*_log.*")], key=_mtime)
    for file in files:
        print(
            f"==> {file} ({time.strftime('%H:%M:%S', time.localtime(_mtime(file)))})\n{tail(file, arguments.lines)}\n"
        )
    if not files:
        print(f"no logs yet in {run}")
    return EXIT_OK


def _mtime(file: Path) -> float:
    return file.stat().st_mtime


def _cancel(arguments: argparse.Namespace) -> int:
    from hpcjet.preflight import find_lab
    from hpcjet.slurm.submission import cancel
    from hpcjet.start import read_submission, stored_config

    run = _find(arguments)
    submission = read_submission(run)
    if submission is None:
        raise ConfigError(f"{run} was never submitted: there is nothing to cancel")
    find_lab(stored_config(run))
    cancel(submission)
    print(f"cancelled; go on with: hpcjet resume {run}")
    return EXIT_OK


def _resume(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from hpcjet.follow import follow
    from hpcjet.outcome import print_outcome
    from hpcjet.start import resume

    run, console = _find(arguments), Console()
    submission = resume(run)
    if submission.cluster == "slurm":
        console.print(f"Slurm job {submission.job_id}", highlight=False)
    if arguments.no_follow:
        return EXIT_OK
    code = follow(run, submission, console)
    print_outcome(run, console)
    return code


def _report(arguments: argparse.Namespace) -> int:
    from hpcjet.swe.report import summarise_run, write_reports

    run = _find(arguments)
    if arguments.json:
        print(json.dumps(summarise_run(run)[0].to_json(), indent=2))
        return EXIT_OK
    from rich.console import Console

    from hpcjet.outcome import print_outcome

    write_reports(run)
    print_outcome(run, Console())
    return EXIT_OK


if __name__ == "__main__":
    main()
