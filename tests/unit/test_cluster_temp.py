"""The private temp folder, wherever TMPDIR points; the object store, whatever /dev/shm holds."""

import errno
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcjet.cluster import temp
from hpcjet.cluster.place import GIB, Place, local_place
from hpcjet.cluster.ray_args import LEAST_STORE, object_store_bytes
from hpcjet.cluster.temp import is_remote, private_temp, socket_path_fits
from hpcjet.errors import BootstrapError

MIB = 1024**2


@pytest.fixture
def short() -> Iterator[Path]:
    """A base with a path that is short enough, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def refused(base: Path, env: dict[str, str] | None = None) -> str:
    """Why `base` is not taken."""
    with pytest.raises(BootstrapError) as caught:
        private_temp({"TMPDIR": str(base), **(env or {})}, fallbacks=())
    return str(caught.value)


@pytest.mark.parametrize(("length", "fits"), [(43, True), (44, False)])
def test_rays_socket_limit(length: int, fits: bool) -> None:
    assert socket_path_fits(Path("/" + "a" * (length - 1))) is fits
    assert not socket_path_fits(Path("/" + "ü" * 22)), "bytes count, not letters"


def test_the_folder_is_ours_alone_and_short(short: Path) -> None:
    folder = private_temp({"SLURM_TMPDIR": str(short), "TMPDIR": "/tmp"})
    assert folder.parent == short and stat.S_IMODE(folder.stat().st_mode) == 0o711
    assert folder.stat().st_uid == os.geteuid() and socket_path_fits(folder) and list(folder.iterdir()) == []
    plasma = folder / "session_2026-01-01_00-00-00_000000_4194304" / "sockets" / "plasma_store"
    plasma.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as ray:
        ray.bind(str(plasma))
    assert private_temp({"TMPDIR": str(short)}) != folder


def a_file(short: Path) -> Path:
    (short / "f").write_text("")
    return short / "f"


def read_only(short: Path) -> Path:
    (short / "ro").mkdir(mode=0o500)
    return short / "ro"


def open_to_all(short: Path) -> Path:
    (short / "open").mkdir()
    (short / "open").chmod(0o777)
    return short / "open"


def too_long(short: Path) -> Path:
    (short / ("x" * 80)).mkdir()
    return short / ("x" * 80)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (a_file, "not a folder"),
        (lambda short: short / "gone", "No such file or directory"),
        (too_long, "bytes long, at most 31 leave room for the names of sockets"),
        (lambda short: Path("relative"), "not an absolute path"),
        (open_to_all, "everybody may replace what lies in it (no sticky bit)"),
        (lambda short: Path("/proc"), "/proc: "),
        pytest.param(
            read_only, "Permission denied", marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may")
        ),
    ],
    ids=["file", "missing", "long", "relative", "open to all", "no place for folders", "read-only"],
)  # fmt: skip
def test_a_base_that_will_not_do_is_passed_over(short: Path, make: Callable[[Path], Path], reason: str) -> None:
    base = make(short)
    text = refused(base)
    assert reason in text and f"({base}: " in text
    assert text.startswith(f"no folder for Ray's sockets and session files on {socket.gethostname()} (")
    assert text.endswith("point TMPDIR to a local folder of your own of at most 31 bytes with 64 MiB free")
    folder = private_temp({"SLURM_TMPDIR": str(base), "TMPDIR": str(short)})
    assert folder.parent == short
    folder.rmdir()


def test_every_base_is_named_with_its_reason(short: Path) -> None:
    text = refused(a_file(short), {"SLURM_TMPDIR": "/nowhere"})
    assert f"(/nowhere: No such file or directory; {short}/f: not a folder)" in text


@pytest.fixture
def mounted(short: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small tmpfs."""
    point = short / "m"
    point.mkdir()

    def mount(options: str) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", point], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"only root may mount: {done.stderr}")
        return point

    yield mount
    subprocess.run(["umount", point], capture_output=True, check=False)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("size=8m", "only 8 MiB free, 64 needed"),
        ("size=80m,nr_inodes=2", "no inodes free"),
        ("size=80m,ro", "Read-only file system"),
    ],
)
def test_a_full_or_read_only_disk_is_passed_over(
    short: Path, mounted: Callable[[str], Path], options: str, reason: str
) -> None:
    base = mounted(options)
    assert reason in refused(base) and list(base.iterdir()) == []
    folder = private_temp({"TMPDIR": str(base)}, fallbacks=(str(short),))
    assert folder.parent == short


