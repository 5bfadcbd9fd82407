"""Kind process: Landlock, seccomp and resource limits, for nodes where user namespaces are off."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import SandboxError
from hpcjet.sandbox.backend import Give, Node, Start
from hpcjet.sandbox.contained import contained
from hpcjet.sandbox.etc import HOME
from hpcjet.sandbox.options import IO, SYSTEM, Layout, environment
from hpcjet.sandbox.rules import seccomp_filter
from hpcjet.sandbox.spec import Network, SandboxSpec

DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
"""Not pts: the user's other terminals are there. openpty(3) makes new ones without it (TIOCGPTPEER)."""


@dataclass(frozen=True)
class ProcessBackend:
    """See hpcjet.sandbox.backend.Backend. Views are copies, and stand in the scratch folder."""

    node: Node
    landlock: int
    """The version of Landlock that the kernel has; 0: none, and files are only guarded by their modes."""
    kind: str = "process"
    overlay: bool = False
    fixed_paths: bool = False

    def start(self, spec: SandboxSpec, layout: Layout, arguments: list[str], give: Give) -> Start:
        if spec.network is Network.engine:
            raise SandboxError(
                "network=engine needs a network namespace, which a sandbox of kind process has not: use network=host "
                "there, or a node where sandbox.kind=bwrap works"
            )
        home, tmp = str(layout.home), str(layout.tmp)
        shell, *rest = self.node.server
        plan = {
            "kind": self.kind,
            "env": {**environment(spec), "HOME": home, "TMPDIR": tmp, **spec.env},
            "argv": [shell, *rest, *arguments],
            "seccomp": seccomp_filter(spec.network, own_namespaces=False).hex() if self.node.seccomp else "",
            "landlock": self.landlock,
            "network": spec.network is Network.host,
            **_files(spec, layout),
        }
        return contained(plan, self.node, give)

    def where(self, path: str, spec: SandboxSpec, layout: Layout) -> str:
        return translate(path, _places(spec, layout))


def translate(path: str, places: Mapping[str, str]) -> str:
    """`path` with the longest fitting folder of `places` exchanged for its value."""
    for folder in sorted(places, key=len, reverse=True):
        if path == folder or path.startswith(f"{folder.rstrip('/')}/"):
            return places[folder] + path[len(folder.rstrip("/")) :]
    return path


def _places(spec: SandboxSpec, layout: Layout) -> dict[str, str]:
    places = {IO: str(layout.io), "/tmp": str(layout.tmp), HOME: str(layout.home)}
    places |= {mount.target: str(mount.source) for mount in spec.mounts}
    if spec.view is not None:
        places[spec.view.at] = str(layout.upper)
    return places


def _files(spec: SandboxSpec, layout: Layout) -> dict[str, list[str]]:
    """What Landlock lets commands read and execute, and what they may write too."""
    mounts = {writable: [str(m.source) for m in spec.mounts if m.writable is writable] for writable in (True, False)}
    devices = [f"/dev/{name}" for name in DEVICES]
    view = [str(layout.upper)] if spec.view is not None else []
    return {
        "read": [
            *(folder for folder in SYSTEM if Path(folder).exists()),
            "/etc",
            "/proc",
            str(layout.etc),
            *mounts[False],
        ],
        "write": [str(layout.tmp), str(layout.home), *view, *mounts[True]],
        "pipes": [str(layout.io), *devices],
    }
