"""One Slurm lab for all tests here; a lab that is up already (a developer's) is used and left alone."""

import os
from collections.abc import Iterator

import pytest
from launching import Login

from hpcjet.errors import LabError
from hpcjet.lab import Lab
from hpcjet.lab.requirements import check_requirements

NODES = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeats", type=int, default=1, help="how often each row of the fault table runs")


@pytest.fixture(scope="session")
def lab_was_up() -> bool:
    return Lab().status().is_up


@pytest.fixture(scope="session")
def lab(lab_was_up: bool) -> Iterator[Lab]:
    """A lab of four nodes. A test that breaks something of it mends it."""
    _require_a_suitable_machine()
    lab = Lab()
    if lab_was_up:
        assert len(lab.nodes) >= NODES, (
            f"a lab of {len(lab.nodes)} nodes is up; the tests need {NODES}: hpcjet lab down"
        )
        lab.up(len(lab.nodes))
        yield lab
        return
    try:
        lab.up(NODES)
        yield lab
    finally:
        lab.down()


@pytest.fixture(scope="session")
def login(lab: Lab) -> Login:
    """Made once: it builds a wheel of the project and installs it."""
    return Login(lab)


@pytest.fixture(scope="session")
def tasks(login: Login) -> None:
    """Eight real CPython tasks, built and validated by the user, as the README says."""
    built = login.hpcjet("tasks", "build", "debian", "python3.11", timeout_s=500)
    assert built.code == 0, built.output
    validated = login.hpcjet("tasks", "validate", "--limit", "8", timeout_s=600)
    assert validated.code == 0, validated.output


@pytest.fixture(scope="module")
def own_lab(lab: Lab, lab_was_up: bool) -> Iterator[Lab]:
    """The lab, for tests that take it down and leave it anyhow: they stand last, and after them it is up again."""
    if lab_was_up:
        pytest.skip("a developer's lab is up, and this test would take it down")
    yield lab
    lab.down()
    lab.up(NODES)


def _require_a_suitable_machine() -> None:
    try:
        check_requirements()
    except LabError as error:
        if os.environ.get("CI") or os.environ.get("HPCJET_REQUIRE_LAB") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
