"""hpcjet swarm: look at what a training has learned."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from hpcjet.config.check import bad
from hpcjet.console.completion import run_names
from hpcjet.errors import EXIT_OK
from hpcjet.rundir import RunDir, find_run

if TYPE_CHECKING:
    from hpcjet.swarm.watch.play import Played

_EXAMPLES = """examples:
  hpcjet swarm play latest
  hpcjet swarm play latest --agents 1000 --out thousand.html
  hpcjet swarm play latest --checkpoint 50 --terminal
"""


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `hpcjet swarm` to the command line."""
    text = "look at what a training of a swarm has learned"
    form = argparse.RawDescriptionHelpFormatter
    top = commands.add_parser("swarm", help=text, description=f"{text.capitalize()}.", epilog=_EXAMPLES,
                              formatter_class=form)  # fmt: skip
    below = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    text = "let the policy of a checkpoint act without chance, and show it in a page or in the terminal"
    play = below.add_parser("play", help=text, description=f"{text.capitalize()}.", epilog=_EXAMPLES,
                            formatter_class=form)  # fmt: skip
    known = "a path, the start or end of its name such as the short id, or latest"
    play.add_argument("run", metavar="RUN", help=known).completer = run_names  # type: ignore[attr-defined]
    play.add_argument("--root", type=Path, default=Path("runs"), help="folder of runs (default: runs)")
    play.add_argument("--checkpoint", type=int, metavar="N", help="of update N; default: the newest")
    play.add_argument("--agents", type=int, metavar="K", help="other than in training; formations only")
    play.add_argument("--seed", type=int, default=0, metavar="S", help="of the worlds, from 0 on (default 0)")
    where = play.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="FILE.html", help="the page; default: RUN/swarm/play.html")
    where.add_argument("--terminal", action="store_true", help="draw it here instead")
    play.add_argument("--json", action="store_true", help="for scripts")
    play.set_defaults(func=_play)


def _play(arguments: argparse.Namespace) -> int:
    from hpcjet.swarm.watch.files import SwarmFiles
    from hpcjet.swarm.watch.play import play, policies_of, write_page
    from hpcjet.swarm.watch.report import subtitle, training_of

    run = find_run(arguments.run, arguments.root)
    page = None if arguments.terminal else (arguments.out or SwarmFiles.of(run).path / "play.html")
    _check(arguments, page)
    plan, exp = training_of(run)
    policies = policies_of(run, arguments.checkpoint)
    played = play(exp, policies, agents=arguments.agents or 0, seed=arguments.seed, pictures=page is not None)
    if page is not None:
        write_page(page, played, run=run, subtitle=subtitle(exp, seed=plan.typed_config().seed))
    if arguments.json:
        print(json.dumps(_facts(run, played, page)))
    elif page is None:
        _show(played)
    else:
        print(page)
    return EXIT_OK


def _check(arguments: argparse.Namespace, page: Path | None) -> None:
    if arguments.agents is not None and arguments.agents < 1:
        raise bad("--agents", arguments.agents, "it must be at least 1", "raise it, or leave it out")
    if arguments.seed < 0:
        raise bad("--seed", arguments.seed, "it must be 0 or more", "raise it")
    if page is not None and not page.parent.is_dir():
        if arguments.out:
            raise bad("--out", page, "its folder does not exist", "make it, or choose another")
        raise bad(
            "run",
            arguments.run,
            f"it has no folder {page.parent}: it is no training, or has not begun",
            "see hpcjet runs",
        )


def _show(played: "Played") -> None:
    from rich.console import Console

    from hpcjet.swarm.watch.terminal import episode_table, show_formation

    if played.trajectory:
        show_formation(played.trajectory, Console())
    else:
        episode_table(played.episodes, Console())


def _facts(run: RunDir, played: "Played", page: Path | None) -> dict[str, object]:
    held = float(played.trajectory.held[-1].mean()) if played.trajectory else None
    return {
        "run": str(run.path), "version": played.version, "seed": played.seed, "return": played.returns, "held": held,
        "page": None if page is None else str(page),
    }  # fmt: skip
