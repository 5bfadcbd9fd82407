"""Showing a tree in a sandbox that is open already: the runner's side of attach.py."""

import array
import contextlib
import os
import socket
import subprocess
from pathlib import Path, PurePosixPath

from hpcjet.errors import SandboxError
from hpcjet.sandbox.backend import Node
from hpcjet.sandbox.contained import LOAD
from hpcjet.sandbox.options import Layout
from hpcjet.sandbox.orphans import new_mark
from hpcjet.sandbox.server import write_all
from hpcjet.sandbox.spawner import spawn
from hpcjet.sandbox.spec import SandboxSpec

ANSWER_S = 10.0
END_S = 5.0


class Attacher:
    """One small process that forks a helper for each sandbox. Raises SandboxError if it cannot be started."""

    def __init__(self, node: Node) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = os.memfd_create("hpcjet-attach", os.MFD_CLOEXEC)
        try:
            write_all(program, Path(__file__).with_name("attach.py").read_bytes())
            os.lseek(program, 0, os.SEEK_SET)
            # -S: nothing of site-packages is needed, and -I: nothing of the caller's environment counts.
            argv = [str(node.python), "-I", "-S", "-B", "-c", LOAD, str(program), str(theirs.fileno())]
            self._process = spawn(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[program, theirs.fileno()], cwd="/", env=new_mark(), umask=0o022, **node.who.popen(),
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._control.close()
            raise SandboxError(f"cannot start {node.python} as user {node.who.uid}: {error}") from error
        finally:
            theirs.close()
            os.close(program)

    def enter(self, init: int, points: bytes) -> "Helper":
        """A helper that stands ready at the sandbox whose process 1 is `init`. Raises SandboxError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as opened:
            try:
                namespace = os.open(f"/proc/{init}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, namespace)
                handed = array.array("i", [namespace, theirs.fileno()])
                self._control.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handed)])
                ours.send(points)
            except OSError as error:
                ours.close()
                raise SandboxError(f"cannot enter the mounts of a sandbox: {error}") from error
        helper = Helper(ours)
        try:
            helper.expect(b"in")
        except SandboxError:
            helper.close()
            raise
        return helper

    def close(self) -> None:
        """End it, and the helpers that nobody used."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._process.kill()
        self._process.wait()


class Helper:
    """A process that waits in the namespaces of one sandbox, until it has shown a tree there or is closed."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(ANSWER_S)
        self._connection = connection

    def attach(self, spec: SandboxSpec, layout: Layout) -> None:
        """Show the view and the mounts of a spec, and end. Raises SandboxError with what the kernel said."""
        try:
            self._connection.send(render_order(spec, layout))
            self.expect(b"done")
        except OSError as error:
            raise SandboxError(f"cannot show a tree in an open sandbox: {error}") from error
        finally:
            self.close()

    def expect(self, word: bytes) -> None:
        try:
            answer = self._connection.recv(1 << 12)
        except OSError as error:
            raise SandboxError(f"no answer from the helper of a sandbox: {error}") from error
        if answer != word:
            said = answer.decode(errors="replace") or "it ended"
            raise SandboxError(f"the helper of a sandbox failed: {said}")

    def close(self) -> None:
        self._connection.close()


def render_points(spec: SandboxSpec) -> bytes:
    """The mount points that attach.py makes as soon as the sandbox is there; those in the view come with it."""
    assert spec.view is not None
    fields = ["folder", spec.view.at]
    for mount in spec.mounts:
        if not PurePosixPath(mount.target).is_relative_to(spec.view.at):
            fields += ["folder" if mount.source.is_dir() else "file", mount.target]
    return "\0".join(fields).encode("utf-8", "surrogateescape")


def render_order(spec: SandboxSpec, layout: Layout) -> bytes:
    """What attach.py is to show."""
    assert spec.view is not None
    lowers = ":".join(escaped(lower) for lower in reversed(spec.view.lowers))
    options = f"lowerdir={lowers},upperdir={escaped(layout.upper)},workdir={escaped(layout.work)},userxattr"
    fields = [str(layout.root), options, spec.view.at]
    for mount in spec.mounts:
        fields += ["rw" if mount.writable else "ro", str(mount.source), mount.target]
    return "\0".join(fields).encode("utf-8", "surrogateescape")


def escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
