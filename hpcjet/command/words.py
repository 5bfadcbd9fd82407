"""The command lines that start the user's program: on the head, as ranks, under torch's launcher. Pure."""

import shlex
from collections.abc import Sequence
from pathlib import Path

TORCH_LAUNCHER = Path(__file__).with_name("torch_launcher.py")
"""A script for a Python that has torch, and perhaps not hpcjet."""

# The step's warning before the time limit is for the node agents; a program that wants it installs a handler.
ON_HEAD = 'trap "" USR2; exec "$@" </dev/null'


def bash(command: str) -> list[str]:
    """The user's command as words."""
    return ["bash", "-c", command]


def on_head(words: Sequence[str]) -> list[str]:
    """Words that run here: without input, and deaf to the signal that would end a program by default."""
    return ["bash", "-c", ON_HEAD, "bash", *words]


def rank(words: Sequence[str], *, interpreter: str) -> list[str]:
    """Words that prepare one rank on its node and become the program."""
    return [interpreter, "-m", "hpcjet.command.rank", "--", *words]


def mpiexec(words: Sequence[str], *, program: str, ranks: int) -> list[str]:
    """Ranks on this machine alone, by the launcher of the MPI that is installed."""
    return [program, "-n", str(ranks), *words]


def torchrun(command: str, *, python: str, nodes: int, procs: int, address: str, port: int) -> list[str]:
    """torch's launcher on one node. Its rank among the nodes is Slurm's; on one machine there is one."""
    fixed = [
        python, str(TORCH_LAUNCHER), f"--nnodes={nodes}", f"--nproc-per-node={procs}", "--rdzv-backend=static",
        f"--master-addr={address}", f"--master-port={port}",
    ]  # fmt: skip
    program = shlex.join(["--no-python", *bash(command)])
    # Both variables are read on the node, by its shell.
    return bash(f'exec {shlex.join(fixed)} --node-rank="${{SLURM_NODEID:-0}}" {program}')
