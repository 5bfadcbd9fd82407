"""Attempts on the kernel: new namespaces, mounts, privileged calls, keys, settings, and parts that nobody needs."""
# ruff: noqa: E501 (scripts keep their lines)

from attack import LANDLOCK, REACHES, Attack

ROWS = (
    Attack(
        name="user-namespace", tries="root in a user namespace of its own", process=REACHES,
        script="unshare -Ur id -u | grep -qx 0 && reached",
    ),
    Attack(
        name="every-namespace", tries="every kind of namespace by unshare(2)", lang="python", process=REACHES, script="""
kinds = dict(mnt=0x20000, cgroup=0x2000000, uts=0x4000000, ipc=0x8000000, user=0x10000000, pid=0x20000000,
             net=0x40000000, time=0x80)
for name, flag in kinds.items():
    if call(272, flag) == 0: reached(name)
""",
    ),
    Attack(
        name="clone3-namespace", tries="a namespace by clone3(2), which older filters forget (CVE-2021-41133)", lang="c",
        process=REACHES, script=r"""
struct args { unsigned long flags, pidfd, child, parent, signal, stack, size, tls, set, set_size, cgroup; };
int main(void) {
  unsigned long kinds[] = {CLONE_NEWUSER, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID, CLONE_NEWPID, CLONE_NEWNET};
  for (int i = 0; i < 4; i++) {
    struct args a = {.flags = kinds[i], .signal = SIGCHLD};
    long pid = syscall(435, &a, sizeof a);
    if (pid == 0) _exit(0);
    if (pid > 0) { reached("clone3"); waitpid(pid, 0, 0); }
    pid = syscall(SYS_clone, kinds[i] | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) _exit(0);
    if (pid > 0) { reached("clone"); waitpid(pid, 0, 0); }
  }
}
""",
    ),
    Attack(
        name="nested-sandbox", tries="a sandbox in the sandbox, to be root over mounts in it", process=REACHES,
        script="command -v bwrap >/dev/null && bwrap --ro-bind / / --tmpfs /etc true && reached; true",
    ),
    Attack(
        name="uid-map", tries="another user id by the id maps", lang="python", script="""
for name in ("uid_map", "gid_map", "setgroups"):  # project ids count in the first user namespace alone
    for who in ("self", "1"):
        if put(f"/proc/{who}/{name}", "0 0 1"): reached(name)
""",
    ),
    Attack(
        name="become-another", tries="root or another user by setuid, setgroups and their kin", lang="python", script="""
for do in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0),
           lambda: os.setreuid(1, 1), lambda: os.initgroups("root", 0)):
    try: do(); reached(os.getresuid())
    except OSError: pass
""",
    ),
    Attack(
        name="capabilities", tries="any capability, or the loss of no-new-privileges", lang="python", script="""
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if int(status[name], 16): reached(name, status[name])
if status["NoNewPrivs"].strip() != "1": reached("new privileges")
if call(157, 38, 0, 0, 0, 0) == 0: reached("no-new-privileges taken back")
header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", 0xffffffff, 0xffffffff, 0, 0xff, 0xff, 0)
if call(126, header, data) == 0: reached("capset")
""", process=REACHES,
    ),
    Attack(
        name="mounts", tries="mounting, remounting, moving and unmounting", lang="c", script=r"""
int main(void) {
  if (!mount("none", "/tmp", "tmpfs", 0, 0)) reached("tmpfs");
  if (!mount("/usr", "/usr", 0, MS_REMOUNT | MS_BIND, 0)) reached("remount");
  if (!mount("/", "/tmp", 0, MS_BIND | MS_REC, 0)) reached("bind");
  if (!mount("proc", "/tmp", "proc", 0, 0)) reached("proc");
  if (!mount(0, "/", 0, MS_SHARED | MS_REC, 0)) reached("propagation");
  if (!umount2("/etc", MNT_DETACH) || !umount2("/proc", MNT_DETACH)) reached("umount");
  if (!chroot("/tmp")) reached("chroot");
  if (!syscall(SYS_pivot_root, "/tmp", "/tmp")) reached("pivot_root");
}
""",
    ),
    Attack(
        name="new-mount-calls", tries="the newer mount calls, which older filters forget", lang="python", script="""
fd = call(430, b"tmpfs", 0)
if fd >= 0: reached("fsopen")
tree = call(428, -100, b"/usr", 1)
if tree >= 0: reached("open_tree")
if call(428, -100, b"/etc", 0x8000) >= 0: reached("open_tree recursive")
if call(442, -100, b"/usr", 0, struct.pack("QQQQ", 0, 1, 0, 0), 32) == 0: reached("mount_setattr")
if call(429, -100, b"/usr", -100, b"/tmp", 0) == 0: reached("move_mount")
if call(433, -100, b"/usr", 0) >= 0: reached("fspick")
""",
    ),
    Attack(
        name="cgroup-release-agent", tries="a command run by the host when a control group empties (CVE-2022-0492)",
        script="""mkdir -p /tmp/cg && { mount -t cgroup -o rdma x /tmp/cg || mount -t cgroup2 x /tmp/cg; } 2>/dev/null && reached
        unshare -UrmC sh -c 'mount -t cgroup -o memory x /tmp/cg' 2>/dev/null && reached
        grep -vE ':/(hpcjet-sandbox-[0-9-]+)?$' /proc/self/cgroup | grep . && reached its place in the tree of control groups; true""",
        process=REACHES,
    ),
    Attack(
        name="core-pattern", tries="a command run by the host when a process crashes, and a core file", lang="python",
        script="""
import resource
for path in ("core_pattern", "core_uses_pid", "core_pipe_limit"):
    try: open("/proc/sys/kernel/" + path, "w"); reached(path)
    except OSError: pass
try: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20)); reached("limit")
except (OSError, ValueError): pass
os.chdir("/tmp")
pid = os.fork()
if pid == 0: os.kill(os.getpid(), signal.SIGSEGV)
if os.WCOREDUMP(os.waitpid(pid, 0)[1]): reached("a core was written")
""",
    ),
    Attack(
        name="settings", tries="every setting of the kernel in /proc/sys that is not of this sandbox alone", lang="python",
        script="""
# Of the sandbox's own namespaces: message queues, semaphores, shared memory, process ids.
own = ("fs/mqueue/", "kernel/auto_msgmni", "kernel/msg", "kernel/sem", "kernel/shm", "kernel/ns_last_pid",
       "kernel/pid_max", "net/", "user/")
for folder, _, names in os.walk("/proc/sys"):
    for name in names:
        path = os.path.join(folder, name)
        if path[len("/proc/sys/"):].startswith(own): continue
        try: os.close(os.open(path, os.O_WRONLY)); reached(path)
        except OSError: pass
for path in ("/proc/sysrq-trigger", "/proc/mtrr", "/proc/irq/default_smp_affinity", "/proc/acpi/wakeup", "/proc/pressure/cpu"):
    try: os.close(os.open(path, os.O_WRONLY)); path.endswith("cpu") or reached(path)
    except OSError: pass
""",
    ),
    Attack(
        name="kernel-memory", tries="memory, log, symbols and timers of the kernel", lang="python", script="""
for path in ("/proc/kcore", "/proc/kmsg", "/proc/kpagecount", "/proc/kpageflags", "/proc/vmallocinfo", "/proc/iomem"):
    try:
        data = open(path, "rb").read(4096)
        if path != "/proc/iomem" or b"00000000-00000000" not in data and data: reached(path)
    except OSError: pass
symbols = open("/proc/kallsyms").read(4096)
if symbols and any(int(line.split()[0], 16) for line in symbols.splitlines()[:20]): reached("addresses of symbols")
""", process=REACHES,
    ),
    Attack(
        name="kernel-log", tries="the log of the kernel by syslog(2)", lang="python", script="""
buf = ctypes.create_string_buffer(4096)
for action in (3, 2):
    if call(103, action, buf, 1) > 0: reached(action)
""", process=REACHES,
    ),
    Attack(
        name="session-keyring", tries="keys of the user's login, such as Kerberos tickets", lang="python", script="""
buf = ctypes.create_string_buffer(200)
for ring in (-3, -4, -5, -1, -2):
    key = call(250, 10, ring, b"user", b"hpcjet-attack", 0)
    if key > 0 and call(250, 11, key, buf, 200) > 0: reached(ring, buf.value[:3])
    if ring == -3 and call(250, 6, ring, buf, 200) > 0: print(buf.value)
""", control=True, process=REACHES,
    ),
    Attack(
        name="leave-a-key", tries="a key that the next attempt, or the user, would find", lang="python", script="""
for ring in (-3, -4, -5):
    if call(248, b"user", b"hpcjet-left", b"x", 1, ring) > 0: reached(ring)
""", process=REACHES,
    ),
    Attack(
        name="bpf", tries="a program in the kernel by bpf(2)", lang="python", script="""
attributes = struct.pack("IIQQ", 1, 2, 0, 0) + bytes(48)
for command in (0, 5):
    if call(321, command, attributes, 72) >= 0: reached(command)
if call(321, 0, struct.pack("IIII", 2, 4, 4, 1) + bytes(56), 72) >= 0: reached("a map")
""", process=REACHES,
    ),
    Attack(
        name="perf", tries="counters of other processes, the kernel and all CPUs", lang="python", script="""
attributes = struct.pack("IIQ", 1, 112, 0) + bytes(96)
for pid, cpu in ((-1, 0), (1, -1), (int(E["VICTIM"]), -1)):
    if call(298, attributes, pid, cpu, -1, 0) >= 0: reached(pid, cpu)
""", process=REACHES,
    ),
    Attack(
        name="perf-of-itself", tries="perf_event_open(2) at all, a part of the kernel with many past holes", lang="python",
        script="""
if call(298, struct.pack("IIQ", 1, 112, 0) + bytes(96), 0, -1, -1, 0) >= 0: reached()
if call(298, struct.pack("IIQ", 1, 112, 0) + bytes(24) + struct.pack("Q", 0x60) + bytes(64), 0, -1, -1, 0) >= 0: reached()
""", process=REACHES,
    ),
    Attack(
        name="userfaultfd", tries="userfaultfd(2), with which races in the kernel are won", lang="python", script="""
for flags in (0, 1):
    if call(323, flags) >= 0: reached(flags)
""", process=REACHES,
    ),
    Attack(
        name="io-uring", tries="io_uring, which goes around filters of system calls", lang="python", script="""
if call(425, 4, ctypes.create_string_buffer(200)) >= 0: reached()
""", process=REACHES,
    ),
    Attack(
        name="privileged-calls", tries="calls that only root may make", lang="python", script="""
calls = dict(reboot=(169, 0xfee1dead, 672274793, 0, 0), swapon=(167, b"/tmp/x", 0), swapoff=(168, b"/tmp/x"),
    acct=(163, b"/tmp/acct"), sethostname=(170, b"mine", 4), setdomainname=(171, b"mine", 4), init_module=(175, 0, 0, b""),
    finit_module=(313, 0, b"", 0), delete_module=(176, b"ext4", 0), kexec_load=(246, 0, 0, 0, 0), iopl=(172, 3),
    ioperm=(173, 0, 1, 1), settimeofday=(164, struct.pack("qq", 1, 0), 0), clock_settime=(227, 0, struct.pack("qq", 1, 0)),
    quotactl=(179, 0x800001 << 8, b"/dev/vda", 0, 0), fanotify_init=(300, 0, 0), vhangup=(153,), nfsservctl=(180,),
    lookup_dcookie=(212, 0, 0, 0), migrate_pages=(256, 1, 0, 0, 0), kcmp=(312, 1, os.getpid(), 0, 0, 0))
for name, arguments in calls.items():
    if call(*arguments) >= 0: reached(name)
""",
    ),
    Attack(
        name="shared-memory", tries="System V shared memory of other processes", lang="python", control=True, script="""
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(int(E["SYSV"]), 4096, 0)
if segment >= 0 and ctypes.string_at(libc.shmat(segment, None, 0), 4) == b"hj5e"[:4]: reached()
if any(line.split()[0] == E["SYSV"] for line in open("/proc/sysvipc/shm").readlines()[1:]): reached()
""", process=REACHES,
    ),
    Attack(
        name="message-queues", tries="POSIX message queues of other processes", lang="python", control=True, script="""
queue = libc.mq_open(E["MQ"].encode(), os.O_RDWR)
if queue >= 0: reached()
""", process=REACHES,
    ),
    Attack(
        name="terminal-input", tries="keys typed into the caller's terminal (CVE-2017-5226)", lang="python", script="""
for name in ("/dev/tty", E["PTY"], "/dev/console", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2"):
    try: fd = os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError: continue
    for letter in b"id\\n":
        try: fcntl.ioctl(fd, 0x5412, bytes([letter])); reached("TIOCSTI", name)
        except OSError: pass
    try: fcntl.ioctl(fd, 0x541c, b"\\2"); reached("TIOCLINUX", name)
    except OSError: pass
    try: fcntl.ioctl(fd, 0x540e, 1); reached("TIOCSCTTY", name)
    except OSError: pass
""", process=LANDLOCK,
    ),
    Attack(
        name="terminal-output", tries="writing to the caller's terminal", process=LANDLOCK,
        script="""echo spoiled >/dev/tty; for t in /dev/pts/*; do [ -c $t ] && timeout 1 sh -c "echo spoiled >$t"; done; true""",
    ),
    Attack(
        name="terminal-of-its-own", tries="typing by TIOCSTI even into a terminal that it made", lang="python", script="""
import pty
pid, master = pty.fork()
if pid == 0:
    try: fcntl.ioctl(0, 0x5412, b"x"); print("typed")
    except OSError: pass
    os._exit(0)
os.waitpid(pid, 0)
try:
    if b"typed" in os.read(master, 100): reached()
except OSError: pass
""", process=REACHES,
    ),
    Attack(
        name="hidden-argument-block", tries="a second view of the caller's memory files and of bwrap's options", lang="python",
        script="""
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if "memfd:" in os.readlink(f"/proc/{pid}/fd/{fd}"): reached(pid, fd)
        if b"--args" in open(f"/proc/{pid}/cmdline", "rb").read(): reached(pid)
    except OSError: pass
""", process=REACHES,
    ),
    Attack(
        name="time", tries="another time for everybody, or a time namespace", lang="python", script="""
try: time.clock_settime(time.CLOCK_REALTIME, 0); reached()
except OSError: pass
if put("/proc/self/timens_offsets", "monotonic 100000 0"): reached("time namespace")
class Timex(ctypes.Structure): _fields_ = [("modes", ctypes.c_uint), ("rest", ctypes.c_byte * 400)]
if libc.adjtimex(ctypes.byref(Timex(modes=1))) >= 0: reached("adjtimex")
""",
    ),
)  # fmt: skip
