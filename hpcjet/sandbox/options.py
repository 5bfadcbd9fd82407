"""The options of bubblewrap for one sandbox: pure text."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hpcjet.sandbox.etc import HOME, HOST_NAMES, HOSTNAME
from hpcjet.sandbox.spec import Network, SandboxSpec

IO = "/run/hpcjet"
"""Where a sandbox finds the pipes of its commands."""
SERVER_SHELL = "/etc/hpcjet/bash"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/lib32", "/libx32", "/sbin", "/opt")
SHM_SHARE = 0.5
"""Part of the memory limit that may lie in /dev/shm."""


@dataclass(frozen=True)
class Layout:
    """The folders of one sandbox on the host."""

    scratch: Path
    etc: Path

    @cached_property
    def io(self) -> Path:
        return self.scratch / "io"

    @cached_property
    def tmp(self) -> Path:
        return self.scratch / "tmp"

    @cached_property
    def home(self) -> Path:
        return self.scratch / "home"

    @cached_property
    def upper(self) -> Path:
        return self.scratch / "upper"

    @cached_property
    def work(self) -> Path:
        return self.scratch / "work"

    @cached_property
    def root(self) -> Path:
        """Where a sandbox without bubblewrap builds its file system; on the host it stays an empty folder."""
        return self.scratch / "root"


@dataclass(frozen=True)
class Features:
    """What the bubblewrap program and this node can do."""

    overlay: bool
    tmpfs_size: bool
    disable_userns: bool
    nproc: bool
    """Whether the kernel counts RLIMIT_NPROC per user namespace, and so per sandbox (Linux 5.14)."""


def render_options(spec: SandboxSpec, layout: Layout, features: Features, *, links: Mapping[str, str]) -> list[str]:
    """The options for bubblewrap's --args. `links`: system folders that are symbolic links on the host."""
    return [
        *("--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", HOSTNAME),
        *(("--unshare-user", "--disable-userns") if features.disable_userns else ()),
        *(("--share-net",) if spec.network is Network.host else ()),
        *_environment(spec),
        *_system(links),
        *("--ro-bind", str(layout.etc), "/etc", *_names(spec, layout), "--ro-bind", str(layout.io), IO),
        *("--proc", "/proc", "--dev", "/dev", *_shm(spec, features), "--remount-ro", "/dev"),
        *("--bind", str(layout.tmp), "/tmp", "--bind", str(layout.home), HOME, "--symlink", "../tmp", "/var/tmp"),
        *_view(spec, layout, features),
        *_mounts(spec),
        # Last: mount points are made in it before. Without it the root is memory that a sandbox could fill.
        *("--remount-ro", "/", "--chdir", "/"),
    ]


def environment(spec: SandboxSpec) -> dict[str, str]:
    """The variables that commands see."""
    fixed = {"PATH": PATH, "HOME": HOME, "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/bash"}
    return {**fixed, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "TERM": "dumb", **_cpus(spec), **spec.env}


def _cpus(spec: SandboxSpec) -> dict[str, str]:
    """For programs that do not ask which CPUs they may use, but how many the machine has."""
    num = spec.limits.cpus
    if num is None:
        return {}
    names = ("PYTHON_CPU_COUNT", "OMP_NUM_THREADS", "CMAKE_BUILD_PARALLEL_LEVEL", "CTEST_PARALLEL_LEVEL")
    return {**dict.fromkeys(names, str(num)), "MAKEFLAGS": f"-j{num}"}


def _environment(spec: SandboxSpec) -> list[str]:
    settings = [part for name, value in environment(spec).items() for part in ("--setenv", name, value)]
    return ["--clearenv", *settings]


def _names(spec: SandboxSpec, layout: Layout) -> list[str]:
    """With the network of the host: its name servers and host names."""
    if spec.network is not Network.host:
        return []
    files = {"/etc/resolv.conf": "/etc/resolv.conf", "/etc/hosts": "/etc/hosts"}
    files[f"{layout.etc}/{HOST_NAMES}"] = "/etc/nsswitch.conf"
    return [part for source, target in files.items() for part in ("--ro-bind-try", source, target)]


def _system(links: Mapping[str, str]) -> list[str]:
    options: list[str] = []
    for folder in SYSTEM:
        if folder in links:
            options += ["--symlink", links[folder], folder]
        else:
            options += ["--ro-bind-try", folder, folder]
    return options


def _shm(spec: SandboxSpec, features: Features) -> list[str]:
    memory = spec.limits.memory_bytes
    size = ["--size", str(int(memory * SHM_SHARE))] if memory and features.tmpfs_size else []
    return ["--perms", "1777", *size, "--tmpfs", "/dev/shm"]


def _view(spec: SandboxSpec, layout: Layout, features: Features) -> list[str]:
    if spec.view is None:
        return []
    if not features.overlay:
        return ["--bind", str(layout.upper), spec.view.at]
    sources = [part for lower in spec.view.lowers for part in ("--overlay-src", str(lower))]
    return [*sources, "--overlay", str(layout.upper), str(layout.work), spec.view.at]


def _mounts(spec: SandboxSpec) -> list[str]:
    return [
        part
        for mount in spec.mounts
        for part in ("--bind" if mount.writable else "--ro-bind", str(mount.source), mount.target)
    ]
