"""Sandboxes as a library: opened where they are constructed, used in a `with` block."""

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox.detect import probe, scratch_base
from hpcjet.sandbox.held import temp_folder
from hpcjet.sandbox.living import Living
from hpcjet.sandbox.spec import Background, Limits, Mount, Network, SandboxSpec, View

if TYPE_CHECKING:
    from hpcjet.sandbox.ready import ReadySandboxes


class Sandbox(Living):
    """An open sandbox over a tree, which stays as it is: changes land in `upper`.

    `tree` is a folder, a stack of folders (bottom first), a whole SandboxSpec (then only `config` and `ready` count
    beside it), or None. It is shown at `at`, where commands start. Raises SandboxError where the node allows no
    sandbox, with the cure, and if a path cannot be used.
    """

    def __init__(
        self,
        tree: Path | Sequence[Path] | SandboxSpec | None = None,
        limits: Limits | None = None,
        network: Network = Network.none,
        *,
        at: str = "/work",
        engine: str = "",
        mounts: Sequence[Mount] = (),
        env: Mapping[str, str] | None = None,
        background: Background = Background.keep,
        scratch: Path | None = None,
        keep_scratch: bool = False,
        config: SandboxConfig | None = None,
        ready: "ReadySandboxes | None" = None,
    ) -> None:
        self._own = contextlib.ExitStack()
        config = config or SandboxConfig()
        found = probe(config)
        if found.runtime is None:
            raise SandboxError(found.reason)
        if isinstance(tree, SandboxSpec):
            super().__init__(found.runtime, tree, ready=ready)
            return
        lowers = tuple([tree] if isinstance(tree, Path) else tree or ())
        spec = SandboxSpec(
            scratch=scratch or self._own_folder(scratch_base(config), keep=keep_scratch),
            view=View(lowers=tuple(lower.absolute() for lower in lowers), at=at) if lowers else None,
            mounts=tuple(mounts),
            env=env or {},
            cwd=at if lowers else "/tmp",
            limits=limits or Limits.of(config),
            network=network,
            engine=engine,
            background=background,
            keep_scratch=keep_scratch,
        )
        try:
            super().__init__(found.runtime, spec, ready=ready)
        except BaseException:
            self._own.close()
            raise

    def _own_folder(self, base: Path, *, keep: bool) -> Path:
        if keep:
            return Path(tempfile.mkdtemp(prefix="hpcjet-", dir=base))
        folder = self._own.enter_context(temp_folder(base, "sandbox"))
        folder.chmod(0o711)  # the sandboxes' user may pass through it, and not look into it
        return folder / "scratch"

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._own.close()


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _in_thread(
    method: Callable[Concatenate[Sandbox, Arguments], Result],
) -> Callable[Concatenate["AsyncSandbox", Arguments], Coroutine[Any, Any, Result]]:
    """The same method for asyncio; callbacks are called in the thread."""

    @functools.wraps(method)
    async def call(self: "AsyncSandbox", /, *arguments: Arguments.args, **how: Arguments.kwargs) -> Result:
        box = self.box
        job = self._thread.submit(method, box, *arguments, **how)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            while not job.done():  # the command may be on its way in
                await asyncio.get_running_loop().run_in_executor(None, box.interrupt)
                await asyncio.sleep(0.001)
            raise

    return call


class AsyncSandbox:
    """The same for asyncio: `async with AsyncSandbox(tree) as box: await box.run("make", timeout_s=600)`.

    Takes what Sandbox takes. Each has a thread, which waits while a command runs. A cancelled run() kills its command.
    """

    def __init__(self, tree: Path | Sequence[Path] | SandboxSpec | None = None, *more: object, **how: object) -> None:
        self._open: Callable[[], Sandbox] = lambda: Sandbox(tree, *more, **how)  # type: ignore[arg-type]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hpcjet-sandbox")
        self._box: Sandbox | None = None

    @property
    def box(self) -> Sandbox:
        """The sandbox itself."""
        if self._box is None:
            raise SandboxError("the sandbox is not open; use it in an `async with` block")
        return self._box

    @property
    def upper(self) -> Path | None:
        return self.box.upper

    run = _in_thread(Sandbox.run)
    end_background = _in_thread(Sandbox.end_background)

    async def __aenter__(self) -> "AsyncSandbox":
        self._box = await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self.box.close)
        self._thread.shutdown(wait=False)
