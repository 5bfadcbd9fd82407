"""What this node offers for isolation: found out once, by opening real sandboxes."""

import dataclasses
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox.bwrap import BwrapSandbox, Runtime
from hpcjet.sandbox.denial import NOEXEC, classify, read_sysctls
from hpcjet.sandbox.etc import is_complete, shared_etc
from hpcjet.sandbox.identity import check_reachable, identity
from hpcjet.sandbox.options import SERVER, SERVER_SHELL, Features
from hpcjet.sandbox.program import find_bwrap, reachable_bwrap
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.sandbox.spec import SandboxSpec, View

log = logging.getLogger(__name__)

OVERLAY_WORKS = "echo new >file && rm -r folder && mkdir folder && test ! -e folder/inner && rm gone && test ! -e gone"
"""Writes, whiteouts and opaque folders: what a file system under the upper layer must be able to keep."""


@dataclass(frozen=True)
class Probe:
    """How sandboxes are made on this node."""

    kind: str
    """bwrap, or none where no sandbox can be opened."""
    bwrap: Path | None = None
    version: str = ""
    overlay: bool = False
    """Whether views are overlays; else each sandbox gets a copy."""
    reason: str = ""
    """Why there is no sandbox, or less than the best, and what to do; empty if all is well."""
    denial: str = ""
    """The kind of refusal, for counting: see hpcjet.sandbox.denial."""
    runtime: Runtime | None = field(default=None, repr=False)


_lock = threading.Lock()
_known: dict[tuple[object, ...], Probe] = {}


def probe(config: SandboxConfig) -> Probe:
    """Find out whether and how sandboxes can be opened, once per process and configuration. Raises no SandboxError."""
    key = (os.getpid(), *dataclasses.astuple(config), str(scratch_base(config)))
    with _lock:
        known = _known.get(key)
        if known is None or (known.runtime and not is_complete(known.runtime.etc)):
            known = _known[key] = _probe(config)
        return known


def scratch_base(config: SandboxConfig) -> Path:
    """The folder on a local disk where scratch folders belong."""
    return config.scratch or Path(os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def _probe(config: SandboxConfig) -> Probe:
    try:
        runtime, base, version = _prepare(config)
    except SandboxError as error:
        return Probe("none", reason=str(error), denial="program")
    reasons: list[str] = []
    for features in _ladder(runtime.features):
        try:
            _try(replace(runtime, features=features), base)
        except (SandboxError, OSError) as error:
            reasons.append(str(error))
            continue
        return Probe(
            "bwrap", runtime.bwrap, version, features.overlay, reason=_less(runtime, features, version, reasons),
            runtime=replace(runtime, features=features),
        )  # fmt: skip
    # The last try asked for the least, so its answer is about the sandbox itself.
    denial = classify(reasons[-1], sysctls=read_sysctls())
    reason = f"no sandbox can be opened on {platform.node()}: {reasons[-1]} ({denial.kind}); {denial.cure}"
    return Probe("none", runtime.bwrap, version, reason=reason, denial=denial.kind)


def _prepare(config: SandboxConfig) -> tuple[Runtime, Path, str]:
    who = identity(config)
    bwrap = reachable_bwrap(find_bwrap(config), who)
    base = scratch_base(config)
    base.mkdir(parents=True, exist_ok=True)
    check_reachable(base, who)
    shell = Path(shutil.which("bash") or "/bin/bash")
    etc = shared_etc(base, who, shell=shell)
    help_text = _ask(bwrap, "--help")
    features = Features(
        overlay="--overlay-src" in help_text,
        tmpfs_size="--size" in help_text,
        disable_userns="--disable-userns" in help_text,
        nproc=_kernel() >= (5, 14),
    )
    # On a noexec file system the copy of bash cannot run; the system's own serves, which commands can look into.
    server_shell = str(shell) if _is_noexec(etc) else SERVER_SHELL
    runtime = Runtime(bwrap, shell, (server_shell, "-p", SERVER), etc, who, features)
    return runtime, base, _ask(bwrap, "--version").strip().removeprefix("bubblewrap ")


def _ladder(best: Features) -> list[Features]:
    """From the most that the program knows to the least that is good enough; the next is tried where one is refused."""
    steps = [best, replace(best, overlay=False), replace(best, disable_userns=False)]
    steps.append(replace(best, overlay=False, disable_userns=False))
    return list(dict.fromkeys(steps))


def _less(runtime: Runtime, features: Features, version: str, reasons: list[str]) -> str:
    """What is missing from the best, and why."""
    less = []
    if not features.overlay:
        why = reasons[0] if reasons else f"bubblewrap {version} has no overlays (0.11 and newer have)"
        less.append(f"each sandbox gets a copy of its tree instead of an overlay: {why}")
    elif reasons:
        less.append(reasons[0])
    if _is_noexec(runtime.etc):
        less.append(f"programs that are built in a sandbox cannot run: {runtime.etc.parent} is noexec; {NOEXEC.cure}")
    return "; ".join(less)


def _is_noexec(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def _try(runtime: Runtime, base: Path) -> None:
    """Open a sandbox with all that a real one has. Raises SandboxError if anything does not work."""
    folder = Path(tempfile.mkdtemp(dir=base, prefix="hpcjet-probe-"))
    try:
        folder.chmod(0o711 if runtime.who.switch else stat.S_IRWXU)
        lower = folder / "lower"
        for path in (lower, lower / "folder", lower / "folder/inner", lower / "file", lower / "gone"):
            path.mkdir() if path in (lower, lower / "folder") else path.touch()
            runtime.who.own(path)
        spec = SandboxSpec(scratch=folder / "scratch", view=View(lowers=(lower,), at="/probe"), cwd="/probe")
        with BwrapSandbox(runtime, spec) as sandbox:
            done = sandbox.run(OVERLAY_WORKS, timeout_s=30)
        if done.returncode != 0:
            raise SandboxError(f"a view on {base} does not work: {done.output.decode(errors='replace').strip()}")
    finally:
        remove_tree(folder)


def _ask(bwrap: Path, option: str) -> str:
    try:
        done = subprocess.run(
            [bwrap, option], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"{bwrap} {option} cannot be run: {error}; set sandbox.bwrap to another one") from error
    return done.stdout + done.stderr


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)