def test_a_quota_that_only_a_write_meets_is_passed_over(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exceed(file: Path, *, sync: bool) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", str(file))

    monkeypatch.setattr(temp, "_write_probe", exceed)
    assert f"{short}: Disk quota exceeded" in refused(short) and list(short.iterdir()) == []


def test_where_no_socket_can_be_made_is_passed_over(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(self: object, path: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(
        "hpcjet.cluster.temp.socket.socket", lambda family: SimpleNamespace(bind=lambda p: bind(0, p), close=int)
    )
    assert "no socket can be made there (Operation not supported)" in refused(short) and list(short.iterdir()) == []


def test_where_modes_and_owners_are_not_kept_is_passed_over(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)  # as on CIFS; mkdtemp left 0700
    assert "does not stay private" in refused(short) and list(short.iterdir()) == []


MOUNTS = r"""
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:9 - nfs4 fs:/home rw,vers=4.2
31 22 0:41 / /my\040scratch rw - lustre mgs:/l rw
32 30 0:42 / /home/me/local rw - xfs /dev/nvme0n1 rw
33 22 0:43 / /run/overlay rw - fuse.fuse-overlayfs fuse-overlayfs rw
34 22 0:44 / /sshfs rw - fuse.sshfs host:/ rw
"""


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("/tmp/x", False), ("/home", True), ("/home/me/tmp", True), ("/homes", False), ("/home/me/local/t", False),
        ("/my scratch/t", True), ("/run/overlay", False), ("/sshfs/t", True),
    ],
)  # fmt: skip
def test_what_is_on_the_network(tmp_path: Path, path: str, remote: bool) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS.lstrip())
    assert is_remote(Path(path), mounts=tmp_path / "mountinfo") is remote
    assert not is_remote(Path(path), mounts=tmp_path / "none")


def test_a_tmpdir_on_the_network_is_the_last_choice(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = short / "home"
    home.mkdir()
    monkeypatch.setattr(temp, "is_remote", lambda path: path.is_relative_to(home))
    local = private_temp({"TMPDIR": str(home)}, fallbacks=(str(short),))
    assert local.parent == short
    assert private_temp({"TMPDIR": str(home)}, fallbacks=("/nowhere",)).parent == home


# object store


def place_with(memory: int) -> Place:
    return local_place(host="n1", cpus=1, gpus=0, memory_bytes=memory)


@pytest.mark.parametrize(
    ("memory", "asked", "free", "expected"),
    [
        (100 * GIB, None, 1 << 50, 8 * GIB),
        (20 * GIB, None, 1 << 50, 2 * GIB),
        (100 * GIB, None, 5 * GIB, int(4.5 * GIB)),
        (512 * MIB, None, 1 << 50, LEAST_STORE),
        (100 * GIB, None, 64 * MIB, LEAST_STORE),
        (100 * GIB, 20.0, 20 * GIB, 20 * GIB),
        (100 * GIB, 0.001, 1 << 50, LEAST_STORE),
    ],
    ids=["at most 8", "a tenth", "shm is small", "little memory", "a container's shm", "asked", "Ray's least"],
)
def test_object_store(memory: int, asked: float | None, free: int, expected: int) -> None:
    assert object_store_bytes(place_with(memory), asked_gb=asked, shm_free_bytes=free) == expected


@pytest.mark.parametrize(
    ("memory", "asked", "free", "text"),
    [
        (100 * GIB, 20.0, 10 * GIB, "cluster.object_store_gb=20 does not fit into /dev/shm on n1, which has 10.00 GiB"),
        (
            4 * GIB,
            4.0,
            1 << 50,
            "cluster.object_store_gb=4 does not fit into the job's memory on n1, which is 4.00 GiB",
        ),
        (200 * MIB, None, 1 << 50, "the job has 200 MiB of memory on n1 and Ray needs 336 for itself"),
    ],
    ids=["shm", "memory", "hardly any memory"],
)
def test_a_store_that_does_not_fit_is_refused(memory: int, asked: float | None, free: int, text: str) -> None:
    with pytest.raises(BootstrapError) as caught:
        object_store_bytes(place_with(memory), asked_gb=asked, shm_free_bytes=free)
    assert str(caught.value).startswith(text)


def test_ray_takes_the_least_store_where_shm_is_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray._private.services as services

    monkeypatch.setattr("ray._private.utils.get_shared_memory_bytes", lambda: 64 * MIB)
    found = services.determine_plasma_store_config(LEAST_STORE, str(tmp_path))
    assert found == (str(tmp_path), str(tmp_path), LEAST_STORE)
    with pytest.raises(ValueError, match="minimum allowed is"):
        services.determine_plasma_store_config(64 * MIB, str(tmp_path))
