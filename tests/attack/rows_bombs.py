"""Attempts to use up what the node has: each in a sandbox of its own, while a neighbour goes on answering."""
# ruff: noqa: E501 (scripts keep their lines)

from collections.abc import Mapping
from dataclasses import dataclass, field

from attack import REACHES, Attack

MIB = 1 << 20
WATCHED = {"memory_bytes": 200 * MIB, "processes": 100}


@dataclass(frozen=True, kw_only=True)
class Bomb(Attack):
    """`ends`: how the command may end: the name of a limit, `timeout`, or `code` (by itself)."""

    ends: tuple[str, ...]
    limits: Mapping[str, int] = field(default_factory=lambda: WATCHED)
    everywhere: bool = False
    """Whether the kind of sandbox, or who hpcjet runs as, may make a difference; else the usual field will do."""
    most_bytes: int = 0
    """What the command may at most report as used up (its last line); 0: it reports nothing."""


ROWS = (
    Bomb(
        everywhere=True, name="fork-bomb", tries="processes without end", ends=("processes", "timeout"), timeout_s=5,
        script="bomb() { bomb | bomb & }; bomb; sleep 1000",
    ),
    Bomb(
        name="fork-ring", tries="processes that fork and exit in turns, so that none is there when it is looked for",
        ends=("timeout", "processes"), timeout_s=1, lang="c", script=r"""
int main(void) { for (int i = 0; i < 8; i++) if (!fork()) for (;;) { if (fork()) _exit(0); setsid(); } pause(); }
""",
    ),
    Bomb(
        name="thread-bomb", tries="threads without end", ends=("processes",), lang="python", timeout_s=10, script="""
threading.stack_size(1 << 16)
while True:
    try: threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    except RuntimeError: time.sleep(0.01)
""",
    ),
    Bomb(
        name="zombies", tries="processes that have ended and that nobody collects", ends=("processes",), lang="python",
        timeout_s=10, script="""
while True:
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: time.sleep(0.01)
""",
    ),
    Bomb(
        everywhere=True, name="memory-bomb", tries="memory without end", ends=("memory",), lang="python", timeout_s=20, script="""
x = []
while True: x.append(bytearray(b"1" * (1 << 20))); time.sleep(0.002)
""",
    ),
    Bomb(
        name="memory-of-many", tries="memory in small parts, in many processes", ends=("memory",), lang="python",
        timeout_s=20, script="""
for _ in range(30):
    if os.fork() == 0: x = bytearray(b"1" * (20 << 20)); time.sleep(1000)
    time.sleep(0.05)
time.sleep(1000)
""",
    ),
    Bomb(
        name="memory-in-the-background", tries="memory in a daemon, after its command has ended", ends=("code",),
        script="""(setsid /usr/bin/python3 -c '
import time
x = []
while True: x.append(bytearray(b"1" * (1 << 20))); time.sleep(0.002)' >/dev/null 2>&1 &)
        sleep 0.1""",
    ),
    Bomb(
        everywhere=True, name="memory-files", tries="memory in files without a name, which no process maps", lang="python", timeout_s=20,
        ends=("memory",), script="""
files = []
for _ in range(60):
    files.append(os.memfd_create("x")); os.write(files[-1], bytes(16 << 20)); time.sleep(0.02)
time.sleep(3)
""",
    ),
    Bomb(
        name="memory-files-hidden", tries="the same, while other descriptors come and go all the time", lang="python",
        timeout_s=20, ends=("memory",), script="""
def flicker():
    while True: os.close(os.open("/dev/null", os.O_RDONLY))
threading.Thread(target=flicker, daemon=True).start()
files = []
for _ in range(60):
    files.append(os.memfd_create("x")); os.write(files[-1], bytes(16 << 20)); time.sleep(0.02)
time.sleep(5)
""",
    ),
    Bomb(
        everywhere=True, name="shared-memory-bomb", tries="System V shared memory, which stays when no process has it", lang="python",
        timeout_s=20, ends=("memory", "code"), most_bytes=200 * MIB, script="""
libc.shmat.restype, used = ctypes.c_void_p, 0
for _ in range(60):
    segment = libc.shmget(0, 16 << 20, 0o1600)
    if segment < 0: break
    place = libc.shmat(segment, None, 0)
    ctypes.memset(place, 1, 16 << 20); libc.shmdt(ctypes.c_void_p(place)); used += 16 << 20; time.sleep(0.02)
time.sleep(1)
print(used)
""",
    ),
    Bomb(
        everywhere=True, name="tmpfs-bomb", tries="/dev/shm full of data", ends=("code", "memory"), most_bytes=101 * MIB,
        script="head -c 400M /dev/zero >/dev/shm/x; stat -c %s /dev/shm/x",
    ),
    Bomb(
        everywhere=True, name="root-bomb", tries="the file system of the root, which is memory", ends=("code",), most_bytes=0,
        script="for d in / /dev /run /home /var /etc /proc; do head -c 1M /dev/zero >$d/x && reached $d; done 2>/dev/null; true",
    ),
    Bomb(
        name="file-bomb", tries="one endless file, and one with a hole", ends=("code",), limits={"file_bytes": MIB},
        most_bytes=MIB,
        script="head -c 100M /dev/zero >/tmp/x; truncate -s 1T /tmp/hole && reached; stat -c %s /tmp/x",
    ),
    Bomb(
        everywhere=True, name="disk-bomb", tries="many files, each below the limit of one", ends=("disk",), limits={"disk_bytes": 50 * MIB},
        script="for i in $(seq 60); do head -c 4M /dev/zero >/tmp/f$i; sleep 0.1; done",
    ),
    Bomb(
        name="disk-bomb-far-down", tries="the same at the end of 300 folders in each other", ends=("disk",), lang="python",
        limits={"disk_bytes": 50 * MIB}, script="""
os.chdir("/tmp")
for _ in range(300): os.mkdir("d"); os.chdir("d")
for i in range(60): open(str(i), "wb").write(bytes(4 << 20)); time.sleep(0.1)
""",
    ),
    Bomb(
        name="disk-bomb-among-many", tries="the same among 1500 folders beside each other, which use up who counts", lang="python",
        ends=("disk",), limits={"disk_bytes": 50 * MIB}, script="""
for i in range(1500): os.mkdir(f"/tmp/{i}")
for i in range(60): open(f"/tmp/{i * 25}/x", "wb").write(bytes(4 << 20)); time.sleep(0.1)
""", after=lambda field: "" if field.descriptors() < 200 else f"the runner holds {field.descriptors()} descriptors",
    ),
    Bomb(
        name="disk-without-names", tries="files that are removed while they are open", ends=("disk",), lang="python",
        limits={"disk_bytes": 50 * MIB}, script="""
files = []
for i in range(60):
    files.append(open("/tmp/x", "wb")); os.unlink("/tmp/x"); files[-1].write(bytes(4 << 20)); files[-1].flush(); time.sleep(0.1)
time.sleep(5)
""",
    ),
    Bomb(
        name="inode-bomb", tries="empty files without end", ends=("files",), limits={"disk_files": 2000}, lang="python",
        script="""
for i in range(100000): open(f"/tmp/{i}", "w").close(); i % 100 or time.sleep(0.02)
""",
    ),
    Bomb(
        name="inode-bomb-in-memory", tries="empty files without end in /dev/shm", ends=("files",), lang="python",
        limits={"disk_files": 2000}, script="""
for i in range(100000): open(f"/dev/shm/{i}", "w").close(); i % 100 or time.sleep(0.02)
""",
    ),
    Bomb(
        name="cpu-seconds", tries="more CPU time than it has, in parts", ends=("cpu",), limits={"cpu_s": 1}, timeout_s=40,
        script="while :; do (for i in $(seq 20000); do :; done); done",
    ),
    Bomb(
        name="output-bomb", tries="10 GB of output", ends=("code",), timeout_s=60, script="head -c 10G /dev/zero",
        limits={},
    ),
    Bomb(
        name="background-output", tries="output without end by a process in the background", ends=("code",),
        script="(yes & yes & yes &); true",
    ),
    Bomb(
        name="descriptor-bomb", tries="open files without end, and more of them on their way through a socket",
        ends=("code",), lang="python", limits={"open_files": 500}, script="""
import array
files, sent = [], 0
try:
    while len(files) < 10000: files.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
for fd in files[:10]: os.close(fd)
a, b = socket.socketpair()
a.setblocking(False)
try:
    while sent < 10000: a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files[10:200]))]); sent += 190
except OSError: pass
if len(files) > 500 or sent > 5000: reached(len(files), sent)
""",
    ),
    Bomb(
        name="cpu-bomb", tries="every CPU, by many processes", ends=("timeout",), timeout_s=3,
        script="for i in $(seq 60); do (while :; do :; done) & done; wait",
    ),
    Bomb(
        everywhere=True, name="deaf", tries="ignoring every signal, SIGTERM first", ends=("timeout",), timeout_s=1, lang="python", script="""
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
time.sleep(1000)
""",
    ),
    Bomb(
        name="stopped", tries="stopping itself, its parent and its children", ends=("timeout",), timeout_s=1,
        script="sleep 1000 & kill -STOP $!; kill -STOP 0; kill -STOP $$; sleep 1000",
    ),
    Bomb(
        everywhere=True, name="parent-in-vfork", tries="a parent that waits without end for its vfork", ends=("timeout",), timeout_s=1,
        lang="c", script="int main(void) { if (!vfork()) for (;;) pause(); }",
    ),
    Bomb(
        name="traced", tries="children that are traced and stopped by their tracer", ends=("timeout",), timeout_s=1,
        lang="c", script="""
int main(void) { for (int i = 0; i < 5; i++) if (!fork()) { ptrace(PTRACE_TRACEME, 0, 0, 0); raise(SIGSTOP); for (;;) pause(); }
  for (;;) pause(); }
""",
    ),
    Bomb(
        everywhere=True, name="daemons", tries="daemons that detached themselves in every way", ends=("code",), lang="python", script="""
for way in range(12):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        call(157, 36, 1, 0, 0, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for fd in range(3): os.dup2(os.open("/dev/null", os.O_RDWR), fd)
        os.chdir("/")
        while True: time.sleep(1000)
""",
    ),
    Bomb(
        everywhere=True, name="sibling-of-the-command", tries="a child that becomes the server's by CLONE_PARENT", ends=("timeout",),
        timeout_s=1, lang="c", script="int main(void) { syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0); for (;;) pause(); }",
    ),
    Bomb(
        name="watchers", tries="every inotify instance that the user may have", ends=("code",), lang="python",
        waits_for="the kernel: it counts them per user, not per sandbox (docs/sandbox.md, residual risks)",
        process=REACHES, script="""
watchers = []
while len(watchers) < 4000:
    fd = libc.inotify_init1(0)
    if fd < 0: break
    watchers.append(fd)
if os.fork() == 0: time.sleep(1000)
""", after=lambda field: "" if field.can_watch() else "the neighbour gets no inotify instance any more",
    ),
)  # fmt: skip
