"""A sweep on this machine: one process in the background that runs the points."""

import subprocess
from contextlib import suppress

import psutil

from hpcjet.errors import SubmitError
from hpcjet.sweep.folder import Array, SweepDir
from hpcjet.sweep.script import ELEMENT


def start(sweep: SweepDir, array: Array, *, python: str) -> int:
    """Start it; returns its process id. It outlives the terminal, and Ctrl-C there is not for it."""
    with sweep.log(array.number, "local").open("ab") as log:
        process = subprocess.Popen(
            _words(sweep, array, python),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process.pid


def find(sweep: SweepDir, array: Array) -> int | None:
    """The process that runs an array, started by a launch that did not live to note it."""
    wanted = _words(sweep, array, "")[1:]
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[1:] == wanted:
            return int(process.pid)
    return None


def cancel(pid: int) -> None:
    """Tell it, and with it its points, to stop. Raises SubmitError if it is gone."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if ELEMENT in process.cmdline():
            process.terminate()
            return
    raise SubmitError(f"process {pid} of the sweep is gone already; nothing to cancel")


def _words(sweep: SweepDir, array: Array, python: str) -> list[str]:
    return [python, "-u", "-m", ELEMENT, str(sweep), str(array.number)]
