"""One launch per run directory, on any node that shares the file system.

The lock is a folder that only grows: 000001, 000002, ... Each file says who holds the run, or that nobody does, and the
highest one counts. Who wants the run makes the next file with O_EXCL, which the file server grants to one only; so does
a holder that lets go. Nothing is renamed or removed: a client with an old view of the folder loses, never wins twice.
"""

import contextlib
import getpass
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from hpcjet.atomic import sync_folder
from hpcjet.errors import BusyError, StoreError
from hpcjet.rundir import RunDir

HEARTBEAT_S = 5.0
STALE_S = 60.0
"""Seconds without a sign of life after which a holder on another node counts as dead."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A process, told apart from all others that ever were."""

    host: str = "unknown host"
    pid: int = 0
    started: int = 0
    """Clock ticks from the boot of the machine to the start of the process."""
    boot_id: str = ""
    pid_namespace: str = ""
    user: str = "unknown user"
    job_id: str = ""
    """Of Slurm, if it runs in a job."""
    since: float = 0.0
    """Unix time of the launch, by the clock of `host`."""

    def __str__(self) -> str:
        if not self.pid:
            return "another launch that is just starting"
        job = f", Slurm job {self.job_id}" if self.job_id else ""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{self.user} on {self.host} (pid {self.pid}{job}) since {since}"


def this_process() -> Owner:
    """The calling process."""
    return Owner(
        host=socket.gethostname(),
        pid=os.getpid(),
        started=_start_ticks(os.getpid()) or 0,
        boot_id=_boot_id(),
        pid_namespace=_pid_namespace(),
        user=_user(),
        job_id=os.environ.get("SLURM_JOB_ID", ""),
        since=time.time(),
    )


@dataclass(frozen=True)
class _Entry:
    """A file of the lock folder as it was read."""

    number: int
    owner: Owner | None
    """None: the run is free."""
    mtime: float
    """By the clock of the file server."""


