"""Sandboxes that stand ready: open but for their tree, which is shown when an attempt asks.

Most of the time that a sandbox takes to open goes into its namespaces and its command server, which are the same for
every attempt. One that stands ready has run nothing, and gets an upper layer of its own: it is as fresh as any other.
"""

import contextlib
import errno
import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox.attacher import Attacher, Helper, render_points
from hpcjet.sandbox.backend import Backend
from hpcjet.sandbox.detect import probe
from hpcjet.sandbox.identity import check_reachable
from hpcjet.sandbox.opened import Opened, open_up
from hpcjet.sandbox.options import Layout
from hpcjet.sandbox.spec import Background, SandboxSpec
from hpcjet.sandbox.targets import check_targets

log = logging.getLogger(__name__)
MAX_FAILURES = 3
"""Sandboxes in a row that could not be opened or used, until no more are kept ready."""
REST_S = 0.05
"""Nobody has asked for that long: the time to open others, unless few are left."""
ELSEWHERE = (errno.ENOTEMPTY, errno.EEXIST, errno.EXDEV)
"""What the kernel says of a scratch folder that is in use, or on another file system."""


@dataclass
class _Waiting:
    opened: Opened
    helper: Helper

    def close(self) -> None:
        self.helper.close()
        self.opened.close()


def shape(spec: SandboxSpec) -> SandboxSpec:
    """What a sandbox must have in common with a spec to become it: all but its folders, and what it shows."""
    root = Path("/")
    return replace(
        spec,
        scratch=root,
        view=None if spec.view is None else replace(spec.view, lowers=()),
        mounts=tuple(replace(mount, source=root) for mount in spec.mounts),
        cwd="/",
        background=Background.keep,
        keep_scratch=False,
    )


class ReadySandboxes:
    """Keeps `num` sandboxes like `like` ready, in `folder`, which must be on the file system of the scratch folders.

    Pass it to open_sandbox or Sandbox; a spec of another shape, or more than `num` at once, are opened as without it.
    close() ends those that nobody took. On nodes where trees are copies, or kernels before 5.12, none are kept.
    """

    def __init__(self, config: SandboxConfig, like: SandboxSpec, *, folder: Path, num: int) -> None:
        self._folder, self._num, self._like, self._shape = folder.absolute(), num, like, shape(like)
        self._owner_pid = os.getpid()
        self._waiting: deque[_Waiting] = deque()
        self._names = count()
        self._changed = threading.Condition()
        self._asking = 0
        self._asked = -REST_S
        # A few at a time is sooner on average than all at the same time, and as soon for the last one.
        self._turns = threading.Semaphore(2 * len(os.sched_getaffinity(0)))
        self._failures = 0
        self._closed = False
        self._attacher: Attacher | None = None
        self._backend = probe(config).runtime
        self._filler: threading.Thread | None = None
        if num > 0 and like.view and self._backend is not None and self._backend.overlay and self._backend.fixed_paths:
            self._filler = threading.Thread(target=self._fill, name="hpcjet-ready", daemon=True)
            self._filler.start()

    def wait(self, timeout_s: float) -> int:
        """Wait until all stand ready; how many do."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= self._num or self._given_up, timeout_s)
            return len(self._waiting)

    @property
    def _is_forked(self) -> bool:
        """Whether this is a copy in a forked process, to which none of the sandboxes belong."""
        return self._owner_pid != os.getpid()

    @property
    def _given_up(self) -> bool:
        return self._closed or self._filler is None or self._failures >= MAX_FAILURES

    def take(self, backend: Backend, spec: SandboxSpec, layout: Layout) -> Opened | None:
        """A sandbox that has become this one; None if none stands ready, or none can become it."""
        if self._is_forked or backend != self._backend or spec.view is None or shape(spec) != self._shape:
            return None
        with self._changed:
            if not self._waiting:
                return None
            waiting = self._waiting.popleft()
            self._asking += 1
        try:
            with self._turns:
                return self._become(waiting, spec, layout, backend)
        finally:
            with self._changed:
                self._asking -= 1
                self._asked = time.monotonic()
                self._changed.notify_all()

    def _become(self, waiting: _Waiting, spec: SandboxSpec, layout: Layout, backend: Backend) -> Opened | None:
        try:
            layout.scratch.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
            os.rename(waiting.opened.layout.scratch, layout.scratch)  # noqa: PTH104 (onto an empty folder)
        except OSError as error:
            if error.errno in ELSEWHERE:
                with self._changed:
                    self._waiting.append(waiting)
            else:
                waiting.close()
            return None
        waiting.opened.layout = layout
        try:
            check_reachable(layout.scratch, backend.node.who)
            check_targets(spec, layout)
            waiting.helper.attach(spec, layout)
        except (SandboxError, OSError) as error:
            # Opened in the usual way it may work, or say more.
            self._count_failure(error)
            waiting.close()
            return None
        except BaseException:
            waiting.close()
            raise
        self._failures = 0
        return waiting.opened

    def _count_failure(self, error: Exception) -> None:
        self._failures += 1
        log.warning("a sandbox that stood ready could not be used: %s", error)

    def _fill(self) -> None:
        while True:
            with self._changed:
                while not self._given_up and not self._due():
                    self._changed.wait(REST_S if len(self._waiting) < self._num else None)
                if self._given_up:
                    self._changed.notify_all()
                    return
            try:
                waiting = self._prepare()
            except (SandboxError, OSError) as error:
                self._count_failure(error)
                continue
            with self._changed:
                if not self._closed:
                    self._waiting.append(waiting)
                    self._changed.notify_all()
                    continue
            waiting.close()

    def _due(self) -> bool:
        """Whether it is time to open one more. Those who ask come first: what they get is there, and needs the CPU."""
        if self._asking or len(self._waiting) >= self._num:
            return False
        return 2 * len(self._waiting) < self._num or time.monotonic() - self._asked >= REST_S

    def _prepare(self) -> _Waiting:
        assert self._backend is not None
        if self._attacher is None:
            self._attacher = Attacher(self._backend.node)
        scratch = self._folder / str(next(self._names))
        layout = Layout(scratch, self._backend.node.etc)
        opened = open_up(
            self._backend, replace(self._shape, scratch=scratch, view=None, mounts=()), layout, view_later=True
        )
        try:
            return _Waiting(opened, self._attacher.enter(opened.server.init, render_points(self._like)))
        except BaseException:
            opened.close()
            raise

    def close(self) -> None:
        """End what nobody took."""
        if self._is_forked:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._filler is not None:
            self._filler.join()
        while self._waiting:
            self._waiting.popleft().close()
        if self._attacher is not None:
            self._attacher.close()
            self._attacher = None
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def __enter__(self) -> "ReadySandboxes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
