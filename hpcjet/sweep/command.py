"""`hpcjet sweep`: the points of a sweep with their states and results; and what `hpcjet cancel` does to a sweep."""

import argparse
import json
import sys
import time
from pathlib import Path

from hpcjet.errors import EXIT_OK, ConfigError
from hpcjet.sweep.folder import SweepDir, find_sweep, sweeps

ROOT = Path("runs")


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `sweep` to the commands."""
    text = "the points of a sweep, with their states and results"
    command = commands.add_parser("sweep", help=text, description=text.capitalize() + ".")
    command.add_argument("sweep", metavar="SWEEP", nargs="?", default="", help="a path, a part of its name, or last")
    command.add_argument("--list", action="store_true", help="list the sweeps, the newest last")
    command.add_argument("--resume", action="store_true", help="submit again what is missing or failed")
    command.add_argument("--follow", action="store_true", help="stay until it ends: one line for each state")
    command.add_argument("--state", action="append", default=[], metavar="STATE", help="only these; may be repeated")
    command.add_argument("--csv", type=Path, metavar="FILE", help="write all points and results there; - is the output")
    command.add_argument("--json", action="store_true", help="for scripts")
    command.add_argument("--root", type=Path, default=ROOT, help="folder of runs (default: runs)")
    command.set_defaults(func=_sweep)


def _sweep(arguments: argparse.Namespace) -> int:
    if arguments.list:
        return _list(arguments)
    if not arguments.sweep:
        raise ConfigError("hpcjet sweep: which one? Name it, or see hpcjet sweep --list")
    sweep = find_sweep(arguments.sweep, arguments.root)
    _find_cluster(sweep)
    if arguments.resume:
        from hpcjet.sweep.submit import resume_sweep

        _as_its_user(sweep)
        resume_sweep(sweep, tell=print)
        if not arguments.follow:
            return EXIT_OK
    if arguments.follow:
        from rich.console import Console

        from hpcjet.sweep.follow import follow

        return follow(sweep, Console())
    return _show(sweep, arguments)


def _show(sweep: SweepDir, arguments: argparse.Namespace) -> int:
    from hpcjet.sweep.states import Where, counts, counts_text, standings
    from hpcjet.sweep.table import WIDTH, rows, table, to_csv, to_json

    known = [where.value for where in Where]
    for state in arguments.state:
        if state not in known:
            raise ConfigError(f"--state {state} is not known: choose of {', '.join(known)}")
    about, points = sweep.read_about(), sweep.read_points()
    found = standings(sweep, about, len(points), now=time.time())
    tally = counts(found)
    chosen = [each for each in points if not arguments.state or found[each.index].where.value in arguments.state]
    shown = rows(chosen, [found[point.index] for point in chosen])
    if arguments.json:
        states = {where.value: number for where, number in tally.items()}
        print(json.dumps({"sweep": str(sweep), "states": states, "points": [to_json(row) for row in shown]}, indent=1))
    elif arguments.csv:
        _write_csv(arguments.csv, to_csv(about, shown))
    else:
        width = WIDTH if sys.stdout.isatty() else None
        print(f"{sweep}\n{len(points)} points: {counts_text(tally)}\n\n{table(about, shown, width=width)}", end="")
    return EXIT_OK


def _write_csv(file: Path, text: str) -> None:
    if str(file) == "-":
        print(text, end="")
        return
    try:
        file.write_text(text)
    except OSError as error:
        raise ConfigError(f"--csv {file} cannot be written: {error.strerror}; name another file") from None


def _list(arguments: argparse.Namespace) -> int:
    found = []
    for sweep in sweeps(arguments.root):
        try:
            about = sweep.read_about()
        except ConfigError:
            continue
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(about.created))
        found.append(
            {"sweep": sweep.path.name, "created": created, "points": len(sweep.hashes()), "line": " ".join(about.words)}
        )
    if arguments.json:
        print(json.dumps(found, indent=1))
        return EXIT_OK
    for each in found:
        print(f"{each['created']}  {each['points']:>6}  {each['sweep']}  {_line(str(each['line']))}")
    if not found:
        print(f"no sweeps under {arguments.root.absolute()}; start one with python -m hpcjet.launch -m")
    return EXIT_OK


def _line(text: str) -> str:
    return text if len(text) <= 60 or not sys.stdout.isatty() else f"{text[:59]}…"


def cancel_sweep(sweep: SweepDir) -> int:
    """End what is queued or runs of a sweep; returns how many points that were. Raises SubmitError."""
    from hpcjet.slurm.query import cancel_job
    from hpcjet.sweep import local
    from hpcjet.sweep.states import GOING_ON, places_of, standings

    _find_cluster(sweep)
    found = standings(sweep, sweep.read_about(), len(sweep.hashes()), now=time.time())
    going_on = [index for index, each in enumerate(found) if each.where in GOING_ON]
    places = places_of(sweep.arrays())
    arrays = {places[index].array.number: places[index].array for index in going_on if index in places}
    for array in arrays.values():
        if array.pid:
            local.cancel(array.pid)
        elif array.job:
            cancel_job(array.job)
    return len(going_on)


def sweep_of(text: str, root: Path) -> SweepDir | None:
    """The sweep that a word names, if it is not the word for the latest run."""
    if text in ("", "last", "latest"):
        return None
    try:
        return find_sweep(text, root)
    except ConfigError:
        return None


def _find_cluster(sweep: SweepDir) -> None:
    """For cluster=lab: Slurm's commands are pointed to the lab."""
    from hpcjet.config.plain import from_dict
    from hpcjet.preflight import find_lab

    about = sweep.read_about()
    if about.cluster == "lab":
        find_lab(from_dict(about.base))


def _as_its_user(sweep: SweepDir) -> None:
    """In the lab jobs belong to its ordinary user, whoever resumes them."""
    from hpcjet.config.plain import from_dict
    from hpcjet.preflight import become_lab_user

    about = sweep.read_about()
    if about.cluster == "lab":
        become_lab_user(from_dict(about.base))
