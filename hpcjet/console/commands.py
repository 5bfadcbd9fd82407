"""The commands of `hpcjet` that look after runs."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcjet.console.completion import SHELLS, run_names, shell_code
from hpcjet.errors import EXIT_OK, ConfigError
from hpcjet.rundir import RunDir, find_run

if TYPE_CHECKING:
    from hpcjet.console.efficiency import Efficiency

ROOT = Path("runs")


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add them to the parser."""
    listed = _add(commands, "runs", _runs, "list the newest runs, the last one at the end", run=False)
    listed.add_argument("-n", type=int, default=20, metavar="N", dest="most", help="how many (default 20; 0: all)")
    listed.add_argument("--state", action="append", default=[], metavar="STATE", help="only these; may be repeated")
    listed.add_argument("--exp", action="append", default=[], metavar="EXP", help="only these; may be repeated")
    status = _add(commands, "status", _status, "how far a run is, and how long each step of its start took")
    status.add_argument("--follow", action="store_true", help="stay until it ends")
    status.add_argument("--events", action="store_true", help="only the raw events, one JSON object per line")
    logs = _add(commands, "logs", _logs, "the end of each log of a run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what is added, until the run ends")
    logs.add_argument("--node", metavar="NAME", help="only of this node")
    logs.add_argument("--group", metavar="NAME", help="only of the worker allocations of this group")
    logs.add_argument("--restart", type=int, metavar="K", help="only of the Kth restart; 0 is the first start")
    logs.add_argument("--lines", type=int, default=20, metavar="N", help="lines of each file (default 20)")
    _add(commands, "cancel", _cancel, "end a run, or a sweep; what is recorded stays")
    resume = _add(commands, "resume", _resume, "do what a run has not recorded yet")
    resume.add_argument("--no-follow", action="store_true", help="submit and return")
    _add(commands, "report", _report, "the table of a run, its report.html, and how well its nodes were used")
    text = "print what a shell needs to complete commands, options and runs"
    completion = commands.add_parser("completion", help=text, description=text.capitalize() + ".")
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(func=_completion)


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    func: object,
    text: str,
    *,
    run: bool = True,
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    if run:
        known = "a path, the start or end of its name such as the short id, or latest"
        word = command.add_argument("run", metavar="RUN", help=known)
        word.completer = run_names  # type: ignore[attr-defined]
    command.add_argument("--root", type=Path, default=ROOT, help="folder of runs (default: runs)")
    command.add_argument("--json", action="store_true", help="for scripts")
    command.set_defaults(func=func)
    return command


def _find(arguments: argparse.Namespace) -> RunDir:
    return find_run(arguments.run, arguments.root)


