"""How `make test` spreads the tests over processes."""

import os
import signal
import threading

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/lab/", "tests/attack/", "tests/engine/")
"""Folders whose tests stay in one process, in their order: there is one lab, which tests break and mend; attacks watch
what is near them; two real models at once would want too much memory."""


class Lanes(LoadScopeScheduling):
    """A unit of work is a folder of the above, else a file, whose fixtures are thus made once."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Lanes:
    config.option.loadscopereorder = False  # what stands first on the command line starts first
    return Lanes(config, log)


def pytest_xdist_auto_num_workers() -> int:
    return min(len(os.sched_getaffinity(0)), 8)


def pytest_configure() -> None:
    """A shell starts what it puts into the background with SIGINT ignored, and every program of a test would inherit
    that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
