"""The command line of the lab: `hpcjet lab up`, `down`, `crash`, `restart`, `shell`, `status`."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from hpcjet.errors import EXIT_CLUSTER, EXIT_OK, ConfigError, HpcjetError
from hpcjet.lab.lab import Lab
from hpcjet.lab.run import run_as_lab_user
from hpcjet.lab.user import user_environment


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `lab`; each of its commands sets `func`, which takes the arguments and returns the exit code."""
    parser = subparsers.add_parser("lab", help="a real Slurm cluster on this machine, for tests and for trying things")
    add_commands(parser)


def add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    up = commands.add_parser("up", help="start the cluster, or repair it")
    up.add_argument("--nodes", type=int, default=4, help="compute nodes, 1 to 64 (default: %(default)s)")
    up.set_defaults(func=_up)
    down = commands.add_parser("down", help="stop the cluster and remove its namespaces, network and control groups")
    down.add_argument("--purge", action="store_true", help="remove its files and its user as well")
    down.set_defaults(func=_down)
    crash = commands.add_parser("crash", help="cut the power of a node")
    restart = commands.add_parser("restart", help="give a node its power back and wait until Slurm uses it")
    for command, func in ((crash, _crash), (restart, _restart)):
        command.add_argument("node", type=int, help="the node's number, from 1")
        command.set_defaults(func=func)
    shell = commands.add_parser("shell", help="a shell as the lab's user: on the login node, or on a node")
    shell.add_argument("node", type=int, nargs="?", help="the node's number, from 1 (default: the login node)")
    shell.add_argument("--root", action="store_true", help="as root, on a node")
    shell.set_defaults(func=_shell)
    run = commands.add_parser("run", help="a command as the lab's user, with this checkout installed for it")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="such as python -m hpcjet.launch ...")
    run.set_defaults(func=_run)
    status = commands.add_parser("status", help="what is up")
    status.add_argument("--json", action="store_true", help="for scripts")
    status.set_defaults(func=_status)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m hpcjet.lab`, where the `hpcjet` command is not installed."""
    parser = argparse.ArgumentParser(prog="python -m hpcjet.lab")
    add_commands(parser)
    arguments = parser.parse_args(argv)
    try:
        code: int = arguments.func(arguments)
    except HpcjetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return code


def _say(line: str) -> None:
    print(line, flush=True)


def _up(arguments: argparse.Namespace) -> int:
    begin = time.monotonic()
    lab = Lab(report=lambda step: _say(f"  {step}"))
    lab.up(arguments.nodes)
    _say(f"lab is up after {time.monotonic() - begin:.1f} s; try: hpcjet lab shell")
    _say(f"or: export SLURM_CONF={lab.layout.slurm_conf}")
    return EXIT_OK


def _down(arguments: argparse.Namespace) -> int:
    Lab().down(purge=arguments.purge)
    _say("lab is down")
    return EXIT_OK


def _crash(arguments: argparse.Namespace) -> int:
    Lab().crash(arguments.node)
    _say(f"n{arguments.node} has no power")
    return EXIT_OK


def _restart(arguments: argparse.Namespace) -> int:
    Lab().restart(arguments.node)
    _say(f"n{arguments.node} is back")
    return EXIT_OK


def _shell(arguments: argparse.Namespace) -> int:
    """Become the shell, so that the terminal, signals and the exit code are the shell's own."""
    lab = Lab()
    bash = ["bash", "--login"]
    if arguments.node is None:
        command, env = lab.login_command(bash), user_environment(lab.layout, lab.user)
    else:
        # nsenter starts in the root folder.
        command = lab.node_command(
            arguments.node, ["sh", "-c", 'cd && exec "$@"', "sh", *bash], as_user=not arguments.root
        )
        env = lab.node_environment(as_user=not arguments.root)
    os.chdir(lab.layout.home)
    os.execvpe(command[0], command, {**env, "TERM": os.environ.get("TERM", "dumb")})


def _run(arguments: argparse.Namespace) -> int:
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        raise ConfigError("lab run: no command was given; try: hpcjet lab run python -m hpcjet.launch --help")
    run_as_lab_user(words)


def _status(arguments: argparse.Namespace) -> int:
    status = Lab().status()
    if arguments.json:
        print(json.dumps(asdict(status)))
        return EXIT_OK if status.is_up else EXIT_CLUSTER
    if not status.daemons:
        _say("lab is down")
        return EXIT_CLUSTER
    _say("lab is up" if status.is_up else "lab is half up; repair it: hpcjet lab up")
    for name, alive in status.daemons.items():
        _say(f"  {name:10} {'running' if alive else 'gone'}")
    for name, state in status.nodes.items():
        _say(f"  {name:10} {state}")
    return EXIT_OK if status.is_up else EXIT_CLUSTER
