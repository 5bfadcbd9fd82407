"""hpcjet completion: what a shell needs to complete commands, options and runs; by argcomplete."""

import argparse
from pathlib import Path
from typing import Any

from hpcjet.rundir import runs

SHELLS = ("bash", "zsh", "fish")
LINES = {
    "bash": '# for ~/.bashrc:  eval "$(hpcjet completion bash)"\n',
    "zsh": '# for ~/.zshrc:  eval "$(hpcjet completion zsh)"\n',
    "fish": "# for ~/.config/fish/config.fish:  hpcjet completion fish | source\n",
}
MOST = 200
"""Runs that are offered, the newest."""


def shell_code(shell: str) -> str:
    """What the shell reads at its start."""
    from argcomplete.shell_integration import shellcode

    return LINES[shell] + shellcode(["hpcjet"], shell=shell)


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and end; nothing if none asks."""
    import os

    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def run_names(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Names and short ids of the newest runs that begin so."""
    root: Path = getattr(parsed_args, "root", Path("runs"))
    found = [run.path for run in runs(root)[-MOST:]]
    names = ["latest", *(path.name for path in found), *(path.name.rsplit("-", 1)[1] for path in found)]
    return [name for name in names if name.startswith(prefix)]
