"""Attempts on files: paths, links, devices, privileges kept in files."""
# ruff: noqa: E501 (scripts keep their lines)

import os

from attack import LANDLOCK, REACHES, Attack


def left_in_the_upper(field: object) -> str:
    """An overlay's own attributes, written by a command, would have the next mount follow them."""
    upper = field.scratch / field.shared() / "upper/folder"  # type: ignore[attr-defined]
    if field.way == "copy":  # type: ignore[attr-defined]
        return ""
    try:
        found = os.getxattr(upper, "user.overlay.redirect")
    except OSError:
        return ""
    return f"the upper layer has a redirect to {found!r}"


def others_may_run(field: object) -> str:
    """A setuid program of the user's must not lie where others can get at it."""
    scratch = field.scratch / field.shared()  # type: ignore[attr-defined]
    if field.mode == "ordinary" and scratch.stat().st_mode & 0o077:  # type: ignore[attr-defined]
        return f"{scratch} is open to others"
    return ""


ROWS = (
    Attack(
        name="read-by-path", tries="a file of the user's, by its path", control=True,
        script='cat "$FILE" | has_secret && reached', process=LANDLOCK,
    ),
    Attack(
        name="dot-dot", tries="a path that climbs above the root", control=True, process=LANDLOCK,
        script='cat "/usr/../../../../../../..$FILE" "/testbed/../..$FILE" "/tmp/../../..$FILE" | has_secret && reached',
    ),
    Attack(
        name="symlink-read", tries="a link in the writable tree to a file outside", control=True, process=LANDLOCK,
        script='l=$(mktemp -u); ln -s "$FILE" $l; cat $l | has_secret && reached; rm -f $l',
    ),
    Attack(
        name="symlink-write", tries="writing through a link to a file outside", process=LANDLOCK,
        script='ln -sf "$OPEN/canary" /tmp/w; echo spoiled >/tmp/w; ln -sfn "$OPEN" /tmp/d; echo x >/tmp/d/new',
    ),
    Attack(
        name="world-writable-folder", tries="a folder that everybody may write", process=LANDLOCK,
        script='echo x >"$OPEN/new"; mkdir "$OPEN/folder"; rm -f "$OPEN/canary"',
    ),
    Attack(
        name="home", tries="keys and passwords in the home folder", control=True, process=LANDLOCK,
        script='cat "$ESTATE"/home/.ssh/id_* "$ESTATE/home/.netrc" | has_secret && reached',
    ),
    Attack(
        name="run-directory", tries="results and secrets of the run", control=True, process=LANDLOCK,
        script='cat "$ESTATE"/run/results/* "$ESTATE"/run/.secrets/* | has_secret && reached',
    ),
    Attack(
        name="search-everything", tries="a secret in any file that can be read", process=LANDLOCK,
        script="grep -rlaIs --exclude-dir=proc --exclude-dir=usr --exclude-dir=opt 'hj5ecre[t]:' / | grep . && reached",
    ),
    Attack(
        name="proc-root", tries="the root, the folder or the files of another process, through /proc", control=True,
        script="""for p in /proc/[0-9]*; do
            for f in "$p/root$FILE" "$p/cwd/../secret" $p/fd/*; do timeout 1 head -c 100 "$f" | has_secret && reached $f && exit; done
        done 2>/dev/null""", process=REACHES,
    ),
    Attack(
        name="base-tree", tries="changing the tree that attempts share", process=LANDLOCK,
        script='echo x >>/testbed/a.txt; rm -rf /testbed/folder; echo x >"$HOST_TREE/a.txt"; chmod 777 /testbed',
    ),
    Attack(
        name="public-folder", tries="changing a folder that is shown read-only", process=LANDLOCK,
        script='for f in /data/public/readable "$ESTATE/public/readable"; do echo x >$f; rm -f $f; done',
    ),
    Attack(
        name="modes-and-times", tries="modes, times and attributes of what is shown read-only", process=REACHES,
        script="""for f in /data/public/readable "$ESTATE/public/readable" "$HOST_TREE/a.txt" "$OPEN/canary"; do
          chmod 666 $f; touch -d 1990-01-01 $f && [ $f = /data/public/readable ] && reached; done; true""",
    ),
    Attack(
        name="hard-link", tries="a second name for a file that is shown read-only, in a folder that can be written",
        script="ln /data/public/readable /tmp/hard && reached; ln /usr/bin/env ~/hard && reached", process=REACHES,
    ),
    Attack(
        name="rename-across", tries="moving a read-only file, or a mount point",
        script="mv /data/public/readable /tmp/r && reached; mv /data/public /tmp/p && reached; mv /etc /tmp/e && reached",
        process=LANDLOCK,
    ),
    Attack(
        name="open-by-handle", tries="any file of the file system by its handle (the escape from Docker called shocker)",
        lang="python", script="""
handle = struct.pack("II", 8, 1) + struct.pack("Q", 2) + bytes(120)
fd = os.open("/data/public/readable" if os.path.exists("/data") else "/tmp", os.O_RDONLY)
if call(304, fd, ctypes.c_char_p(handle), os.O_RDONLY) >= 0: reached()
""",
    ),
    Attack(
        name="overlay-redirect", tries="the overlay's own attributes, to have the next mount show another folder",
        lang="python", after=left_in_the_upper, script="""
for name, value in (("redirect", b"/../../etc"), ("opaque", b"y"), ("metacopy", b""), ("origin", b"x" * 30)):
    for space in ("user.overlay.", "trusted.overlay."):
        for path in ("/testbed/folder", "/testbed/a.txt"):
            try: os.setxattr(path, space + name, value)
            except OSError: pass
""",
    ),
    Attack(
        name="whiteout", tries="a device node that an overlay takes for a deletion, and others", lang="python", script="""
for kind, device in ((0o020000, (0, 0)), (0o020000, (1, 1)), (0o060000, (8, 0)), (0o060000, (254, 0))):
    try: os.mknod(f"/tmp/node{device[0]}-{device[1]}", kind | 0o666, os.makedev(*device))
    except OSError: continue
    if device != (0, 0): reached(device)
""",
    ),
    Attack(
        name="devices", tries="disks, memory, kernel log, KVM, FUSE, tun and terminals of the host",
        script="""for d in /dev/mem /dev/kmem /dev/port /dev/kmsg /dev/sd* /dev/vd* /dev/nvme* /dev/loop* /dev/kvm /dev/fuse \
            /dev/net/tun /dev/console /dev/tty0 /dev/tty1 /dev/vcs* /dev/hvc0 /dev/ttyS0 /dev/uinput /dev/btrfs-control \
            /dev/mapper/control /dev/vhost-vsock /dev/vsock /dev/snapshot /dev/rtc0 /dev/watchdog; do
          [ -e $d ] && (exec 3<$d) 2>/dev/null && reached $d
        done; ls /dev | grep -vxE 'console|core|fd|full|null|ptmx|pts|random|shm|std(in|out|err)|tty|urandom|zero' && reached""",
        process=REACHES,
    ),
    Attack(
        name="host-shm", tries="shared memory files of the host", control=True,
        script='cat "$SHM" /dev/shm/* | has_secret && reached', process=LANDLOCK,
    ),
    Attack(
        name="fifo", tries="a pipe that another process reads", process=LANDLOCK,
        script='[ -p "$OPEN/fifo" ] && echo hello >"$OPEN/fifo"',
    ),
    Attack(
        name="setuid-root-programs", tries="every setuid program that is there, and one of root's in a mount",
        script="""[ -u /data/public/suid-id ] && [ $(/data/public/suid-id -u) = 0 ] && reached
        for p in $(find / -xdev -perm /6000 -type f 2>/dev/null | head -50); do :; done
        su -c id root </dev/null | grep -q uid=0 && reached; sudo -n id 2>/dev/null | grep -q uid=0 && reached
        mount -t tmpfs x /tmp 2>/dev/null && reached; true""",
    ),
    Attack(
        name="capabilities-of-files", tries="a program to which root gave capabilities",
        script="""[ -x /data/public/capable-python ] && /data/public/capable-python -c '
print([l for l in open("/proc/self/status") if l.startswith("CapEff")])
import os
os.setuid(0) or print("REACHED")
'; true""",
    ),
    Attack(
        name="make-setuid", tries="leaving a setuid program for others to run", after=others_may_run,
        script="cp /usr/bin/id /testbed/own-id; chmod 6755 /testbed/own-id; chmod 777 /testbed /tmp ~",
    ),
    Attack(
        name="give-capabilities", tries="giving capabilities to a program, or root as its owner", lang="python", script="""
open("/tmp/program", "w").close()
value = (0x02000001).to_bytes(4, "little") + b"\\xff" * 16
if attempt(os.setxattr, "/tmp/program", "security.capability", value) is None and \\
        "security.capability" in os.listxattr("/tmp/program"): reached("capability")
for uid in (0, 1, 65534):
    try: os.chown("/tmp/program", uid, uid)
    except OSError: continue
    reached("owner", uid)
""",
    ),
    Attack(
        name="immutable", tries="flags of a file that keep a clean-up from removing it, and another project's quota",
        lang="python", script="""
fd = os.open("/testbed/stays", os.O_RDWR | os.O_CREAT)
for flag in (0x10, 0x20):
    try: fcntl.ioctl(fd, 0x40086602, struct.pack("l", flag))
    except OSError: continue
    reached("flag", flag)
state = bytearray(28)
try:
    fcntl.ioctl(fd, 0x801c581f, state)
    state[12:16] = struct.pack("I", 4711)
    fcntl.ioctl(fd, 0x401c5820, state)
    reached("project")
except OSError: pass
""", process=REACHES,
    ),
    Attack(
        name="overwrite-programs", tries="the programs that run: the server's shell, bash, Python, libraries", lang="python",
        script="""
import glob
paths = ["/proc/1/exe", "/proc/self/exe", "/etc/hpcjet/server", "/etc/hpcjet/bash", "/usr/bin/env", "/etc/passwd",
         "/etc/ld.so.preload", "/etc/ld.so.cache", *glob.glob("/lib/x86_64-linux-gnu/libc.so*")]
for path in paths:
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_TRUNC):
        try: os.close(os.open(path, flags))
        except OSError: continue
        reached(path)
""",
    ),
    Attack(
        name="write-outside-the-own-places", tries="any folder that can be written but tree, /tmp, home and /dev/shm",
        script="""find / -xdev \\( -path /proc -o -path /usr -o -path /opt \\) -prune -o -type d -print 2>/dev/null |
          while read -r d; do case $d in /tmp*|/testbed*|/home/agent*|/dev/shm*) continue;; esac
          touch "$d/.probe" 2>/dev/null && reached $d; done""", process=LANDLOCK,
    ),
    Attack(
        name="sockets-of-services", tries="any socket of a service: D-Bus, munge, systemd, Docker, ssh agent",
        script="""ls /run/munge /var/run/munge /run/dbus /run/user /run/systemd /var/run/docker.sock /run/slurm* \
          /run/nscd /run/sssd /var/lib/sss 2>/dev/null && reached
        find / -xdev -type s -not -path '/tmp/*' -not -path '/testbed/*' 2>/dev/null | grep . && reached; true""",
        process=LANDLOCK,
    ),
    Attack(
        name="slurm-commands", tries="asking Slurm for anything", process=LANDLOCK,
        script="""for c in "scontrol ping" sinfo squeue "sbatch --wrap true"; do
          command -v ${c%% *} >/dev/null && timeout 5 $c 2>/dev/null | grep -iE 'up|job' && reached $c; done; true""",
    ),
    Attack(
        name="slurm-configuration", tries="the configuration and the keys of Slurm and munge", process=REACHES,
        script="""cat /etc/slurm*/*.conf /etc/munge/* /var/spool/slurm*/conf-cache/* 2>/dev/null | grep . && reached; true""",
    ),
    Attack(
        name="sys", tries="/sys, and control groups in it",
        script="ls /sys/* 2>/dev/null | grep . && reached; ls /sys/fs/cgroup 2>/dev/null | grep . && reached; true",
        process=REACHES,
    ),
)  # fmt: skip
