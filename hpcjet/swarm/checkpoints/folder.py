"""The folder of checkpoints: whole ones under their versions, and nothing else."""

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcjet.atomic import sync_folder
from hpcjet.config.check import bad
from hpcjet.errors import ConfigError
from hpcjet.swarm.checkpoints import tree
from hpcjet.swarm.checkpoints.checkpoint import Checkpoint, Damaged, Form
from hpcjet.swarm.hosts.spec import HostState

FORMAT = 1
MANIFEST, LEARNER, INDEX, HOSTS = "manifest.json", "learner.npz", "index.npz", "hosts"
_NAME = re.compile(r"\d{8}")
_PART = re.compile(r"\.\d{8}\..*\.part")

log = logging.getLogger(__name__)


def versions(folder: Path) -> list[int]:
    """Of the checkpoints that there are, oldest first."""
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if _NAME.fullmatch(name))


def write_checkpoint(folder: Path, made: Checkpoint, *, keep: int) -> Path:
    """Write it, then remove what is older than the newest `keep`. Raises OSError and leaves those that there were."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{made.version:08d}"
    part = folder / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        _write(part, made)
        if target.exists():  # a learner that went back made this version again
            target.rename(folder / f".{target.name}.old.part")
        part.rename(target)
        sync_folder(folder)
    finally:
        for left in [each for each in folder.iterdir() if _PART.fullmatch(each.name)]:
            shutil.rmtree(left, ignore_errors=True)
    for old in versions(folder)[:-keep]:
        shutil.rmtree(folder / f"{old:08d}", ignore_errors=True)
    return target


def newest_checkpoint(folder: Path, form: Form | None = None) -> Checkpoint | None:
    """None if there is none. Those that are damaged are passed over, with a warning.

    Raises ConfigError if the newest one is of another form than `form` or of another format, or if all are damaged.
    """
    found = versions(folder)
    for version in reversed(found):
        path = folder / f"{version:08d}"
        try:
            return read_checkpoint(path, form)
        except Damaged as error:
            log.warning("checkpoint %s is damaged (%s); the one before it is used", path, error)
    if found:
        allowed = f"all {len(found)} checkpoints in it are damaged"
        raise bad("checkpoints", folder, allowed, "move them away to begin anew, or bring a whole one back")
    return None


def read_checkpoint(path: Path, form: Form | None = None) -> Checkpoint:
    """One of them. Raises Damaged; ConfigError for another form or format."""
    manifest = _manifest(path)
    with _damage():
        held = tree.decoded(manifest["form"], _no_array)
    if form is not None:
        form.check(held, str(path))
    with _damage():
        for name, digest in manifest["files"].items():
            if _digest(path / name) != digest:
                raise Damaged(f"{name} is not what was written")
        index = path / INDEX
        return Checkpoint(
            version=int(manifest["version"]), agent_steps=int(manifest["agent_steps"]), form=held,
            seconds=float(manifest["seconds"]), learners=tree.load(path / LEARNER),
            index=tree.load(index) if INDEX in manifest["files"] else None, hosts=_hosts(path, manifest["files"]),
            rows=manifest.get("rows", []),
        )  # fmt: skip


def host_states(folder: Path) -> dict[str, HostState]:
    """Of the newest checkpoint that is whole; none if there is none."""
    found = newest_checkpoint(folder)
    return {} if found is None else dict(found.hosts)


def _write(part: Path, made: Checkpoint) -> None:
    (part / HOSTS).mkdir(parents=True)
    contents: dict[str, Any] = {LEARNER: dict(made.learners)}
    if made.index is not None:
        contents[INDEX] = dict(made.index)
    digests = {name: _save(part / name, value) for name, value in contents.items()}
    for seat, state in made.hosts.items():
        name = f"{HOSTS}/{seat}.npz"
        try:
            digests[name] = _save(part / name, state)
        except TypeError as error:  # worlds of the user's own
            log.warning("checkpoint %d: the state of %s is left out: %s", made.version, seat, error)
            (part / name).unlink()
    manifest = {
        "format": FORMAT, "version": made.version, "agent_steps": made.agent_steps, "seconds": made.seconds,
        "form": tree.encoded(made.form, _keep_none), "files": digests, "rows": list(made.rows),
    }  # fmt: skip
    with (part / MANIFEST).open("w") as file:
        file.write(json.dumps(manifest, indent=1))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(part / HOSTS)
    sync_folder(part)


def _save(path: Path, value: Any) -> str:
    with path.open("wb") as file:
        tree.save(file, value)
        file.flush()
        os.fsync(file.fileno())
    return _digest(path)


def _manifest(path: Path) -> dict[str, Any]:
    with _damage():
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
        known = manifest["format"]
    if known != FORMAT:
        raise bad(
            f"checkpoint {path}: format", known, f"this version of hpcjet reads format {FORMAT}",
            "go on with the version that made it, or begin another run",
        )  # fmt: skip
    return manifest


def _hosts(path: Path, files: dict[str, str]) -> dict[str, HostState]:
    names = [name for name in files if name.startswith(f"{HOSTS}/")]
    return {Path(name).stem: tree.load(path / name) for name in names}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _damage() -> Iterator[None]:
    """What a file that is not what was written may raise."""
    try:
        yield
    except ConfigError:
        raise
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, EOFError, zipfile.BadZipFile,
    ) as error:  # fmt: skip
        raise Damaged(f"{type(error).__name__}: {error}") from error


def _keep_none(array: Any) -> int:
    raise TypeError("a manifest holds no arrays")


def _no_array(number: int) -> Any:
    raise ValueError("a manifest holds no arrays")
