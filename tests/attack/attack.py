"""What one attempt to break out is, and what it finds prepared."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STOPPED = "stopped"
"""Nothing outside is reached: not read, not changed, not signalled, not heard."""
REACHES = "reaches"
"""This backend does not promise to stop it, as docs/sandbox.md says."""
LANDLOCK = "landlock"
"""Stopped where the kernel has Landlock, which a backend without namespaces relies on."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A row of the suite. A script says REACHED (see the preludes) when it got what it is after.

    Whatever it says, the things outside are looked at after each row: see estate.py.
    """

    name: str
    tries: str
    script: str
    lang: str = "bash"
    """bash, python or c."""
    bwrap: str = STOPPED
    process: str = STOPPED
    control: bool = False
    """Whether the same script must reach its aim outside of any sandbox: then it is proven to be able to."""
    timeout_s: float = 20.0
    waits_for: str = ""
    """What the sandbox still lacks to stop it; empty when it has it."""
    spoils: bool = False
    """Whether its sandbox is not fit for another row, stopped or not."""
    after: Callable[[Any], str] | None = None
    """Looks at the host after the row; what it says was reached, empty if nothing."""


BASH = r"""
reached() { echo "REACHED $*"; }
has_secret() { grep -aq 'hj5ecre[t]:' 2>/dev/null; }
"""

PYTHON = r"""
import ctypes, errno, fcntl, os, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
E = os.environ
def reached(*what): print("REACHED", *what, flush=True)
def call(*a):
    "A system call: its result, or minus the error number."
    a = [ctypes.c_char_p(x) if isinstance(x, bytes) else ctypes.c_long(x) if isinstance(x, int) else x for x in a]
    r = libc.syscall(*a)
    return -ctypes.get_errno() if r == -1 else r
def put(path, text):
    "Write to a file of the kernel's; whether it took it."
    try:
        fd = os.open(path, os.O_WRONLY)
        try: return os.write(fd, text.encode()) > 0
        finally: os.close(fd)
    except OSError: return False
def attempt(do, *a):
    "The result, or None where the system says no."
    try: return do(*a)
    except OSError as e: print("no:", e)
"""

C = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void reached(const char *what) { printf("REACHED %s\n", what); fflush(stdout); }
"""


def command(attack: Attack) -> tuple[str, bytes]:
    """The command line and its stdin."""
    if attack.lang == "python":
        return "/usr/bin/python3 -", (PYTHON + attack.script).encode()
    if attack.lang == "c":
        build = "cd $(mktemp -d) && gcc -w -x c -o attack - -lpthread && exec ./attack"
        return build, (C + attack.script).encode()
    return BASH + attack.script, b""
