"""Base trees, checked out and built once per node, and kept for as long as there is room."""

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import TaskError
from hpcjet.sandbox import probe
from hpcjet.sandbox.identity import check_reachable, identity
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.clean import clean, own_bytes, put_aside
from hpcjet.tasks.layer import BuildFailed, Order, inherit_objects, make_layer
from hpcjet.tasks.layerfile import FORMAT, About, mark_used, read_about, write_about
from hpcjet.tasks.lease import lend
from hpcjet.tasks.lockfile import locked
from hpcjet.tasks.repos import repository, resolve_commit
from hpcjet.tasks.room import Keep, NoRoom, check_room, free_bytes
from hpcjet.tasks.shelf import Shelf, pack_name
from hpcjet.tasks.task import TESTBED, Task

log = logging.getLogger(__name__)

FULL_BYTES = 32 * 1024**2
"""A build that fails on a disk with less free space than this failed for that."""
FAILURE_TTL_S = 900.0
"""How long a build that failed is not tried again by another process."""


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


@dataclass(frozen=True)
class _Stack:
    """The layers that are there so far, bottom first."""

    lowers: tuple[Path, ...] = ()
    git_dir: Path | None = None
    top: _Layer | None = None
    about: About | None = None

    @property
    def name(self) -> str:
        return self.top.name if self.top else ""

    @property
    def mark(self) -> str:
        return self.about.mark if self.about else ""


