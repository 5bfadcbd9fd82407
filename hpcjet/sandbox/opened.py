"""The folders and processes of a sandbox, before its first command."""

import os
import resource
from dataclasses import dataclass

from hpcjet.errors import SandboxError
from hpcjet.sandbox.backend import Backend
from hpcjet.sandbox.cgroup import Group, new_group
from hpcjet.sandbox.copies import copy_stack
from hpcjet.sandbox.cpus import choose_cpus
from hpcjet.sandbox.identity import check_reachable
from hpcjet.sandbox.options import IO, Layout
from hpcjet.sandbox.scratch import make_scratch, remove_tree
from hpcjet.sandbox.server import Server
from hpcjet.sandbox.spec import SandboxSpec
from hpcjet.sandbox.targets import check_targets


@dataclass
class Opened:
    """A scratch folder with the descriptor that locks it, and the command server with its cgroup."""

    layout: Layout
    lock: int
    server: Server
    group: Group | None

    def close(self, *, keep_scratch: bool = False) -> None:
        """End every process, and remove the folders."""
        self.server.close()
        if self.group is not None:
            self.group.remove()
        leave(self.layout, self.lock, keep_scratch=keep_scratch)


def leave(layout: Layout, lock: int, *, keep_scratch: bool) -> None:
    if not keep_scratch:
        remove_tree(layout.scratch)
    os.close(lock)


def unwritable(layout: Layout, error: OSError) -> SandboxError:
    return SandboxError(
        f"cannot write to scratch={layout.scratch}: {error}; free space there, or set sandbox.scratch to a "
        "folder on a local disk that this user may write"
    )


def open_up(backend: Backend, spec: SandboxSpec, layout: Layout, *, view_later: bool = False) -> Opened:
    """Make the folders of a sandbox and start its command server.

    `view_later`: the spec has no view; the folders for one are made, and it is shown by hpcjet.sandbox.attacher.
    """
    who = backend.node.who
    try:
        lock = make_scratch(layout, who, view=view_later or spec.view is not None)
    except OSError as error:
        raise unwritable(layout, error) from error
    try:
        check_reachable(layout.scratch, who)
        if spec.view and not backend.overlay:
            copy_stack(spec.view.lowers, layout.upper, who)
        check_targets(spec, layout)
        arguments = server_arguments(backend, spec, layout)
        server = Server(
            lambda give: backend.start(spec, layout, arguments, give), who=who, cpus=choose_cpus(spec.limits.cpus)
        )
        try:
            group = new_group(backend.node.cgroup, spec.limits, server.pids()) if backend.node.cgroup else None
        except BaseException:
            server.close()
            raise
    except BaseException:
        leave(layout, lock, keep_scratch=spec.keep_scratch)
        raise
    return Opened(layout, lock, server, group)


def server_arguments(backend: Backend, spec: SandboxSpec, layout: Layout) -> list[str]:
    """What the command server is told; see hpcjet.sandbox.server_script."""
    limits, node = spec.limits, backend.node
    file_kib = "" if limits.file_bytes is None else str(max(1, limits.file_bytes // 1024))
    open_files = "" if limits.open_files is None else str(_below_hard(limits.open_files, resource.RLIMIT_NOFILE))
    # Twice, because the supervisor is who ends a command over the limit; this only holds a fork bomb until it
    # looks. Without a user namespace the kernel would count all processes of the user.
    counted = limits.processes is not None and node.nproc and backend.fixed_paths
    num = str(2 * limits.processes) if limits.processes is not None and counted else ""
    return [str(node.shell), backend.where(IO, spec, layout), file_kib, open_files, num]


def _below_hard(wanted: int, limit: int) -> int:
    hard = resource.getrlimit(limit)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
