"""What this node offers for isolation: found out once, by opening real sandboxes."""

import os
import platform
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.errors import SandboxError
from hpcjet.sandbox.backend import Backend
from hpcjet.sandbox.candidates import Candidate, candidates_of
from hpcjet.sandbox.denial import NOEXEC, classify, read_sysctls
from hpcjet.sandbox.etc import is_complete
from hpcjet.sandbox.held import remove_left, temp_folder
from hpcjet.sandbox.living import Living
from hpcjet.sandbox.orphans import end_abandoned, soon
from hpcjet.sandbox.spec import SandboxSpec, View

OVERLAY_WORKS = "echo new >file && rm -r folder && mkdir folder && test ! -e folder/inner && rm gone && test ! -e gone"
"""Writes, whiteouts and opaque folders: what a file system under the upper layer must be able to keep."""
KINDS = tuple(kind for kind in SandboxKind if kind is not SandboxKind.auto)
"""From the strongest to the weakest."""


@dataclass(frozen=True)
class Tried:
    """One kind of sandbox on this node."""

    kind: str
    works: bool
    why: str = ""
    """Why it does not work, or offers less than it could, and what to do."""
    denial: str = ""
    """The kind of refusal, for counting: see hpcjet.sandbox.denial."""


@dataclass(frozen=True)
class Probe:
    """How sandboxes are made on this node."""

    kind: str
    """bwrap, userns, apptainer, process, or none where no sandbox can be opened."""
    bwrap: Path | None = None
    version: str = ""
    overlay: bool = False
    """Whether views are overlays; else each sandbox gets a copy."""
    reason: str = ""
    """Why there is no sandbox, or less than the best, and what to do; empty if all is well."""
    denial: str = ""
    """The kind of refusal, for counting: see hpcjet.sandbox.denial."""
    seccomp: bool = False
    limits: str = ""
    """What holds the limits: a version of cgroups, or the watchdog."""
    tried: tuple[Tried, ...] = ()
    runtime: Backend | None = field(default=None, repr=False)

    @property
    def fixed_paths(self) -> bool:
        """Whether commands find views and mounts at their own paths: not in sandboxes of kind process."""
        return self.runtime is not None and self.runtime.fixed_paths


_lock = threading.Lock()
_known: dict[tuple[object, ...], Probe] = {}


def probe(config: SandboxConfig) -> Probe:
    """Find out whether and how sandboxes can be opened, once per process and configuration. Raises no SandboxError."""
    key = (os.getpid(), *vars(config).values(), str(scratch_base(config)))
    with _lock:
        known = _known.get(key)
        if known is None or (known.runtime and not is_complete(known.runtime.node.etc)):
            known = _known[key] = _probe(config)
        return known


def probe_all(config: SandboxConfig) -> list[Tried]:
    """Try every kind, whatever the configuration asks for."""
    base = scratch_base(config)
    return [_try_kind(kind, config, base)[0] for kind in KINDS]


def scratch_base(config: SandboxConfig) -> Path:
    """The folder on a local disk where scratch folders belong."""
    return config.scratch or Path(os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def wanted_kinds(config: SandboxConfig) -> tuple[SandboxKind, ...]:
    """The kinds that will do, the best first."""
    if config.kind is not SandboxKind.auto:
        return (config.kind,)
    if config.bwrap is not None:  # whoever names the program wants it
        return (SandboxKind.bwrap,)
    weakest = config.require or KINDS[-1]
    return KINDS[: KINDS.index(weakest) + 1]


def _probe(config: SandboxConfig) -> Probe:
    base = scratch_base(config)
    soon(end_abandoned)
    remove_left(base)
    tried: list[Tried] = []
    for kind in wanted_kinds(config):
        result, found = _try_kind(kind, config, base)
        tried.append(result)
        if found is not None:
            return _found(found, tuple(tried))
    first = tried[0]
    cure = _other_kinds(config, tried)
    return Probe("none", reason=f"{first.why}{cure}", denial=first.denial, tried=tuple(tried))


def _found(found: Candidate, tried: tuple[Tried, ...]) -> Probe:
    backend, node = found.backend, found.backend.node
    *stronger, chosen = tried
    reasons = [chosen.why] if chosen.why else []
    if stronger:
        best = stronger[0]
        reasons.insert(0, f"sandboxes are of kind {chosen.kind}, because {best.kind} does not work: {best.why}")
    return Probe(
        kind=chosen.kind,
        bwrap=found.program if chosen.kind == "bwrap" else None,
        version=found.version,
        overlay=backend.overlay,
        reason="; ".join(reasons),
        denial=stronger[0].denial if stronger else "",
        seccomp=node.seccomp,
        limits=str(node.cgroup or "watchdog"),
        tried=tried,
        runtime=backend,
    )


def _other_kinds(config: SandboxConfig, tried: list[Tried]) -> str:
    """What else was looked at, and whether the request rules out something weaker."""
    others = "".join(f"; {each.kind}: {each.why}" for each in tried[1:])
    if config.require not in (None, SandboxKind.process):
        return f"{others}; or set sandbox.require to a weaker kind"
    return others


def _try_kind(kind: SandboxKind, config: SandboxConfig, base: Path) -> tuple[Tried, Candidate | None]:
    try:
        candidates = candidates_of(kind, config, base)
    except SandboxError as error:
        return Tried(kind.value, works=False, why=str(error), denial="program"), None
    refusals: list[str] = []
    for candidate in candidates:
        try:
            _try(candidate.backend, base)
        except (SandboxError, OSError) as error:
            refusals.append(str(error))
            continue
        return Tried(kind.value, works=True, why=_less(candidates[0], candidate, refusals)), candidate
    # The last try asked for the least, so its answer is about the sandbox itself.
    denial = classify(refusals[-1], sysctls=read_sysctls())
    why = f"no sandbox can be opened on {platform.node()}: {refusals[-1]} ({denial.kind}); {denial.cure}"
    return Tried(kind.value, works=False, why=why, denial=denial.kind), None


def _less(best: Candidate, found: Candidate, refusals: list[str]) -> str:
    """What is missing from the best, and why."""
    less = list(found.less)
    if best.backend.overlay and not found.backend.overlay:
        less.append(f"each sandbox gets a copy of its tree instead of an overlay: {refusals[0]}")
    elif refusals:
        less.append(refusals[0])
    etc = found.backend.node.etc
    if is_noexec(etc):
        less.append(f"programs that are built in a sandbox cannot run: {etc.parent} is noexec; {NOEXEC.cure}")
    return "; ".join(less)


def is_noexec(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


def _try(backend: Backend, base: Path) -> None:
    """Open a sandbox with all that a real one has. Raises SandboxError if anything does not work."""
    who = backend.node.who
    with temp_folder(base, "probe") as folder:
        folder.chmod(0o711 if who.switch else stat.S_IRWXU)
        lower = folder / "lower"
        for path in (lower, lower / "folder", lower / "folder/inner", lower / "file", lower / "gone"):
            path.mkdir() if path in (lower, lower / "folder") else path.touch()
            who.own(path)
        spec = SandboxSpec(scratch=folder / "scratch", view=View(lowers=(lower,), at="/probe"), cwd="/probe")
        with Living(backend, spec) as sandbox:
            done = sandbox.run(OVERLAY_WORKS, timeout_s=30)
        if done.returncode != 0:
            raise SandboxError(f"a view on {base} does not work: {done.output.decode(errors='replace').strip()}")