class TreeStore:
    """The base trees below `root`, a folder on a local disk of the node. Threads and processes may share it.

    With a `shelf` nodes share what one of them has built.
    """

    def __init__(
        self,
        root: Path,
        sandbox: SandboxConfig,
        repos: Path,
        *,
        build_timeout_s: float = 3600.0,
        wait_timeout_s: float = 7200.0,
        cpus: int | None = None,
        keep: Keep | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self._root = root.absolute()
        self._sandbox = sandbox
        self._repos = repos.absolute()
        self._build_timeout_s = build_timeout_s
        self._wait_timeout_s = wait_timeout_s
        self._cpus = cpus or len(os.sched_getaffinity(0))
        self._keep = keep or Keep()
        self._shelf = shelf
        self._commits: dict[tuple[str, str], str] = {}
        self._prepared: dict[PreparedTree, ExitStack] = {}

    @contextlib.contextmanager
    def lend(self, task: Task) -> Iterator[PreparedTree]:
        """The base tree of a task, which no cleaning takes away inside the block; see prepare()."""
        with ExitStack() as leases:
            yield self._lend(task, leases)

    def prepare(self, task: Task) -> PreparedTree:
        """The base tree of a task; its missing layers are made first, which may take minutes.

        No cleaning takes it away before close() or the end of the process. Raises TaskError if a commit is missing or
        a build fails, NoRoom if there is no room for one, SandboxError if no sandbox can be opened.
        """
        leases = ExitStack()
        tree = leases.enter_context(self.lend(task))
        if self._prepared.setdefault(tree, leases) is not leases:
            leases.close()
        return tree

    def close(self) -> None:
        """Let cleaning take what was prepared."""
        while self._prepared:
            self._prepared.popitem()[1].close()

    def _lend(self, task: Task, leases: ExitStack) -> PreparedTree:
        source = repository(self._repos, task.repo)
        stack = _Stack()
        for layer in self._layers(task, source):
            about = self._take(task, source, layer, stack, leases)
            folder = self._root / layer.name
            lowers = (*stack.lowers, folder / "tree") if self._overlay else (folder / "tree",)
            stack = _Stack(lowers, folder / "git", layer, about)
        assert stack.git_dir and stack.top and stack.about
        return PreparedTree(stack.lowers, stack.git_dir, base_commit=stack.top.commit, head=stack.about.head)

    def _take(self, task: Task, source: Path, layer: _Layer, below: _Stack, leases: ExitStack) -> About:
        """Lease a layer; it is made if it is not there, or if it was made on another one than that below."""
        folder = self._root / layer.name
        while True:
            lease = lend(folder)
            if lease is None or not _is_ready(folder, below):
                if lease is not None:
                    os.close(lease)
                lease = self._make(task, layer, self._order(task, source, layer, below), below)
            if lease is not None:
                break
        leases.callback(os.close, lease)
        about = read_about(folder)
        assert about
        if below.top and not about.below:  # made before layers told what they stand on
            about = replace(about, below=below.name, below_mark=below.mark)
            write_about(folder, about)
        mark_used(folder)
        return about

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

    def _order(self, task: Task, source: Path, layer: _Layer, below: _Stack) -> Order:
        return Order(
            source=source,
            commit=layer.commit,
            previous=below.top.commit if below.top else None,
            lowers=below.lowers,
            git_below=below.git_dir,
            recipe=task.recipe,
            cpus=self._cpus,
            timeout_s=self._build_timeout_s,
        )

    def _make(self, task: Task, layer: _Layer, order: Order, below: _Stack) -> int | None:
        """Make a layer, and lease it before any cleaning can see it; None if another process has just made it."""
        self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
        check_reachable(self._root, identity(self._sandbox))
        folder = self._root / layer.name
        with locked(_beside(folder, "lock"), timeout_s=self._wait_timeout_s):
            if _is_ready(folder, below):
                return None
            _refuse_known_failure(_beside(folder, "failed.json"))
            self._remove_drafts(layer)
            self._make_room()
            draft = self._root / f"{layer.name}.{os.getpid()}.draft"
            draft.mkdir(mode=0o755)
            try:
                return self._fill(task, layer, order, draft, below)
            finally:
                remove_tree(draft)

    def _make_room(self) -> None:
        try:
            cleaned = clean(self._root, self._keep)
        except OSError as error:
            log.warning("%s could not be cleaned: %s", self._root, error)
        else:
            if cleaned.freed_bytes:
                log.info("%s: %s", self._root, cleaned)
        check_room(self._root, self._keep)

    def _fill(self, task: Task, layer: _Layer, order: Order, draft: Path, below: _Stack) -> int | None:
        begin = time.monotonic()
        folder = self._root / layer.name
        if self._shelf is None:
            self._build(task, order, folder, draft, below)
        else:
            pack = pack_name(layer.name, below_mark=below.mark)
            with self._shelf.turn(pack, draft, timeout_s=self._wait_timeout_s) as found:
                if not found:
                    marker = self._shelf.marker(pack)
                    _refuse_known_failure(marker)
                    self._build(task, order, folder, draft, below, marker)
                    self._shelf.put(pack, draft, git_below=order.git_below)
                elif order.git_below:
                    inherit_objects(order.git_below, draft / "git")
        if folder.exists():
            remove_tree(put_aside(folder))
        lease = lend(draft)
        draft.rename(folder)
        log.info("%s: %s is ready after %.1f s", task.instance_id, folder, time.monotonic() - begin)
        return lease

    def _build(self, task: Task, order: Order, folder: Path, draft: Path, below: _Stack, *markers: Path) -> None:
        begin = time.monotonic()
        log.info("%s: preparing %s at %s", task.instance_id, task.repo, order.commit[:12])
        try:
            head = make_layer(draft, order, self._sandbox)
        except BuildFailed as failure:
            if free_bytes(self._root) < FULL_BYTES:
                raise _full(self._root, str(failure)) from None
            raise TaskError(_keep_failure(task, order, folder, draft, str(failure), markers)) from None
        except OSError as error:
            if free_bytes(self._root) < FULL_BYTES:
                raise _full(self._root, str(error)) from error
            raise
        remove_tree(draft / "scratch")
        remove_tree(draft / "incoming")
        about = About(
            repo=task.repo,
            commit=order.commit,
            head=head,
            seconds=round(time.monotonic() - begin, 3),
            mark=token_hex(8),
            size_bytes=own_bytes(draft, stacked=bool(below.name)),
            below=below.name,
            below_mark=below.mark,
        )
        write_about(draft, about)

    def _remove_drafts(self, layer: _Layer) -> None:
        """Of makers that were killed: whoever holds the lock is the only one."""
        for draft in self._root.glob(f"{layer.name}.*.draft"):
            remove_tree(draft)


def _keep_failure(task: Task, order: Order, folder: Path, draft: Path, reason: str, markers: tuple[Path, ...]) -> str:
    kept = _beside(folder, "failed.log")
    (draft / "build.log").replace(kept)
    message = f"{task.repo} at {order.commit[:12]} could not be built: {reason}\nThe whole log: {kept}"
    for marker in (_beside(folder, "failed.json"), *markers):
        with contextlib.suppress(OSError):
            marker.write_text(json.dumps({"time": time.time(), "message": message}), "utf-8")
    return message


def _refuse_known_failure(marker: Path) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads(marker.read_text("utf-8"))
        if 0 <= time.time() - known["time"] < FAILURE_TTL_S:
            raise TaskError(f"{known['message']}\nIt failed a short while ago; to try again now, remove {marker}")
        marker.unlink()


def _is_ready(folder: Path, below: _Stack) -> bool:
    """Whether a layer is there, and stands on the one that is below now, not on an earlier one of the same name."""
    about = read_about(folder)
    return about is not None and (not about.below or about.below_mark == below.mark)


def _full(root: Path, why: str) -> NoRoom:
    return NoRoom(f"the file system of exp.trees={root} filled up during a build: {why}\nFree space there")


def layer_name(task: Task, commits: list[str], *, uid: int, overlay: bool) -> str:
    """A folder name that changes with everything that goes into the layer."""
    recipe = asdict(task.recipe)
    del recipe["test_command"]
    content = json.dumps([FORMAT, TESTBED, uid, overlay, task.repo, commits, recipe], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return f"{task.repo.replace('/', '__')}-{commits[-1][:12]}-{digest}"


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(f"{folder.name}.{ending}")
