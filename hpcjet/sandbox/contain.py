"""The program that makes a sandbox without bubblewrap: user namespaces, or Landlock alone.

It is handed to a bare interpreter as text, so it imports nothing of this project. Arguments: a descriptor with this
text, one with the plan (a Python literal; see userns.py and process.py), and the lifeline. It becomes two programs by
exec: the command server with the caller's pipes, and above it the keeper, which ends the rest when the lifeline does.
"""

# Calls of the kernel, one by one, by a program that lives for milliseconds:
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH120, PTH123, PTH208, PTH211, SIM105

# Modules that pull in others are passed by, for they would cost more than all the rest: json, socket, typing, ...
from __future__ import annotations

import _socket
import ctypes
import fcntl
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Plan = dict[str, Any]

SIGHUP, SIGKILL, SIGPIPE, SIGXFSZ = 1, 9, 13, 25
_libc = ctypes.CDLL(None, use_errno=True)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_SLAVE, MNT_DETACH = 4096, 16384, 1 << 19, 2
MS_KEPT = {1: 1, 2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
"""Flags of statvfs, and the same of mount: what a mount of the host has may not be taken off in a user namespace."""
NEW_NAMESPACES = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000
NEW_NETWORK = 0x4000_0000
PR_PDEATHSIG, PR_CAPBSET_DROP, PR_SECCOMP, PR_SUBREAPER, PR_NO_NEW_PRIVS = 1, 24, 22, 36, 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446


def call(name: str, result: int, *details: str) -> int:
    """Raise OSError if a call of the C library failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}", *details[:1])
    return result


def prctl(option: int, value: int) -> None:
    call(f"prctl {option}", _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def main() -> None:
    with open(int(sys.argv[2]), encoding="utf-8", errors="surrogateescape") as file:
        plan: Plan = eval(file.read(), {"__builtins__": {}})
    lifeline = int(sys.argv[3])
    os.setsid()
    for number in (SIGPIPE, SIGXFSZ):  # this interpreter ignores them, and exec would pass that on
        _libc.signal(number, 0)
    if plan["kind"] == "userns":
        enter_namespaces(plan)
    else:
        prctl(PR_SUBREAPER, 1)
    alive, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(told)
            os.close(lifeline)
            prctl(PR_PDEATHSIG, SIGKILL)
            if os.read(alive, 1) == b"x":  # else the keeper died before the kernel was told to mind it
                if plan["kind"] == "userns":
                    os.setsid()  # no session that commands share with a process outside
                    build_root(plan)
                restrict_files(plan)
        except OSError as error:
            complain(f"{error.strerror} {error.filename or ''}")
        finally:
            os._exit(1)
    os.write(told, b"x")
    keep(plan["keeper"], lifeline)


def keep(keeper: Sequence[str], lifeline: int) -> None:
    """Become the keeper, which holds none of the caller's pipes."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.set_inheritable(lifeline, True)
    close_all_but((0, 1, 2, lifeline))
    os.chdir("/")
    # SIGHUP, for which the keeper has a trap: SIGKILL would leave what runs below it.
    prctl(PR_PDEATHSIG, SIGHUP)
    os.execve(keeper[0], [*keeper, str(lifeline)], {})


def close_all_but(spared: Sequence[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in spared:
            try:
                os.close(int(name))
            except OSError:  # the one that listed them
                continue


def complain(text: str) -> None:
    """The caller reads what went wrong, before the command server says anything."""
    sys.stderr.write(f"contain: {text.strip()}\n")
    sys.stderr.flush()
    os._exit(1)


def become(plan: Plan, env: dict[str, str]) -> None:
    prctl(PR_NO_NEW_PRIVS, 1)
    if plan["seccomp"]:
        program = bytes.fromhex(plan["seccomp"])

        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]

        steps = Program(len(program) // 8, program)
        call("seccomp filter", _libc.prctl(PR_SECCOMP, 2, ctypes.byref(steps), 0, 0))
    close_all_but((0, 1, 2))
    os.execve(plan["argv"][0], plan["argv"], env)


# User namespaces


def enter_namespaces(plan: Plan) -> None:
    uid, gid = os.getuid(), os.getgid()
    flags = NEW_NAMESPACES | (0 if "--share-net" in plan["options"] else NEW_NETWORK)
    step = "Creating new namespace failed"  # bubblewrap's words, which denial.py knows
    try:
        call("unshare", _libc.unshare(flags))
        step = "setting up uid map"
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{uid} {uid} 1")
        write("/proc/self/gid_map", f"{gid} {gid} 1")
    except OSError as error:
        complain(f"{step}: {error.strerror}")


def write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        os.fsencode(kind) or None,
        ctypes.c_ulong(flags),
        os.fsencode(data),
    )
    call(f"Failed to mount {kind or 'bind'}", result, target)


def build_root(plan: Plan) -> None:
    """Mount what bubblewrap's options say, in their order; then only that is there."""
    root = Root(plan["root"])
    mount("none", "/", "", MS_REC | MS_SLAVE)
    mount("hpcjet", root.path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    root.follow(plan["options"])
    if "--share-net" not in plan["options"]:
        loopback_up()
    try:
        write(f"{root.path}/proc/sys/user/max_user_namespaces", "0")
    except OSError:  # the seccomp filter holds namespaces back too
        pass
    os.chdir(root.path)
    machine = os.uname().machine
    call("pivot_root", _libc.syscall(PIVOT_ROOT[machine], b".", b"."))
    call("umount", _libc.umount2(b".", MNT_DETACH))
    os.chdir(root.folder)
    drop_capabilities(machine)
    become(plan, root.env)


class Root:
    """The file system of a sandbox while it is put together, and what its first program is to be told."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = "/"
        self.env: dict[str, str] = {}
        self._lowers: list[str] = []
        self._tmpfs: dict[str, str] = {}
        self._steps: dict[str, tuple[int, Callable[..., object]]] = {
            "--setenv": (2, self.env.__setitem__),
            "--hostname": (1, lambda name: call("sethostname", _libc.sethostname(name.encode(), len(name)))),
            "--chdir": (1, lambda folder: setattr(self, "folder", folder)),
            "--bind": (2, lambda source, at: bind(source, path + at, readonly=False)),
            "--ro-bind": (2, lambda source, at: bind(source, path + at, readonly=True)),
            "--ro-bind-try": (2, lambda source, at: bind(source, path + at, readonly=True, optional=True)),
            "--symlink": (2, lambda content, at: link(content, path + at)),
            "--dir": (1, lambda at: made(path + at)),
            "--proc": (1, lambda at: mount("proc", made(path + at), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)),
            "--dev": (1, lambda at: make_devices(made(path + at))),
            "--perms": (1, lambda mode: self._tmpfs.update(mode=mode)),
            "--size": (1, lambda size: self._tmpfs.update(size=size)),
            "--tmpfs": (1, self._mount_tmpfs),
            "--overlay-src": (1, lambda lower: self._lowers.insert(0, lower)),
            "--overlay": (3, self._mount_overlay),
            "--remount-ro": (1, lambda at: remount_readonly(path + at.rstrip("/"))),
            **dict.fromkeys(TAKEN_FOR_GRANTED, (0, lambda: None)),
        }

    def follow(self, options: Sequence[str]) -> None:
        words = iter(options)
        for option in words:
            if option not in self._steps:
                raise OSError(0, f"option {option} is not known here")
            num, step = self._steps[option]
            step(*[next(words) for _ in range(num)])

    def _mount_tmpfs(self, at: str) -> None:
        data = ",".join(f"{name}={value}" for name, value in {"mode": "0755", **self._tmpfs}.items())
        mount("tmpfs", made(self.path + at), "tmpfs", MS_NOSUID | MS_NODEV, data)
        self._tmpfs.clear()

    def _mount_overlay(self, upper: str, work: str, at: str) -> None:
        lowers = ":".join(escaped(lower) for lower in self._lowers)
        data = f"lowerdir={lowers},upperdir={escaped(upper)},workdir={escaped(work)},userxattr"
        mount("overlay", made(self.path + at), "overlay", MS_NOSUID | MS_NODEV, data)
        self._lowers.clear()


TAKEN_FOR_GRANTED = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"),
    *("--clearenv", "--share-net"),
)
"""Options that this program fulfils in any case."""


def escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def remount_readonly(target: str) -> None:
    mount("none", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | kept(target))


def kept(target: str) -> int:
    flags = os.statvfs(target).f_flag
    return sum(flag for shown, flag in MS_KEPT.items() if flags & shown)


def made(folder: str) -> str:
    os.makedirs(folder, mode=0o755, exist_ok=True)
    return folder


def link(content: str, path: str) -> None:
    made(os.path.dirname(path))
    os.symlink(content, path)


def bind(source: str, target: str, *, readonly: bool, optional: bool = False) -> None:
    if optional and not os.path.exists(source):
        return
    if os.path.isdir(source):
        made(target)
    else:
        made(os.path.dirname(target))
        if not os.path.lexists(target):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))
    mount(source, target, "", MS_BIND | MS_REC)
    for inner in mounts_below(os.path.realpath(target)):
        extra = MS_NOSUID | MS_NODEV | (MS_RDONLY if readonly else 0)
        mount("none", inner, "", MS_REMOUNT | MS_BIND | extra | kept(inner))


def mounts_below(target: str) -> list[str]:
    found = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            path = line.split(b" ")[4].decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape")
            if path == target or path.startswith(target + "/"):
                found.append(path)
    return found


def make_devices(dev: str) -> None:
    mount("tmpfs", dev, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        os.close(os.open(f"{dev}/{name}", os.O_WRONLY | os.O_CREAT, 0o644))
        mount(f"/dev/{name}", f"{dev}/{name}", "", MS_BIND)
    for name, content in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1")):
        os.symlink(content, f"{dev}/{name}")
    os.symlink("/proc/self/fd/2", f"{dev}/stderr")
    os.symlink("/proc/kcore", f"{dev}/core")
    os.mkdir(f"{dev}/pts")
    os.mkdir(f"{dev}/shm")
    mount("devpts", f"{dev}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    os.symlink("pts/ptmx", f"{dev}/ptmx")


def loopback_up() -> None:
    get, set_, up = 0x8913, 0x8914, 1
    control = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    flags = struct.unpack("16sH22x", fcntl.ioctl(control.fileno(), get, struct.pack("16sH22x", b"lo", 0)))[1]
    fcntl.ioctl(control.fileno(), set_, struct.pack("16sH22x", b"lo", flags | up))


def drop_capabilities(machine: str) -> None:
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for capability in range(last + 1):
        prctl(PR_CAPBSET_DROP, capability)
    header, nothing = struct.pack("=Ii", 0x2008_0522, 0), bytes(24)
    call("capset", _libc.syscall(CAPSET[machine], header, nothing))


# Landlock

FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Version: the rights over files that it knows."""
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
TCP, SCOPES = 3, 3
"""Binding and connecting; abstract sockets and signals of others."""


def restrict_files(plan: Plan) -> None:
    prctl(PR_SUBREAPER, 1)
    os.chdir("/")
    version = plan["landlock"]
    if version:
        prctl(PR_NO_NEW_PRIVS, 1)
        landlock(plan, version)
    become(plan, plan["env"])


def landlock(plan: Plan, version: int) -> None:
    known = FILES[max(each for each in FILES if each <= version)]
    net = TCP if version >= 4 and not plan["network"] else 0
    scopes = SCOPES if version >= 6 else 0
    fields = [known, net, scopes][: 1 if version < 4 else 2 if version < 6 else 3]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    rules = call("landlock", _libc.syscall(LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    reading = EXECUTE | READ_FILE | READ_DIR
    for names, rights in (
        (plan["read"], reading),
        (plan["write"], known),
        (plan["pipes"], (reading | WRITE_FILE | TRUNCATE | IOCTL) & ~EXECUTE),
    ):
        for name in names:
            allow(rules, name, rights & known)
    call("landlock", _libc.syscall(LANDLOCK_RESTRICT, rules, 0))


def allow(rules: int, name: str, rights: int) -> None:
    try:
        descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(name):
            rights &= ON_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        call("landlock", _libc.syscall(LANDLOCK_ADD, rules, 1, rule, 0), name)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
