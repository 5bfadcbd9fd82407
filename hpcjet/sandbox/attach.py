"""The program that shows a tree in sandboxes that were opened before anybody knew which tree it would be.

It is handed to a bare interpreter as text, so it imports nothing of this project. Arguments: a descriptor with this
text, and a socket. Per sandbox it gets the descriptor of its mount namespace and a second socket, and forks. The child
enters the user namespace that owns the mounts, where it has the rights that bubblewrap had, makes the mount points, and
waits for one order. What is to be shown is mounted in a private copy of the host's mounts, for only there its paths
lead anywhere, and then carried over.

Messages are fields with NUL bytes between them. Points: "folder" or "file" and a path, again and again. The order: a
folder to mount on, the options of the overlay, where to show it; then "ro" or "rw", source and target of each mount.

Nothing runs in the sandbox yet, and the child sees none of its processes, nor they it.
"""

# Calls of the kernel, one by one, by a program that lives for milliseconds:
# ruff: noqa: PTH103, PTH112, PTH120

from __future__ import annotations

import _socket
import array
import ctypes
import fcntl
import os
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_libc = ctypes.CDLL(None, use_errno=True)
SIGKILL, PR_PDEATHSIG = 9, 1
NEW_USER, NEW_MOUNTS = 0x1000_0000, 0x0002_0000
NS_GET_USERNS = 0xB701
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
"""The same numbers on every machine. The last one came with Linux 5.12; overlays without root with 5.11."""
CLONE, CLOEXEC, RECURSIVE, EMPTY_PATH, FROM_EMPTY_PATH = 1, 0o2000000, 0x8000, 0x1000, 4
HERE = -100
ORDER_BYTES = 1 << 17
LINGER_S = 0.2


def call(name: str, result: int, *details: bytes) -> int:
    """Raise OSError if a call of the C library failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}", *map(os.fsdecode, details[:1]))
    return result


def main() -> None:
    control = _socket.socket(fileno=int(sys.argv[2]))
    call("prctl", _libc.prctl(PR_PDEATHSIG, ctypes.c_ulong(SIGKILL), 0, 0, 0))
    os.chdir("/")
    children: set[int] = set()
    while True:
        word, ancillary, _, _ = control.recvmsg(1, _socket.CMSG_SPACE(8))
        children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
        if not word:
            break
        namespace, orders = array.array("i", ancillary[0][2])
        child = os.fork()
        if not child:
            control.close()
            serve(namespace, _socket.socket(fileno=orders))
            os._exit(0)
        children.add(child)
        os.close(namespace)
        os.close(orders)
    for child in children:
        os.kill(child, SIGKILL)
        os.waitpid(child, 0)


def serve(namespace: int, orders: _socket.socket) -> None:
    try:
        enter(namespace, orders.recv(ORDER_BYTES).split(b"\0"))
        orders.send(b"in")
        order = orders.recv(ORDER_BYTES)
        if not order:
            return
        attach(order.split(b"\0"), namespace)
        orders.send(b"done")
    except OSError as error:
        orders.send(os.fsencode(f"{error.strerror} {os.fsdecode(error.filename or '')}".strip()))
    # What is left is cleaning up, while others may be waiting for their sandbox.
    os.nice(19)
    time.sleep(LINGER_S)


def enter(namespace: int, points: Sequence[bytes]) -> None:
    """Take the rights of the sandbox's maker, and a copy of the host's mounts that may be added to."""
    call("enter user namespace", _libc.setns(fcntl.ioctl(namespace, NS_GET_USERNS), NEW_USER))
    # Not before: gaining rights clears it.
    call("prctl", _libc.prctl(PR_PDEATHSIG, ctypes.c_ulong(SIGKILL), 0, 0, 0))
    call("copy mounts", _libc.unshare(NEW_MOUNTS))
    # Also held until this process ends: taking a copy of all mounts down takes longer than all the rest together.
    host = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    call("enter mounts", _libc.setns(namespace, NEW_MOUNTS))
    remount_root(MS_NOSUID | MS_NODEV)
    for kind, target in zip(points[::2], points[1::2], strict=True):
        make_point(target, folder=kind == b"folder")
    remount_root(MS_NOSUID | MS_NODEV | MS_RDONLY)
    call("leave mounts", _libc.setns(host, NEW_MOUNTS))


def attach(order: Sequence[bytes], namespace: int) -> None:
    place, options, at, *mounts = order
    parts = [(overlay(place, options), at, True)]
    for how, source, target in zip(mounts[::3], mounts[1::3], mounts[2::3], strict=True):
        parts.append((bind(source, writable=how == b"rw"), target, os.path.isdir(source)))
    call("enter mounts", _libc.setns(namespace, NEW_MOUNTS))
    for descriptor, target, folder in parts:
        if not os.path.lexists(target):  # in the view, or where commands may write
            make_point(target, folder=folder)
        call("move mount", _libc.syscall(MOVE_MOUNT, descriptor, b"", HERE, target, FROM_EMPTY_PATH), target)


def overlay(place: bytes, options: bytes) -> int:
    """A mount that is nowhere yet. Made by the old call, since the new one takes no long paths."""
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    call("mount overlay", _libc.mount(b"overlay", place, b"overlay", flags, options), place)
    return call("take overlay", _libc.syscall(OPEN_TREE, HERE, place, CLONE | CLOEXEC), place)


def bind(source: bytes, *, writable: bool) -> int:
    found = call("bind", _libc.syscall(OPEN_TREE, HERE, source, CLONE | CLOEXEC | RECURSIVE), source)
    attributes = struct.pack("=4Q", MS_NOSUID | MS_NODEV | (0 if writable else MS_RDONLY), 0, MS_PRIVATE, 0)
    size = ctypes.c_size_t(len(attributes))
    call("bind", _libc.syscall(MOUNT_SETATTR, found, b"", EMPTY_PATH | RECURSIVE, attributes, size), source)
    return found


def make_point(target: bytes, *, folder: bool) -> None:
    if folder:
        os.makedirs(target, mode=0o755, exist_ok=True)
    elif not os.path.lexists(target):
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))


def remount_root(flags: int) -> None:
    call("remount", _libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REMOUNT | MS_BIND | flags), None))


if __name__ == "__main__":
    main()
