"""Base trees, checked out and built once per node, and kept."""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import TaskError
from hpcjet.sandbox import probe
from hpcjet.sandbox.identity import check_reachable, identity
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.layer import BuildFailed, Order, make_layer
from hpcjet.tasks.repos import repository, resolve_commit
from hpcjet.tasks.task import TESTBED, Task

log = logging.getLogger(__name__)

FORMAT = 1
"""Changes when layers are made differently, so that old ones are not taken for new ones."""
FAILURE_TTL_S = 900.0
"""How long a build that failed is not tried again by another process."""
POLL_S = 0.2


@dataclass(frozen=True)
class PreparedTree:
    """A base tree, ready to be shown in sandboxes at TESTBED."""

    lowers: tuple[Path, ...]
    """Folders of the view, bottom first; they stay unchanged."""
    git_dir: Path
    """A pristine .git of the tree, index included, that no agent has seen: for the runner's own diffs."""
    base_commit: str
    """The full hash of the base commit in the task's repository."""
    head: str
    """The one commit in `.git` and in git_dir; its tree is that of base_commit."""


@dataclass(frozen=True)
class _Layer:
    name: str
    commit: str


class TreeStore:
    """The base trees below `root`, a folder on a local disk of the node. Threads and processes may share it."""

    def __init__(
        self,
        root: Path,
        sandbox: SandboxConfig,
        repos: Path,
        *,
        build_timeout_s: float = 3600.0,
        wait_timeout_s: float = 7200.0,
        cpus: int | None = None,
    ) -> None:
        self._root = root.absolute()
        self._sandbox = sandbox
        self._repos = repos.absolute()
        self._build_timeout_s = build_timeout_s
        self._wait_timeout_s = wait_timeout_s
        self._cpus = cpus or len(os.sched_getaffinity(0))
        self._commits: dict[tuple[str, str], str] = {}

    def prepare(self, task: Task) -> PreparedTree:
        """The base tree of a task; its missing layers are made first, which may take minutes.

        Raises TaskError if a commit is missing or a build fails, SandboxError if no sandbox can be opened.
        """
        source = repository(self._repos, task.repo)
        layers = self._layers(task, source)
        lowers: tuple[Path, ...] = ()
        head, git_dir = "", None
        for below, layer in zip([None, *layers], layers, strict=False):
            folder = self._root / layer.name
            if not (folder / "layer.json").is_file():
                order = self._order(task, source, below, layer, lowers, git_dir)
                self._make(task, layer, order)
            lowers = (*lowers, folder / "tree") if self._overlay else (folder / "tree",)
            git_dir = folder / "git"
        assert git_dir
        head = json.loads((git_dir.parent / "layer.json").read_text("utf-8"))["head"]
        return PreparedTree(lowers=lowers, git_dir=git_dir, base_commit=layers[-1].commit, head=head)

    @property
    def _overlay(self) -> bool:
        return probe(self._sandbox).overlay

    def _layers(self, task: Task, source: Path) -> list[_Layer]:
        commits = [self._commit(source, name) for name in task.layers or (task.base_commit,)]
        unique = [commit for commit, below in zip(commits, ["", *commits], strict=False) if commit != below]
        return [
            _Layer(
                layer_name(task, unique[: count + 1], uid=identity(self._sandbox).uid, overlay=self._overlay), commit
            )
            for count, commit in enumerate(unique)
        ]

    def _commit(self, source: Path, name: str) -> str:
        """Resolved once, so that a branch that moves means one commit for the whole run."""
        key = (str(source), name)
        if key not in self._commits:
            self._commits[key] = resolve_commit(source, name)
        return self._commits[key]

    def _order(
        self,
        task: Task,
        source: Path,
        below: _Layer | None,
        layer: _Layer,
        lowers: tuple[Path, ...],
        git_below: Path | None,
    ) -> Order:
        return Order(
            source=source,
            commit=layer.commit,
            previous=below.commit if below else None,
            lowers=lowers,
            git_below=git_below,
            recipe=task.recipe,
            cpus=self._cpus,
            timeout_s=self._build_timeout_s,
        )

    def _make(self, task: Task, layer: _Layer, order: Order) -> None:
        self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
        check_reachable(self._root, identity(self._sandbox))
        folder = self._root / layer.name
        with _locked(_beside(folder, "lock"), timeout_s=self._wait_timeout_s):
            if (folder / "layer.json").is_file():
                return
            self._refuse_known_failure(folder)
            self._remove_drafts(layer)
            draft = self._root / f"{layer.name}.{os.getpid()}.draft"
            draft.mkdir(mode=0o755)
            try:
                self._fill(task, layer, order, draft)
            finally:
                remove_tree(draft)

    def _fill(self, task: Task, layer: _Layer, order: Order, draft: Path) -> None:
        begin = time.monotonic()
        folder = self._root / layer.name
        log.info("%s: preparing %s at %s", task.instance_id, task.repo, order.commit[:12])
        try:
            head = make_layer(draft, order, self._sandbox)
        except BuildFailed as failure:
            raise TaskError(self._keep_failure(task, order, folder, draft, str(failure))) from None
        remove_tree(draft / "scratch")
        remove_tree(draft / "incoming")
        seconds = round(time.monotonic() - begin, 3)
        about = {"format": FORMAT, "repo": task.repo, "commit": order.commit, "head": head, "seconds": seconds}
        (draft / "layer.json").write_text(json.dumps(about) + "\n", "utf-8")
        remove_tree(folder)
        draft.rename(folder)
        log.info("%s: %s is ready after %.1f s", task.instance_id, folder, seconds)

    def _keep_failure(self, task: Task, order: Order, folder: Path, draft: Path, reason: str) -> str:
        kept, marker = _beside(folder, "failed.log"), _beside(folder, "failed.json")
        (draft / "build.log").replace(kept)
        message = f"{task.repo} at {order.commit[:12]} could not be built: {reason}\nThe whole log: {kept}"
        marker.write_text(json.dumps({"time": time.time(), "message": message}), "utf-8")
        return message

    def _refuse_known_failure(self, folder: Path) -> None:
        marker = _beside(folder, "failed.json")
        with contextlib.suppress(OSError, ValueError, KeyError):
            known = json.loads(marker.read_text("utf-8"))
            if 0 <= time.time() - known["time"] < FAILURE_TTL_S:
                raise TaskError(f"{known['message']}\nIt failed a short while ago; to try again now, remove {marker}")
            marker.unlink()

    def _remove_drafts(self, layer: _Layer) -> None:
        """Of makers that were killed: whoever holds the lock is the only one."""
        for draft in self._root.glob(f"{layer.name}.*.draft"):
            remove_tree(draft)


def layer_name(task: Task, commits: list[str], *, uid: int, overlay: bool) -> str:
    """A folder name that changes with everything that goes into the layer."""
    recipe = asdict(task.recipe)
    del recipe["test_command"]
    content = json.dumps([FORMAT, TESTBED, uid, overlay, task.repo, commits, recipe], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return f"{task.repo.replace('/', '__')}-{commits[-1][:12]}-{digest}"


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(f"{folder.name}.{ending}")


@contextlib.contextmanager
def _locked(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold a lock file. The kernel gives it back when its holder dies; root is on a local disk, where that is reliable.

    Raises TaskError if it is held for longer than timeout_s.
    """
    deadline = time.monotonic() + timeout_s
    with path.open("a+", encoding="utf-8") as file:
        while not _try_lock(file.fileno(), path):
            if time.monotonic() > deadline:
                holder = path.read_text("utf-8").strip()
                raise TaskError(f"waited {timeout_s:.0f} s for {path}, held by {holder}; end that process or wait")
            time.sleep(POLL_S)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        file.flush()
        yield


def _try_lock(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise TaskError(f"{path} cannot be locked ({error.strerror}); trees must lie on a local disk") from error
    return True
