"""How `make test` spreads the tests over processes."""

import os

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
