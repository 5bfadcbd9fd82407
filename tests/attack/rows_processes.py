"""Attempts on processes: seeing, signalling, tracing and joining others, the command server, and what never ends."""
# ruff: noqa: E501 (scripts keep their lines)

from attack import LANDLOCK, REACHES, Attack

ROWS = (
    Attack(
        name="see-others", tries="processes outside, by their arguments", control=True, process=REACHES,
        script="cat /proc/[0-9]*/cmdline | has_secret && reached",
    ),
    Attack(
        name="environ-of-others", tries="the environment of every process in sight", control=True, process=REACHES,
        script="cat /proc/[0-9]*/environ 2>/dev/null | has_secret && reached",
    ),
    Attack(
        name="own-environment", tries="secrets that the caller has in its environment", control=True,
        script="env | has_secret && reached",
    ),
    Attack(
        name="inherited-descriptors", tries="files and pipes that the caller forgot to close", lang="python", script="""
own = os.open("/proc/self/fd", os.O_RDONLY)
for fd in os.listdir(own):
    if int(fd) > 2 and int(fd) != own: reached(fd, os.readlink(f"/proc/self/fd/{fd}"))
""",
    ),
    Attack(
        name="number-of-others", tries="processes that are not of this sandbox", process=REACHES,
        script='[ $(ls -d /proc/[0-9]* | wc -l) -gt 12 ] && reached; true',
    ),
    Attack(
        name="signal-by-number", tries="a signal to a process outside, by its number there", process=LANDLOCK,
        script='for s in USR1 TERM HUP INT KILL; do [ -d /proc/$VICTIM/task ] || kill -$s "$VICTIM"; done',
    ),
    Attack(
        name="signal-to-all", tries="killing everything that may be killed", process=REACHES,
        script="kill -USR1 -1; kill -TERM -1; kill -KILL -1",
    ),
    Attack(
        name="signals-to-the-server", tries="ending or stopping process 1 by every signal", lang="python", script="""
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
""", process=REACHES,
    ),
    Attack(
        name="trace-outside", tries="ptrace of a process outside", lang="python", process=LANDLOCK, script="""
victim = int(E["VICTIM"])
for request in (16, 0x4206):
    if call(101, request, victim, 0, 0) >= 0: reached(); call(101, 17, victim, 0, 0)
""",
    ),
    Attack(
        name="trace-the-server", tries="ptrace of process 1, to answer in its place", lang="python", script="""
for request in (16, 0x4206):
    if call(101, request, 1, 0, 0) >= 0: reached()
""",
    ),
    Attack(
        name="memory-of-the-server", tries="reading and writing the memory of process 1", lang="python", script="""
for path in ("/proc/1/mem", "/proc/1/maps", "/proc/1/auxv", "/proc/1/environ", "/proc/1/stack", "/proc/1/syscall"):
    try: open(path, "rb").read(1); reached(path)
    except OSError: pass
buf = ctypes.create_string_buffer(64)
local = struct.pack("PN", ctypes.addressof(buf), 64)
for remote in (0x400000, 0x555555554000):
    for number in (310, 311):
        if call(number, 1, local, 1, struct.pack("PN", remote, 64), 1, 0) > 0: reached()
""",
    ),
    Attack(
        name="pipes-of-the-server", tries="answering the host in place of the server", lang="python", script="""
for fd in range(10):
    for mode in (os.O_RDONLY | os.O_NONBLOCK, os.O_WRONLY | os.O_NONBLOCK):
        try: os.open(f"/proc/1/fd/{fd}", mode); reached(fd)
        except OSError: pass
pid = call(434, 1, 0)
for fd in range(10):
    if pid >= 0 and call(438, pid, fd, 0) >= 0: reached("pidfd_getfd", fd)
""",
    ),
    Attack(
        name="limits-of-the-server", tries="ending process 1 by limits that it cannot keep", lang="python", spoils=True,
        script="""
import resource
for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
    try: resource.prlimit(1, limit, (0, 0)); reached("prlimit")
    except OSError: pass
""",
    ),
    Attack(
        name="raise-limits", tries="more than the limits given: files, processes, core files, memory locks, priority",
        lang="python", script="""
import resource
for name in ("NOFILE", "NPROC", "FSIZE", "CORE", "RTPRIO"):
    limit = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(limit)
    if hard == resource.RLIM_INFINITY: continue
    try: resource.setrlimit(limit, (hard + 1, hard + 1)); reached(name)
    except (OSError, ValueError): pass
for do in (lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):
    try: do(); reached()
    except OSError: pass
""",
    ),
    Attack(
        name="first-to-be-spared", tries="being the last that the kernel kills when memory runs out", lang="python",
        script="""
if put("/proc/self/oom_score_adj", "-1000"): reached()
""",
    ),
    Attack(
        name="forged-exit-code", tries="exit code 0 for a command that failed", lang="python", script="""
for fd in range(3, 256):
    try: os.write(fd, b"0\\n"); reached(fd)
    except OSError: pass
print("0\\n0\\nready\\n", flush=True)
sys.exit(7)
""",
    ),
    Attack(
        name="parent-of-the-sandbox", tries="the processes above: by parent id, session, group, terminal", process=REACHES,
        lang="python", script="""
pid, seen = os.getpid(), set()
while pid and pid not in seen:
    seen.add(pid)
    pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
if 1 not in seen or len(seen) > 4: reached(sorted(seen))
for what in (os.getsid, os.getpgid):
    if what(0) == 0: reached("a session that is not of this sandbox")
""",
    ),
    Attack(
        name="namespaces-of-others", tries="joining the namespaces of processes outside", lang="python", script="""
import glob
for path in glob.glob(f"/proc/{E['VICTIM']}/ns/*") + glob.glob("/proc/1/ns/*") + glob.glob(f"/proc/{os.getppid()}/ns/*"):
    try: fd = os.open(path, os.O_RDONLY)
    except OSError: continue
    if call(308, fd, 0) == 0: reached(path)
pid = call(434, int(E["VICTIM"]), 0)
if pid >= 0 and call(308, pid, 0x7e020000) == 0: reached("pidfd")
""",
    ),
)  # fmt: skip
