"""The seam between kinds of sandbox and what they have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hpcjet.sandbox.cgroup import Delegation
from hpcjet.sandbox.identity import Identity
from hpcjet.sandbox.options import Layout
from hpcjet.sandbox.spec import SandboxSpec

Give = Callable[[bytes], int]
"""Puts bytes into a file without a name; the descriptor by which the started program finds them.

By descriptor: an argument list is readable for every user of the node, and variables may be secrets.
"""


@dataclass(frozen=True)
class Node:
    """What all sandboxes of one configuration share on this node."""

    who: Identity
    etc: Path
    """The shared /etc, with the command server in it."""
    shell: Path
    """The bash of the commands."""
    server: tuple[str, ...]
    """The command line of the command server, inside."""
    python: Path
    """An interpreter of the host that the sandbox user can run."""
    seccomp: bool = True
    cgroup: Delegation | None = None
    """Where sandboxes get cgroups of their own; None: the watchdog alone holds their limits."""
    nproc: bool = True
    """Whether the kernel counts RLIMIT_NPROC per user namespace, and so per sandbox (Linux 5.14)."""


@dataclass(frozen=True)
class Start:
    """The program that opens a sandbox: it runs the command server with this process's pipes."""

    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    lifeline: bool = False
    """Whether `{lifeline}` in argv stands for a descriptor whose end tells the program that we are gone."""


class Backend(Protocol):
    """One kind of sandbox, ready for use on this node."""

    @property
    def kind(self) -> str: ...

    @property
    def node(self) -> Node: ...

    @property
    def overlay(self) -> bool:
        """Whether views are overlays; else each sandbox gets a copy."""
        ...

    @property
    def fixed_paths(self) -> bool:
        """Whether commands find views and mounts at their own paths."""
        ...

    def start(self, spec: SandboxSpec, layout: Layout, arguments: list[str], give: Give) -> Start:
        """How the command server is started with `arguments`. Raises SandboxError for what this kind cannot do."""
        ...

    def where(self, path: str, spec: SandboxSpec, layout: Layout) -> str:
        """Where commands find a path of the view, of a mount, of the pipes (options.IO), of /tmp or home."""
        ...
