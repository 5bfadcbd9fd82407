"""Kind bwrap: bubblewrap."""

import os
from dataclasses import dataclass
from pathlib import Path

from hpcjet.sandbox.backend import Give, Node, Start
from hpcjet.sandbox.options import SYSTEM, Features, Layout, render_options
from hpcjet.sandbox.rules import seccomp_filter
from hpcjet.sandbox.spec import SandboxSpec


@dataclass(frozen=True)
class BwrapBackend:
    """See hpcjet.sandbox.backend.Backend."""

    node: Node
    bwrap: Path
    features: Features
    kind: str = "bwrap"
    fixed_paths: bool = True

    @property
    def overlay(self) -> bool:
        return self.features.overlay

    def start(self, spec: SandboxSpec, layout: Layout, arguments: list[str], give: Give) -> Start:
        options = render_options(spec, layout, self.features, links=system_links())
        if self.node.seccomp:
            options += ["--seccomp", str(give(seccomp_filter(spec.network, own_namespaces=True)))]
        args = give(b"".join(os.fsencode(option) + b"\0" for option in options))
        return Start([str(self.bwrap), "--args", str(args), "--", *self.node.server, *arguments], env=_environment())

    def where(self, path: str, spec: SandboxSpec, layout: Layout) -> str:
        return path


def _environment() -> dict[str, str]:
    """For bwrap itself, whose library may come from an environment module; the sandbox starts with an empty one."""
    path = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": path} if path else {}


def system_links() -> dict[str, str]:
    """System folders that are symbolic links on this host, such as /bin where /usr is merged."""
    return {folder: str(Path(folder).readlink()) for folder in SYSTEM if Path(folder).is_symlink()}