def _runs(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from hpcjet.console.listing import STATES, as_json, print_rows, rows

    for state in arguments.state:
        if state not in STATES:
            raise ConfigError(f"--state {state} is not known: choose of {', '.join(STATES)}")
    most = None if arguments.most <= 0 else arguments.most
    listed = rows(arguments.root, exps=arguments.exp, states=arguments.state, most=most)
    if arguments.json:
        print(as_json(listed))
    else:
        print_rows(listed, Console(), now=time.time())
    return EXIT_OK


def _status(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from hpcjet.console.status import as_json, print_status, read_status
    from hpcjet.preflight import find_lab
    from hpcjet.start import stored_config

    run = _find(arguments)
    if arguments.events:
        sys.stdout.write(run.events.read_text(errors="replace") if run.events.exists() else "")
        return EXIT_OK
    find_lab(stored_config(run))
    if arguments.follow:
        return _follow(run)
    status = read_status(run)
    if arguments.json:
        print(as_json(status))
    else:
        print_status(status, Console())
    return EXIT_OK


def _follow(run: RunDir) -> int:
    from rich.console import Console

    from hpcjet.follow import follow
    from hpcjet.outcome import print_outcome
    from hpcjet.start import read_submission

    submission, console = read_submission(run), Console()
    if submission is None:
        raise ConfigError(f"{run} was never submitted; hpcjet resume {run}")
    code = follow(run, submission, console)
    print_outcome(run, console)
    return code


def _logs(arguments: argparse.Namespace) -> int:
    from hpcjet.console.allocations import labels
    from hpcjet.console.logs import follow_files, log_files, print_ends

    run = _find(arguments)

    def files() -> list[Path]:
        return log_files(run, node=arguments.node, restart=arguments.restart, group=arguments.group)

    if arguments.json:
        print(json.dumps([str(file) for file in files()], indent=2))
    elif arguments.follow:
        follow_files(files, lambda: _is_over(run))
    elif found := files():
        print_ends(found, arguments.lines, labels=labels(run))
    else:
        print(f"no logs yet in {run}")
    return EXIT_OK


def _is_over(run: RunDir) -> bool:
    from hpcjet.cluster.state import read_state

    state = read_state(run.state)
    return state is not None and state.final and not state.then


def _cancel(arguments: argparse.Namespace) -> int:
    from hpcjet.preflight import find_lab
    from hpcjet.start import cancel_run, read_submission, stored_config
    from hpcjet.sweep.command import cancel_sweep, sweep_of

    if sweep := sweep_of(arguments.run, arguments.root):
        number = cancel_sweep(sweep)
        told = {"sweep": str(sweep), "cancelled": number}
        text = f"cancelled: {number} points were queued or running; go on with: hpcjet sweep {sweep} --resume"
        print(json.dumps(told) if arguments.json else text)
        return EXIT_OK
    run = _find(arguments)
    submission = read_submission(run)
    if submission is None:
        raise ConfigError(f"{run} was never submitted: there is nothing to cancel")
    find_lab(stored_config(run))
    workers = cancel_run(run, submission)
    if arguments.json:
        told = {"run": str(run.path), "cancelled": submission.job_id, "workers": [each.job_id for each in workers]}
        print(json.dumps(told))
    else:
        also = f", with {len(workers)} worker allocations" if workers else ""
        print(f"cancelled{also}; go on with: hpcjet resume {run}")
    return EXIT_OK


def _resume(arguments: argparse.Namespace) -> int:
    from hpcjet.start import resume

    run = _find(arguments)
    submission = resume(run)
    if arguments.json:
        print(json.dumps({"run": str(run.path), "job": submission.job_id}))
        return EXIT_OK
    if submission.cluster == "slurm":
        print(f"Slurm job {submission.job_id}", flush=True)
    return EXIT_OK if arguments.no_follow else _follow(run)


def _report(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from hpcjet.console.efficiency import lines
    from hpcjet.console.use import use_lines
    from hpcjet.outcome import has_report, print_outcome, write_report
    from hpcjet.start import stored_plan

    run = _find(arguments)
    if arguments.json:
        print(json.dumps(_report_facts(run), indent=2))
        return EXIT_OK
    has = has_report(run)
    if has:
        write_report(run)
    print_outcome(run, Console())
    found, used = _efficiency(run), use_lines(run)
    if found:
        of = "head's job" if stored_plan(run).worker_groups else "nodes"
        print(f"\nuse of the {of}", *(f"  {line}" for line in lines(found)), sep="\n")
    if used:
        print("\ntime of the nodes", *(f"  {line}" for line in used), sep="\n")
    if not (found or used or has):
        print(f"{run}: nothing to report beyond hpcjet status")
    return EXIT_OK


def _report_facts(run: RunDir) -> dict[str, object]:
    from dataclasses import asdict

    from hpcjet.console.use import use_facts
    from hpcjet.outcome import outcome_facts

    found = _efficiency(run)
    return {**outcome_facts(run), "efficiency": asdict(found) if found else None, "ledger": use_facts(run)}


def _efficiency(run: RunDir) -> "Efficiency | None":
    from hpcjet.cluster.events import read_events
    from hpcjet.console.efficiency import ask_sacct, efficiency
    from hpcjet.preflight import find_lab
    from hpcjet.start import read_submission, stored_config

    submission = read_submission(run)
    if submission is None or submission.cluster != "slurm":
        return None
    find_lab(stored_config(run))
    answer = ask_sacct(submission.job_id)
    return efficiency(answer, read_events(run.events)) if answer else None


def _completion(arguments: argparse.Namespace) -> int:
    print(shell_code(arguments.shell), end="")
    return EXIT_OK
