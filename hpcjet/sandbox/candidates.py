"""For each kind of sandbox, the ways to have it on this node: from the most to the least that is good enough."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.errors import SandboxError
from hpcjet.sandbox.apptainer import ApptainerBackend
from hpcjet.sandbox.backend import Backend, Node
from hpcjet.sandbox.bwrap import BwrapBackend
from hpcjet.sandbox.cgroup import Delegation, find_delegation, new_group, sweep
from hpcjet.sandbox.etc import shared_etc
from hpcjet.sandbox.identity import Identity, check_reachable, identity
from hpcjet.sandbox.options import SERVER_SHELL, Features
from hpcjet.sandbox.process import ProcessBackend
from hpcjet.sandbox.program import find_apptainer, find_bwrap, reachable_bwrap
from hpcjet.sandbox.seccomp import MACHINES
from hpcjet.sandbox.server_script import SERVER
from hpcjet.sandbox.spec import Limits
from hpcjet.sandbox.userns import UsernsBackend

LANDLOCK_CREATE, LANDLOCK_VERSION = 444, 1
PYTHONS = ("/usr/bin/python3", "/usr/libexec/platform-python", "/usr/local/bin/python3")


@dataclass(frozen=True)
class Candidate:
    """A backend to try."""

    backend: Backend
    program: Path | None = None
    version: str = ""
    less: tuple[str, ...] = ()
    """What it lacks whatever the try says."""


def candidates_of(kind: SandboxKind, config: SandboxConfig, base: Path) -> list[Candidate]:
    """The best first; the next is tried where one is refused. Raises SandboxError if a program is missing."""
    make = {
        SandboxKind.bwrap: _bwrap,
        SandboxKind.userns: _userns,
        SandboxKind.apptainer: _apptainer,
        SandboxKind.process: _process,
    }
    return make[kind](config, base)


def _bwrap(config: SandboxConfig, base: Path) -> list[Candidate]:
    node = _node(config, base)
    bwrap = reachable_bwrap(find_bwrap(config), node.who)
    help_text = _ask(bwrap, "--help")
    best = Features(
        overlay="--overlay-src" in help_text,
        tmpfs_size="--size" in help_text,
        disable_userns="--disable-userns" in help_text,
        nproc=node.nproc,
    )
    version = _ask(bwrap, "--version").strip().removeprefix("bubblewrap ")
    less: tuple[str, ...] = ()
    if not best.overlay:
        text = f"bubblewrap {version} has no overlays (0.11 and newer have)"
        less = (f"each sandbox gets a copy of its tree instead of an overlay: {text}",)
    steps = [best, replace(best, overlay=False), replace(best, disable_userns=False)]
    steps.append(replace(best, overlay=False, disable_userns=False))
    backends = [BwrapBackend(node, bwrap, step) for step in dict.fromkeys(steps)]
    if node.seccomp:
        open_node = replace(node, seccomp=False)
        backends += [replace(backend, node=open_node) for backend in (backends[0], backends[-1])]
    return [Candidate(backend, bwrap, version, less) for backend in dict.fromkeys(backends)]


def _userns(config: SandboxConfig, base: Path) -> list[Candidate]:
    node = _node(config, base)
    return [Candidate(UsernsBackend(node, overlay=overlay), version=platform.release()) for overlay in (True, False)]


def _apptainer(config: SandboxConfig, base: Path) -> list[Candidate]:
    program = find_apptainer(config)
    node = replace(_node(config, base), seccomp=False)
    return [Candidate(ApptainerBackend(node, program, config.image), program, _ask(program, "--version").strip())]


def _process(config: SandboxConfig, base: Path) -> list[Candidate]:
    node = _node(config, base)
    shell, *rest = node.server
    node = replace(node, server=(str(node.etc / "hpcjet/bash") if shell == SERVER_SHELL else shell, *rest))
    version = landlock_version()
    if version == 0 and config.kind is not SandboxKind.process:
        raise SandboxError(
            "this kernel has no Landlock, so commands would see every file of the user: set sandbox.kind=process if "
            "that is good enough, or ask for Linux 5.13 with lsm=landlock"
        )
    return [Candidate(ProcessBackend(node, version), version=f"Landlock {version}", less=_process_lacks(node, version))]


def _process_lacks(node: Node, version: int) -> tuple[str, ...]:
    lacks = ["commands see the processes of the node, and views and mounts at other paths"]
    if version == 0:
        lacks.append("without Landlock they read every file that the user may read")
    elif version < 6:
        lacks.append("they can send signals to other processes of the user (Landlock 6, Linux 6.12, prevents it)")
    if not node.seccomp:
        lacks.append("they have the network of the node")
    return tuple(lacks)


def landlock_version() -> int:
    """The version of Landlock in this kernel; 0 if there is none, or it is switched off."""
    found: int = ctypes.CDLL(None).syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    return max(0, found)


def _node(config: SandboxConfig, base: Path) -> Node:
    who = identity(config)
    base.mkdir(parents=True, exist_ok=True)
    check_reachable(base, who)
    shell = Path(shutil.which("bash") or "/bin/bash")
    etc = shared_etc(base, who, shell=shell)
    # On a noexec file system the copy of bash cannot run; the system's own serves, which commands can look into.
    noexec = bool(os.statvfs(etc).f_flag & os.ST_NOEXEC)
    return Node(
        who=who,
        etc=etc,
        shell=shell,
        server=(str(shell) if noexec else SERVER_SHELL, "-p", "-c", SERVER, str(shell)),
        python=_python(who),
        seccomp=config.seccomp and platform.machine() in MACHINES,
        cgroup=_cgroup(config, who, shell),
        nproc=_kernel() >= (5, 14),
    )


def _python(who: Identity) -> Path:
    """An interpreter that the sandbox user can run: the own one may lie below /root."""
    own = Path(sys.executable)
    if not who.switch:
        return own
    for python in (own, *map(Path, PYTHONS)):
        try:
            check_reachable(python.resolve().parent, who)
        except (SandboxError, OSError):
            continue
        if python.exists():
            return python
    return own


def _cgroup(config: SandboxConfig, who: Identity, shell: Path) -> Delegation | None:
    """A delegation that works: the kernel has more rules than file modes tell."""
    found = find_delegation(config.cgroup)
    why = "it is not writable, or has no controller for its children"
    if found is not None:
        sweep(found)
        waits = [str(shell), "-c", "read -r _"]
        with subprocess.Popen(waits, stdin=subprocess.PIPE, cwd="/", **who.popen()) as waiter:
            group = None
            try:
                group = new_group(found, Limits(), [waiter.pid])
                return found
            except OSError as error:
                why = str(error)
            finally:
                waiter.kill()
                waiter.wait()
                if group is not None:
                    group.remove()
    if config.cgroup is not None:
        raise SandboxError(
            f"sandbox.cgroup={config.cgroup} cannot hold sandboxes: {why}; have it delegated to this user with memory, "
            "pids and cpu in its cgroup.subtree_control, or leave it out"
        )
    return None


def _ask(program: Path, option: str) -> str:
    try:
        done = subprocess.run(
            [program, option], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"{program} {option} cannot be run: {error}; set sandbox.bwrap to another one") from error
    return done.stdout + done.stderr


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)
