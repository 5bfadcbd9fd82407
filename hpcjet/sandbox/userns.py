"""Kind userns: the same sandbox as bubblewrap's, made by a small program of our own (contain.py)."""

from dataclasses import dataclass

from hpcjet.sandbox.backend import Give, Node, Start
from hpcjet.sandbox.bwrap import system_links
from hpcjet.sandbox.contained import contained
from hpcjet.sandbox.options import Features, Layout, render_options
from hpcjet.sandbox.rules import seccomp_filter
from hpcjet.sandbox.spec import SandboxSpec


@dataclass(frozen=True)
class UsernsBackend:
    """See hpcjet.sandbox.backend.Backend."""

    node: Node
    overlay: bool
    kind: str = "userns"
    fixed_paths: bool = True

    def start(self, spec: SandboxSpec, layout: Layout, arguments: list[str], give: Give) -> Start:
        features = Features(overlay=self.overlay, tmpfs_size=True, disable_userns=True, nproc=self.node.nproc)
        plan = {
            "kind": self.kind,
            "root": str(layout.root),
            "options": render_options(spec, layout, features, links=system_links()),
            "argv": [*self.node.server, *arguments],
            "seccomp": seccomp_filter(spec.network, own_namespaces=True).hex() if self.node.seccomp else "",
        }
        return contained(plan, self.node, give)

    def where(self, path: str, spec: SandboxSpec, layout: Layout) -> str:
        return path