class RunLock:
    """Holds a run directory for one launch: `with RunLock(path): ...`.

    `is_dead` may know of a holder on another node that it is gone, such as from its Slurm job.
    Raises BusyError on entry if another launch holds it, StoreError if the directory cannot be written.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        stale_s: float = STALE_S,
        is_dead: Callable[[Owner], bool] = lambda _: False,
    ) -> None:
        self._run_dir = run_dir
        self._is_dead = is_dead
        self._folder = RunDir(run_dir).lock
        self._heartbeat_s = heartbeat_s
        self._stale_s = stale_s
        self._owner = Owner()
        self._number = 0
        self._end = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> "RunLock":
        self._owner = this_process()
        self._number = self._acquire()
        self._end.clear()
        self._beat = threading.Thread(target=self._keep_alive, name="hpcjet-run-lock", daemon=True)
        self._beat.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._beat is None or os.getpid() != self._owner.pid:
            return
        self._end.set()
        self._beat.join()
        self._beat = None
        try:
            _claim(self._folder, self._number + 1, None)
        except FileExistsError:
            _log.warning("run directory %s was taken over by another launch meanwhile", self._run_dir)
        except OSError as error:
            _log.warning("the lock of %s was left behind (%s): it frees itself", self._run_dir, error.strerror)

    def check(self) -> None:
        """Raise BusyError if another launch has taken over, which happens only to one that was frozen for `stale_s`."""
        newest = _newest(self._folder)
        if newest is not None and newest.number > self._number:
            raise BusyError(
                f"run directory {self._run_dir} was taken over by {newest.owner or 'a launch that has ended'}, this one"
                f" having shown no sign of life for {self._stale_s:.0f} s; leave the run to the other launch"
            )

    def _acquire(self) -> int:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            while True:
                newest = _newest(self._folder)
                if newest is not None:
                    self._refuse_if_alive(newest)
                number = newest.number + 1 if newest else 1
                with contextlib.suppress(FileExistsError):  # another was faster: look at it, once the listing shows it
                    _claim(self._folder, number, self._owner)
                    return number
                time.sleep(0.05)
        except OSError as error:
            raise StoreError(
                f"run directory {self._run_dir} cannot be locked: {error.strerror};"
                f" make {self._folder} writable, or free space"
            ) from error

    def _refuse_if_alive(self, entry: _Entry) -> None:
        if entry.owner is None or _surely_dead(entry.owner) or self._is_dead(entry.owner):
            return
        silent_s = _server_time(self._folder) - entry.mtime
        if silent_s > self._stale_s:
            _log.warning("taking over %s from %s, silent for %.0f s", self._run_dir, entry.owner, silent_s)
            return
        raise BusyError(
            f"run directory {self._run_dir} is in use by {entry.owner}, last sign of life {max(silent_s, 0):.0f} s ago;"
            f" wait for it, end it with `hpcjet cancel {self._run_dir}`, or launch a new run. Should it be dead, the"
            f" directory is free {self._stale_s:.0f} s after its last sign of life"
        )

    def _keep_alive(self) -> None:
        mine = _path(self._folder, self._number)
        while not self._end.wait(self._heartbeat_s):
            try:
                os.utime(mine)  # without a time: the file server's own clock
            except OSError as error:
                _log.warning("no sign of life could be left in %s: %s", mine, error.strerror)


def holder(run_dir: Path, *, stale_s: float = STALE_S) -> Owner | None:
    """Who holds a run directory now; None: nobody, or one that counts as dead."""
    folder = RunDir(run_dir).lock
    newest = _newest(folder)
    if newest is None or newest.owner is None or _surely_dead(newest.owner):
        return None
    try:
        now = _server_time(folder)
    except OSError:  # read-only
        now = time.time()
    return newest.owner if now - newest.mtime <= stale_s else None


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"


def _newest(folder: Path) -> _Entry | None:
    """The entry that counts. It is listed, then opened: on NFS names looked up and attributes may be a minute old."""
    try:
        numbers = [int(name) for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208
    except FileNotFoundError:
        return None
    if not numbers:
        return None
    with _path(folder, max(numbers)).open("rb") as file:
        content, mtime = file.read(), os.fstat(file.fileno()).st_mtime
    return _Entry(max(numbers), _parse(content), mtime)


def _parse(content: bytes) -> Owner | None:
    """An entry that cannot be read, such as one whose maker died before it wrote, belongs to somebody unknown."""
    nobody = Owner()
    kinds = {field.name: type(getattr(nobody, field.name)) for field in fields(nobody)}
    try:
        values = json.loads(content)
        return None if values is None else replace(nobody, **{key: kind(values[key]) for key, kind in kinds.items()})
    except (ValueError, TypeError, KeyError):
        return nobody


def _claim(folder: Path, number: int, owner: Owner | None) -> None:
    """Make the next entry, on disk when this returns. Raises FileExistsError if somebody else did."""
    path = _path(folder, number)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(asdict(owner) if owner else None).encode())
        os.fsync(descriptor)
    except BaseException:
        path.unlink()  # nobody can have built upon it yet
        raise
    finally:
        os.close(descriptor)
    sync_folder(folder)


def _server_time(folder: Path) -> float:
    """The clock that mtimes in `folder` are taken from, which on a shared file system is not this machine's."""
    probe = folder / f".clock-{secrets.token_hex(6)}"
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        probe.unlink()


def _surely_dead(owner: Owner) -> bool:
    """Whether it lived where this process would see it, same boot and same pid namespace, and is gone."""
    if not owner.boot_id or (owner.boot_id, owner.pid_namespace) != (_boot_id(), _pid_namespace()):
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # another user's
    started = _start_ticks(owner.pid)
    return started is not None and started != owner.started


def _start_ticks(pid: int) -> int | None:
    """0 for a zombie; None if /proc does not tell."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return 0 if state in "ZX" else int(rest[18])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return str(os.getuid())
