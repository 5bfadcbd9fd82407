"""What every sandbox of this user on this node shares: a small /etc with the command server in it."""

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from hpcjet.sandbox.identity import Identity

COPIED = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "os-release"),
    *("debian_version", "redhat-release", "ssl/certs", "ssl/openssl.cnf", "ca-certificates", "crypto-policies"),
    *("pki/tls", "pki/ca-trust/extracted", "services", "protocols", "mime.types", "magic", "shells", "inputrc"),
    *("bash.bashrc", "bashrc", "profile", "terminfo", "fonts", "perl", "python3", "python3.11", "java", "locale.conf"),
)
"""Of the host's /etc, what programs need and what says nothing about people or services."""

PROGRAMS = ("hpcjet/bash",)
HOME = "/home/agent"
HOSTNAME = "sandbox"
HOST_NAMES = "hpcjet/nsswitch.host"
"""The nsswitch.conf of sandboxes with the network of the host."""
_DATABASES = ("passwd", "group", "shadow", "hosts", "services", "protocols")


def shared_etc(base: Path, who: Identity, *, shell: Path) -> Path:
    """The shared /etc below `base`, built if it is not there yet, whoever else builds it at the same time."""
    folder = _private_folder(base)
    target = folder / _version(who, shell)
    if not is_complete(target):
        fresh = Path(tempfile.mkdtemp(dir=folder))
        _build(fresh, who, shell)
        fresh.chmod(0o755)
        with contextlib.suppress(OSError):
            # A leftover that somebody cleaned in part; living sandboxes keep what they see of it.
            target.rename(f"{fresh}.old")
        try:
            fresh.rename(target)
        except OSError:  # another process was first
            shutil.rmtree(fresh)
    return target


def is_complete(folder: Path) -> bool:
    """Whether nothing of a shared /etc was cleaned away, as happens in /tmp during a long run."""
    return all((folder / name).is_file() for name in ("passwd", "group", "hosts", "nsswitch.conf", *PROGRAMS))


def _private_folder(base: Path) -> Path:
    """A folder below `base`, which may be writable for all, that nobody else can have prepared for us."""
    folder = base / f".hpcjet-sandbox-{os.geteuid()}"
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return folder
    fresh = Path(tempfile.mkdtemp(prefix=".hpcjet-sandbox-", dir=base))
    fresh.chmod(0o755)  # nothing in it is a secret, and the sandbox user may be another one
    return fresh


def _version(who: Identity, shell: Path) -> str:
    found = shell.stat()
    facts = (who, str(shell), found.st_size, found.st_mtime_ns, _texts(who))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _texts(who: Identity) -> dict[str, str]:
    return {
        "passwd": f"root:x:0:0:root:/:/bin/sh\nagent:x:{who.uid}:{who.gid}:agent:{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/:/bin/false\n",
        "group": f"root:x:0:\nagent:x:{who.gid}:\nnogroup:x:65534:\n",
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost\n",
        "hostname": f"{HOSTNAME}\n",
        # Only files: there is no network, and a name that is not known must fail at once.
        "nsswitch.conf": "".join(f"{name}: files\n" for name in _DATABASES),
        HOST_NAMES: "".join(f"{name}: files{' dns' if name == 'hosts' else ''}\n" for name in _DATABASES),
        "resolv.conf": "",
        "host.conf": "multi on\n",
    }


def _build(folder: Path, who: Identity, shell: Path) -> None:
    for name in COPIED:
        _copy_public(Path("/etc") / name, folder / name)
    for name, text in _texts(who).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
    copy = folder / "hpcjet/bash"
    shutil.copyfile(shell, copy)
    # To execute, not to read: see server.py.
    copy.chmod(0o111)


def _copy_public(source: Path, target: Path) -> None:
    """Copy what every user may read. Links stay links: one that leads out of /etc finds what the sandbox shows."""
    try:
        found = source.lstat()
    except FileNotFoundError:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(found.st_mode):
        target.symlink_to(source.readlink())
    elif stat.S_ISDIR(found.st_mode) and found.st_mode & 0o005 == 0o005:
        target.mkdir()
        for entry in source.iterdir():
            _copy_public(entry, target / entry.name)
    elif stat.S_ISREG(found.st_mode) and found.st_mode & 0o004:
        shutil.copyfile(source, target)
        target.chmod(0o644)
