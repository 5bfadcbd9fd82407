"""Kind apptainer: Apptainer or Singularity, with an image or with the node's own system.

Rendered after the manual of Apptainer 1.x; not tried on a machine that has it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import SandboxError
from hpcjet.sandbox.backend import Give, Node, Start
from hpcjet.sandbox.bwrap import system_links
from hpcjet.sandbox.etc import HOME, HOSTNAME
from hpcjet.sandbox.options import IO, SYSTEM, Layout, environment
from hpcjet.sandbox.spec import Network, SandboxSpec


@dataclass(frozen=True)
class ApptainerBackend:
    """See hpcjet.sandbox.backend.Backend. Views are copies: Apptainer's overlays are for root."""

    node: Node
    program: Path
    image: Path | None = None
    kind: str = "apptainer"
    overlay: bool = False
    fixed_paths: bool = True

    def start(self, spec: SandboxSpec, layout: Layout, arguments: list[str], give: Give) -> Start:
        binds = _binds(spec, layout, own_system=self.image is None)
        image = self.image
        if image is None:
            image = layout.root
            make_skeleton(image, (target for _, target, _ in binds))
        argv = render_exec(self.program, image, binds, network=spec.network)
        return Start([*argv, *self.node.server, *arguments], env=_environment(environment(spec)))

    def where(self, path: str, spec: SandboxSpec, layout: Layout) -> str:
        return path


def render_exec(program: Path, image: Path, binds: "list[tuple[str, str, bool]]", *, network: Network) -> list[str]:
    """The command line before the command: pure."""
    options = ["--containall", "--cleanenv", "--no-home", "--no-privs", "--no-init", "--pid", "--ipc", "--uts"]
    if network is not Network.host:
        options += ["--net", "--network", "none"]
    for source, target, writable in binds:
        if any(sign in source + target for sign in ":,\n"):
            raise SandboxError(
                f"Apptainer cannot show {source} at {target}: a path there holds no ':', ',' or line feed"
            )
        options += ["--bind", f"{source}:{target}:{'rw' if writable else 'ro'}"]
    return [str(program), "--silent", "exec", *options, "--hostname", HOSTNAME, "--pwd", "/", str(image)]


def _binds(spec: SandboxSpec, layout: Layout, *, own_system: bool) -> "list[tuple[str, str, bool]]":
    """(source, target, writable), in the order of mounting."""
    links = system_links()
    system = [(name, name, False) for name in SYSTEM if name not in links and Path(name).exists()] if own_system else []
    view = [(str(layout.upper), spec.view.at, True)] if spec.view is not None else []
    return [
        *system,
        (str(layout.etc), "/etc", False) if own_system else (f"{layout.etc}/hpcjet", "/etc/hpcjet", False),
        (str(layout.io), IO, False),
        (str(layout.tmp), "/tmp", True),
        (str(layout.home), HOME, True),
        *view,
        *((str(mount.source), mount.target, mount.writable) for mount in spec.mounts),
    ]


def make_skeleton(root: Path, targets: object) -> None:
    """A root folder for the node's own system: links, and places to mount at."""
    for name in ("proc", "sys", "dev", "var", "run", *(str(target).strip("/") for target in targets)):  # type: ignore[attr-defined]
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, target in system_links().items():
        link = root / name.strip("/")
        if not link.is_symlink():
            link.symlink_to(target)


def _environment(inside: Mapping[str, str]) -> dict[str, str]:
    """Variables for inside travel in the environment, which only the own user can read; an argument list all can."""
    own = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    return {
        **own,
        **{f"{name}ENV_{key}": value for key, value in inside.items() for name in ("APPTAINER", "SINGULARITY")},
    }
