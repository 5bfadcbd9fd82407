"""The system calls that a sandbox goes without. Numbers: Linux's tables of x86_64 and of aarch64 (asm-generic)."""

import errno
from dataclasses import dataclass

TIOCSTI, TIOCLINUX = 0x5412, 0x541C
CLONE_NAMESPACES = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
"""mount, cgroup, uts, ipc, user, pid and network namespaces."""
SHM_TOO_LARGE = 0xFFFF_FFFF_FFFF_0000
"""Bits of a size of 64 KiB and more."""
AF_UNIX, AF_RXRPC, AF_VSOCK = 1, 33, 40

NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "msgget": (68, 186),
    "move_pages": (279, 239),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "shmget": (29, 194),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "uselib": (134, None),
    "vhangup": (153, 58),
}
"""Name: number on x86_64, number on aarch64."""


@dataclass(frozen=True)
class Rule:
    """One call that answers with an error, always or by one of its arguments (any_bit: all of it; else 32 bits)."""

    name: str
    error: int
    argument: int | None = None
    any_bit: int = 0
    """With `argument`: refused if one of these bits is set ..."""
    one_of: tuple[int, ...] = ()
    """... or if it is one of these ..."""
    none_of: tuple[int, ...] = ()
    """... or if it is none of these."""


UNKNOWN_TO_THE_KERNEL = (
    # Programs that meet ENOSYS take an older way. clone3 above all: its flags lie where a filter cannot look, and the
    # C library then uses clone.
    *("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
)
REFUSED = (
    *("mount", "umount2", "pivot_root", "setns", "unshare", "open_by_handle_at"),  # another view of the node
    *("add_key", "keyctl", "request_key"),  # keys are not held per namespace
    *("bpf", "perf_event_open", "userfaultfd", "fanotify_init", "lookup_dcookie"),  # much kernel for little use
    *("pidfd_getfd", "process_madvise", "kcmp", "move_pages", "migrate_pages"),  # hands on other processes
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "uselib"),
    *("acct", "quotactl", "quotactl_fd", "swapon", "swapoff", "syslog", "vhangup", "nfsservctl"),
    *("clock_settime", "clock_adjtime", "settimeofday", "sethostname", "setdomainname"),
    *("ioperm", "iopl", "modify_ldt"),
)
BASE = (
    *(Rule(name, errno.ENOSYS) for name in UNKNOWN_TO_THE_KERNEL),
    *(Rule(name, errno.EPERM) for name in REFUSED),
    # Memory that belongs to no process, so nobody could count it. Databases use a small piece of it as a lock; there
    # can be 4096 of them.
    Rule("shmget", errno.EINVAL, argument=1, any_bit=SHM_TOO_LARGE),
    Rule("msgget", errno.ENOSYS),
    Rule("clone", errno.EPERM, argument=0, any_bit=CLONE_NAMESPACES),
    # A limit that process 1 cannot keep would end the sandbox. 0 is the caller; of -1 the kernel itself says ESRCH.
    Rule("prlimit64", errno.EPERM, argument=0, none_of=(0, 0xFFFF_FFFF)),
    # Typing into the terminal of whoever started the run.
    Rule("ioctl", errno.EPERM, argument=1, one_of=(TIOCSTI, TIOCLINUX)),
    # The only families that no network namespace holds back; AF_VSOCK reaches the host of a virtual machine.
    Rule("socket", errno.EAFNOSUPPORT, argument=0, one_of=(AF_RXRPC, AF_VSOCK)),
)
"""For every kind of sandbox. CPython's own tests need none of them."""
SHARED_PROCESSES = tuple(Rule(name, errno.EPERM) for name in ("ptrace", "process_vm_readv", "process_vm_writev"))
"""On top where a sandbox has no process namespace of its own."""
SHARED_NETWORK = (
    Rule("socket", errno.EAFNOSUPPORT, argument=0, none_of=(AF_UNIX,)),
    # Sockets in the file system are the way to munge, D-Bus and SSH agents, and Landlock does not know them.
    Rule("connect", errno.EACCES),
)
"""Network "none" where a sandbox has no network namespace of its own. Socket pairs work."""
