"""An attempt's own tree where there are no overlays: a copy that shares blocks where it can, and never the file."""

import os
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.errors import SandboxError
from hpcjet.sandbox.copies import copy_stack
from hpcjet.sandbox.identity import Identity, identity
from hpcjet.sandbox.scratch import remove_tree

WHO = identity(SandboxConfig())
ORDINARY = 60_998
MIB = 1024**2


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can enter: pytest's own is closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="hpcjet-test-"))
    folder.chmod(0o755)
    yield folder
    remove_tree(folder)


def make(folder: Path, files: dict[str, str], *, modes: dict[str, int] | None = None, uid: int = WHO.uid) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, uid, follow_symlinks=False)
    for name, mode in (modes or {}).items():
        (folder / name).chmod(mode)
    return folder


def copied(target: Path, *lowers: Path) -> Path:
    make(target, {})
    copy_stack(lowers, target, WHO)
    return target


def as_ordinary(function: Callable[[], object]) -> None:
    """Call a function in a process of an ordinary user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads and forks: the child calls nothing that needs another thread
        child = os.fork()
    if not child:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(ORDINARY, ORDINARY, ORDINARY)
                os.setresuid(ORDINARY, ORDINARY, ORDINARY)
            function()
            code = 0
        except BaseException as error:
            os.write(2, repr(error).encode())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Sharing blocks


@pytest.fixture(params=["btrfs", "xfs"])
def sharing(request: pytest.FixtureRequest, place: Path) -> Iterator[Path]:
    """A file system that can share blocks between files."""
    kind = request.param
    if os.geteuid() != 0 or not shutil.which(f"mkfs.{kind}") or not shutil.which("mount"):
        pytest.skip(f"needs root and mkfs.{kind} (Debian: btrfs-progs, xfsprogs)")
    image, mounted = place / "image", place / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(400 * MIB)
    subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True, capture_output=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=False, capture_output=True).returncode:
        pytest.skip(f"this machine does not mount {kind} from a file")
    mounted.chmod(0o755)
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def used_bytes(folder: Path) -> int:
    subprocess.run(["sync", "-f", str(folder)], check=True)
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def test_blocks_are_shared_until_they_are_written(sharing: Path) -> None:
    base = make(sharing / "base", {"folder/big": "0123456789abcdef" * (60 * MIB // 16), "small": "s"})
    before = used_bytes(sharing)
    copies = [copied(sharing / f"copy{number}", base) for number in range(3)]
    assert used_bytes(sharing) - before < 12 * MIB, "three copies of 60 MiB"
    with (copies[0] / "folder/big").open("r+") as file:
        file.write("CHANGED")
    assert (base / "folder/big").read_text().startswith("0123456")
    assert (copies[1] / "folder/big").read_text().startswith("0123456")


# The base stays as it is


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted((folder, *folder.rglob("*"))):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (about.st_ino, about.st_mode, about.st_mtime_ns, about.st_nlink, content)
    return found


def test_a_base_of_hard_links_is_never_changed_through_a_copy(place: Path) -> None:
    base = make(place / "base", {"a": "one\n", "folder/b": "two\n"})
    os.link(base / "a", base / "folder/same")
    os.link(base / "folder/b", place / "outside")
    before = snapshot(base)
    copy = copied(place / "copy", base)
    assert (copy / "a").stat().st_ino == (copy / "folder/same").stat().st_ino, "links among themselves stay"
    assert not {path.stat().st_ino for path in copy.rglob("*")} & {path.stat().st_ino for path in base.rglob("*")}
    (copy / "a").write_text("changed through the copy\n")
    with (copy / "folder/b").open("a") as file:
        file.write("more\n")
    for path in copy.rglob("*"):
        path.chmod(0o700)
        os.utime(path, (1, 1))
    (copy / "folder/same").unlink()
    assert snapshot(base) == before
    assert (place / "outside").read_text() == "two\n"


def test_times_are_kept_to_the_nanosecond_and_make_has_nothing_to_do(place: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("no make on this machine")
    rule = "out: in sub/gen\n\tcat in sub/gen > out\nsub/gen: in\n\tcp in sub/gen\n"
    base = make(place / "base", {"Makefile": rule, "in": "1\n", "sub/gen": "", "out": ""})
    subprocess.run(["make", "-s", "-B", "-C", str(base)], check=True)
    for number, name in enumerate(("in", "sub/gen", "out")):
        os.utime(base / name, ns=(10**18 + number, 10**18 + number))
    above = make(place / "above", {"in": "2\n", "sub/gen": "2\n", "out": "2\n2\n"})
    os.mknod(above / "Makefile.old", 0o600 | 0o020000)
    for number, name in enumerate(("in", "sub/gen", "out", "sub")):
        os.utime(above / name, ns=(10**18 + 10 + number, 10**18 + 10 + number))
    for name, lowers in (("one", (base,)), ("two", (base, above))):
        copy = copied(place / name, *lowers)
        assert subprocess.run(["make", "-q", "-C", str(copy)], check=False).returncode == 0
        for path in ("in", "sub/gen", "out"):
            assert (copy / path).stat().st_mtime_ns == (lowers[-1] / path).stat().st_mtime_ns
    assert (copy / "sub").stat().st_mtime_ns == (above / "sub").stat().st_mtime_ns


# Modes


def layers_of(place: Path, uid: int) -> tuple[Path, Path]:
    """Read-only folders and files in both; the upper one adds, replaces, and deletes in a read-only folder."""
    base = make(
        place / "base", {"ro/f": "1", "ro/g": "1", "ro/sub/h": "1", "x": "1"}, uid=uid,
        modes={"ro/f": 0o444, "ro/sub": 0o500, "ro": 0o555},
    )  # fmt: skip
    above = make(place / "above", {"ro/f": "2", "ro/new": "2", "ro/sub/h": "2"}, uid=uid)
    os.mknod(above / "ro/g", 0o600 | 0o020000)
    for name, mode in {"ro/f": 0o400, "ro/sub": 0o500, "ro": 0o555}.items():
        (above / name).chmod(mode)
    return base, above


def test_read_only_folders_and_files_of_an_ordinary_user(place: Path) -> None:
    uid = ORDINARY if os.geteuid() == 0 else os.geteuid()
    layers = layers_of(place, uid)
    target = make(place / "target", {}, uid=uid)
    as_ordinary(lambda: copy_stack(layers, target, Identity(uid, uid, switch=False)))
    found = {str(path.relative_to(target)): path.stat().st_mode & 0o777 for path in target.rglob("*")}
    assert found == {
        "ro": 0o555, "ro/f": 0o400, "ro/new": 0o644, "ro/sub": 0o500, "ro/sub/h": 0o644, "x": 0o644,
    }  # fmt: skip
    assert [(target / name).read_text() for name in ("ro/f", "ro/new", "ro/sub/h", "x")] == ["2", "2", "2", "1"]
    assert {path.stat().st_uid for path in target.rglob("*")} == {uid}
    assert (target / "ro").stat().st_mtime_ns == (layers[1] / "ro").stat().st_mtime_ns


def test_a_copy_belongs_to_the_sandbox_user_whoever_owns_the_base(place: Path) -> None:
    base = make(place / "base", {"f": "1", "folder/g": "2"}, uid=0)
    (base / "link").symlink_to("f")
    copy = copied(place / "copy", base)
    assert {path.lstat().st_uid for path in copy.rglob("*")} == {WHO.uid}
    as_user_of_sandboxes = Identity(WHO.uid, WHO.gid, switch=WHO.switch).popen()
    subprocess.run(["sh", "-c", "echo more >> f && echo x > folder/h"], cwd=copy, check=True, **as_user_of_sandboxes)


def test_a_file_that_its_owner_may_not_read_is_named(place: Path) -> None:
    base = make(place / "base", {"closed": "x"}, modes={"closed": 0})
    with pytest.raises(SandboxError, match="closed"):
        copied(place / "copy", base)


def test_an_ordinary_user_removes_whatever_modes_are_left(place: Path) -> None:
    """The folder that the kernel leaves in an overlay's work folder has mode 000."""
    uid = ORDINARY if os.geteuid() == 0 else os.geteuid()
    parent = make(place / "parent", {}, uid=uid)
    make(
        parent / "scratch", {"work/work/index": "", "upper/ro/f": "", "upper/none/g": ""}, uid=uid,
        modes={"upper/ro/f": 0, "work/work": 0, "upper/ro": 0o555, "upper/none": 0, "upper": 0o100, "work": 0o555},
    )  # fmt: skip
    as_ordinary(lambda: remove_tree(parent / "scratch"))
    assert list(parent.iterdir()) == []


def test_two_may_remove_a_tree_at_once(place: Path) -> None:
    make(place / "tree", {f"{number % 40}/{number % 7}/{number}": "" for number in range(2000)})
    errors: list[BaseException] = []

    def remove() -> None:
        try:
            remove_tree(place / "tree")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and not (place / "tree").exists()
