"""The `hpcjet` command: doctor, runs, status, logs, scale, cancel, resume, report, swarm, sweep, tasks and more."""

import argparse
import sys
from collections.abc import Sequence

from hpcjet import __version__, checkup
from hpcjet.console import commands as run_commands
from hpcjet.console import scale, swarm
from hpcjet.console.completion import complete
from hpcjet.program import run_command


def main(argv: Sequence[str] | None = None) -> None:
    """The console script; ends the process with the command's exit code."""
    known = parser()
    complete(known)
    arguments = known.parse_args(argv)
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
    run_commands.register(commands)
    scale.register(commands)
    swarm.register(commands)
    _register_others(commands)
    return top


def _register_others(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from hpcjet.engine import command as engine
    from hpcjet.lab import command as lab
    from hpcjet.sandbox import command as sandbox
    from hpcjet.sweep import command as sweep
    from hpcjet.tasks import clean_command, validate_command
    from hpcjet.tasks import command as tasks

    sweep.register(commands)
    tasks.register(commands, more=[validate_command.register, clean_command.register])
    sandbox.register(commands)
    engine.register(commands)
    lab.register(commands)


if __name__ == "__main__":
    main()
